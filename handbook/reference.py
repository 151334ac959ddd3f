"""Reference pages, made from the code: what `sublet` exports, and its commands."""

import inspect
from collections.abc import Iterator

import click

import sublet
from sublet.cli import verbs

_WIDTH = 88


def api() -> str:
    """A page on every name in `import sublet`."""
    names = [name for name in sublet.__all__ if not name.startswith("__")]
    functions = [name for name in names if inspect.isfunction(getattr(sublet, name))]
    classes = [name for name in names if inspect.isclass(getattr(sublet, name))]
    errors = [name for name in classes if issubclass(getattr(sublet, name), Exception)]
    lines = [
        "# Python reference",
        "",
        "All that `import sublet` has. Other modules are private, but for `sublet.joblib`,",
        "`sublet.multiprocessing` ([how to use them](../migrating.md)) and `sublet.ray`",
        "([with Ray](../ray.md)).",
    ]
    for title, chosen in (
        ("Functions", functions),
        ("Classes", [name for name in classes if name not in errors]),
        ("Errors", errors),
    ):
        lines += ["", f"## {title}"]
        for name in chosen:
            lines += ["", *_described(name, getattr(sublet, name))]
    return "\n".join(lines) + "\n"


def cli() -> str:
    """A page with the help of every command."""
    lines = ["# Commands", "", "What `sublet COMMAND --help` says."]
    for name in verbs.VERBS:
        command = verbs.cli.get_command(click.Context(verbs.cli), name)
        assert command is not None
        context = click.Context(command, info_name=f"sublet {name}", terminal_width=_WIDTH)
        lines += ["", f"## {name}", "", "```text", command.get_help(context), "```"]
    return "\n".join(lines) + "\n"


def _described(name: str, thing: object) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    if not (inspect.isclass(thing) and issubclass(thing, Exception)):
        yield from ("```python", _signature(name, thing), "```", "")
    yield inspect.cleandoc(thing.__doc__ or "")
    if inspect.isclass(thing):
        yield from _members(thing)


def _signature(name: str, thing: object) -> str:
    try:
        # What cannot be called raises TypeError.
        signature = inspect.signature(thing)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return name
    parameters = [
        str(one.replace(annotation=inspect.Parameter.empty))
        for one in signature.parameters.values()
    ]
    return f"{name}({', '.join(parameters)})"


def _members(kind: type) -> Iterator[str]:
    """Methods and properties that the class itself documents."""
    for name, member in vars(kind).items():
        what = member.fget if isinstance(member, property) else member
        if isinstance(what, classmethod | staticmethod):
            what = what.__func__
        if name.startswith("_") or not inspect.isfunction(what) or not what.__doc__:
            continue
        shown = name if isinstance(member, property) else _signature(name, what)
        yield from ("", f"`{shown.replace('(self, ', '(').replace('(self)', '()')}`", "")
        yield f": {' '.join(inspect.cleandoc(what.__doc__).split())}"
