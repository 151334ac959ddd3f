"""Whether a script is written for more than one TensorFlow."""

import ast
import re

from sublet.doctor.program import Program

_VERSIONS = re.compile(r"eager|version|tf_?[12]\b|compat", re.IGNORECASE)
"""What is asked where both ways are written down."""


def asks_version(program: Program) -> bool:
    """Whether it looks which TensorFlow it has, or what that one has, and goes two ways.

    To show the version, or to insist on one, is not to ask.
    """
    shown = {
        inner
        for node in program.nodes
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Expr) and _only_shows(node.value))
        for inner in ast.walk(node)
    }
    for node in program.nodes:
        if node in shown:
            continue
        match node:
            case ast.Attribute(attr="__version__" | "VERSION", value=value):
                if program.name_of(value).startswith("tf"):
                    return True
            case ast.If(test=test) if _VERSIONS.search(ast.unparse(test)):
                if not _asks_another_package(program, test):
                    return True
            case ast.Call(func=ast.Name(id="hasattr"), args=[first, *_]):
                if program.name_of(first).startswith("tf"):
                    return True
    return False


def _asks_another_package(program: Program, test: ast.expr) -> bool:
    """Whether the test is on the version of something else than TensorFlow or Keras."""
    asked = [
        program.name_of(node.value)
        for node in ast.walk(test)
        if isinstance(node, ast.Attribute) and node.attr == "__version__"
    ]
    return bool(asked) and not any(name.startswith(("tf", "keras")) for name in asked)


def _only_shows(value: ast.expr) -> bool:
    """Whether it is the last line of a notebook's cell, or a call that prints."""
    match value:
        case ast.Attribute():
            return True
        case ast.Call(func=ast.Name(id="print")):
            return True
    return False
