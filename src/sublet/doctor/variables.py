"""Variables of the environment that a script sets."""

import ast
from collections.abc import Iterator

from sublet.doctor.program import Program, Step, literal


def settings(program: Program, *names: str) -> Iterator[tuple[Step, str, str | None]]:
    """Each step that sets one of these variables: its name, and its value if that can be read."""
    for step in program.steps:
        kind, _, name = step.name.partition(" ")
        if kind == "environ" and name in names:
            yield step, name, _value(step.node, name)


def _value(node: ast.AST, name: str) -> str | None:
    match node:
        case ast.Assign(value=value):
            return _text(value)
        case ast.Call(func=ast.Attribute(attr="setdefault"), args=[_, value, *_]):
            return _text(value)
        case ast.Call(args=args, keywords=keywords):
            for word in keywords:
                if word.arg == name:
                    return _text(word.value)
            if args and isinstance(args[0], ast.Dict):
                for key, value in zip(args[0].keys, args[0].values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == name:
                        return _text(value)
    return None


def _text(value: ast.expr) -> str | None:
    found = literal(value)
    return found if isinstance(found, str) else None
