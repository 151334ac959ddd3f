"""A script as the rules see it: what names mean, and in which order calls would be made.

Names are the library's own, however it was imported: `tf.constant`, `tf1.Session` for what is below
`tensorflow.compat.v1`, `keras.layers.Dense`. What a call gives is written with `()`: after `model =
keras.Sequential()`, `model.predict` is `keras.Sequential().predict`. What is not known is `?`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeGuard

_LIBRARIES = (
    ("tensorflow.compat.v1", "tf1"),
    ("tensorflow.compat.v2", "tf"),
    ("tensorflow.python.keras", "keras"),
    ("tensorflow.keras", "keras"),
    ("tensorflow", "tf"),
    ("tf_keras", "keras"),
    ("keras.src", "keras"),
)
"""The longest first."""
UNKNOWN = "?"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_function(node: object) -> TypeGuard[Function]:
    """Whether the node defines a function."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def library_name(dotted: str) -> str:
    """The name in the library's own words."""
    for package, short in _LIBRARIES:
        if dotted == package or dotted.startswith(package + "."):
            dotted = short + dotted[len(package) :]
            break
    for prefix in ("tf.compat.v1", "tf1.compat.v1"):
        if dotted.startswith(prefix):
            return "tf1" + dotted[len(prefix) :]
    for prefix in ("tf.keras", "tf1.keras", "tf.compat.v2.keras"):
        if dotted.startswith(prefix):
            return "keras" + dotted[len(prefix) :]
    return dotted


@dataclass(frozen=True)
class Step:
    """A call, an import or a variable that is set, where the program comes to it."""

    name: str
    """What is called; `import NAME`; `environ NAME`."""
    node: ast.AST
    line: int
    loops: tuple[ast.AST, ...] = ()
    arms: tuple[tuple[int, int], ...] = ()
    """The branches that it lies in: which statement, and which of its arms."""
    within: tuple[str, ...] = ()
    """What the `with` blocks around it enter."""
    function: str = ""
    """The function that it stands in."""

    @property
    def call(self) -> ast.Call:
        """The call, for a step that is one."""
        assert isinstance(self.node, ast.Call)
        return self.node

    def may_follow(self, earlier: "Step") -> bool:
        """Whether both can happen in one run: they are not in two arms of one branch."""
        arms = dict(self.arms)
        return all(arms.get(branch, arm) == arm for branch, arm in earlier.arms)

    def keyword(self, name: str) -> ast.expr | None:
        """The value of a keyword of the call."""
        return next((one.value for one in self.call.keywords if one.arg == name), None)

    def argument(self, place: int, name: str) -> ast.expr | None:
        """The value of a parameter of the call, by its place or by its name."""
        if len(self.call.args) > place:
            return self.call.args[place]
        return self.keyword(name)


Flow = tuple[Step, ...]


@dataclass(frozen=True)
class Program:
    """A script that was read. `lines` gives the cell and line of each line, for a notebook."""

    path: str
    text: str
    tree: ast.Module
    cells: tuple[tuple[int, int], ...] = field(default=(), repr=False)

    @cached_property
    def functions(self) -> dict[str, Function]:
        """The functions of the module, and those within others."""
        return {node.name: node for node in self.nodes if is_function(node)}

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """The classes of the module."""
        return {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}

    @cached_property
    def names(self) -> "dict[str, str]":
        """What imported names mean."""
        from sublet.doctor.names import imported_names

        return imported_names(self)

    @cached_property
    def kinds(self) -> "dict[str, str]":
        """What variables hold: `keras.Sequential()` for one that was assigned such a call."""
        from sublet.doctor.names import variable_kinds

        return variable_kinds(self)

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """The steps in the order in which they would happen: first those of the script itself,
        then of each function that it does not call."""
        from sublet.doctor.flow import flows

        return flows(self)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """All steps, each line of code once."""
        seen: dict[int, Step] = {}
        for flow in self.flows:
            for step in flow:
                earlier = seen.get(id(step.node))
                if earlier is None or len(step.loops) > len(earlier.loops):
                    seen[id(step.node)] = step
        return tuple(seen.values())

    @cached_property
    def graph_mode(self) -> bool:
        """Whether it builds graphs as TensorFlow 1 did, from its beginning to its end."""
        off = ("tf1.disable_eager_execution", "tf1.disable_v2_behavior")
        return any(step.name in off for step in self.steps)

    def calls(self, *names: str) -> Iterator[Step]:
        """The calls of these functions."""
        return (step for step in self.steps if step.name in names)

    def flow_of(self, name: str) -> Flow:
        """The steps that happen when this function is called."""
        from sublet.doctor.flow import flow_of

        function = self.functions.get(name)
        return () if function is None else flow_of(self, function)

    def name_of(self, node: ast.AST | None) -> str:
        """What an expression means, in the library's words."""
        match node:
            case ast.Name(id=name):
                return self.names.get(name) or self.kinds.get(name) or UNKNOWN
            case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                return self.kinds.get(f"self.{attr}", f"{UNKNOWN}.{attr}")
            case ast.Attribute(value=value, attr=attr):
                return library_name(f"{self.name_of(value)}.{attr}")
            case ast.Call(func=function):
                return f"{self.name_of(function)}()"
            case ast.Subscript(value=value):
                return f"{self.name_of(value)}[]"
            case ast.Await(value=value):
                return self.name_of(value)
        return UNKNOWN

    def uses(self, *libraries: str) -> bool:
        """Whether the program imports one of these, by the library's own name."""
        return any(name.partition(".")[0] in libraries for name in self.names.values())


def literal(node: ast.AST | None) -> object:
    """The value of a literal; None for anything else."""
    try:
        # What is no expression raises ValueError.
        return ast.literal_eval(node)  # type: ignore[arg-type]
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
