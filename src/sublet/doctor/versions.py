"""Whether a script is written for more than one TensorFlow."""

import ast
import re

from sublet.doctor.program import Program

_VERSIONS = re.compile(r"eager|version|tf_?[12]\b|compat", re.IGNORECASE)
"""What is asked where both ways are written down."""


def asks_version(program: Program) -> bool:
    """Whether it looks which TensorFlow it has, or what that one has."""
    for node in program.nodes:
        match node:
            case ast.Attribute(attr="__version__" | "VERSION", value=value):
                if program.name_of(value).startswith("tf"):
                    return True
            case ast.If(test=test) if _VERSIONS.search(ast.unparse(test)):
                return True
            case ast.Call(func=ast.Name(id="hasattr"), args=[first, *_]):
                if program.name_of(first).startswith("tf"):
                    return True
    return False
