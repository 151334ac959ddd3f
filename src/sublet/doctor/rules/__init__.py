"""All rules. Each is a file of this package, named after its rule, with the rule in `RULE`."""

import functools
import importlib
import pkgutil

from sublet.doctor.rule import Rule


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """The rules, in the order of their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    rules = [importlib.import_module(f"{__name__}.{name}").RULE for name in names]
    return tuple(rules)
