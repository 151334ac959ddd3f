"""Finds the variables that a script sets and that count only before a package is loaded.

In a warm fork the packages are loaded already. A script that sets such a variable to the value it
has anyway, as most do with KERAS_BACKEND, may run there; any other has to be started cold. Reads
the script's text, never runs it.
"""

from sublet.formats import import_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator, Mapping

_NAMES = (import_variables.NATIVE | import_variables.PYTHON) - {"HOME"}
_HINTS = tuple(name.encode() for name in (*_NAMES, *import_variables.NATIVE_PREFIXES))


def differing(text: bytes, environ: "Mapping[str, str]") -> str:
    """The first variable that the script may set to another value than it has; empty if none."""
    if not any(hint in text for hint in _HINTS):
        return ""
    import ast  # Takes a while, and few scripts need it.

    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ""  # Python says best what is wrong with it.
    for name, value in _settings(tree):
        now = environ.get(name) or import_variables.DEFAULTS.get(name)
        if _counts(name) and (value is None or value != now):
            return name
    return ""


def _counts(name: str) -> bool:
    return name != "HOME" and import_variables.counts_when_loaded(name)


def _settings(tree: "ast.AST") -> "Iterator[tuple[str, str | None]]":
    """Each name that is set by a key or a keyword, and the value; None if that cannot be seen."""
    import ast

    understood: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Subscript(slice=ast.Constant(value=str(name)) as key)], value=value
            ):
                understood.add(id(key))
                yield name, _text(value)
            case ast.Call(
                func=ast.Attribute(attr="setdefault" | "putenv"),
                args=[ast.Constant(value=str(name)) as key, value],
            ):
                understood.add(id(key))
                yield name, _text(value)
            case ast.Call(
                func=ast.Attribute(attr="get" | "getenv"), args=[ast.Constant() as key, *_]
            ):
                understood.add(id(key))
            case ast.Subscript(slice=ast.Constant() as key, ctx=ast.Load()):
                understood.add(id(key))
            case ast.Compare(left=ast.Constant() as key, ops=[ast.In() | ast.NotIn()]):
                understood.add(id(key))
            case ast.keyword(arg=str(name), value=value):
                yield name, _text(value)
            case ast.Dict(keys=keys, values=values):
                for each, value in zip(keys, values, strict=True):
                    if isinstance(each, ast.Constant) and isinstance(each.value, str):
                        understood.add(id(each))
                        yield each.value, _text(value)
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(name)) if id(node) not in understood:
                yield name, None


def _text(value: "ast.expr") -> str | None:
    import ast

    match value:
        case ast.Constant(value=str(text)):
            return text
    return None
