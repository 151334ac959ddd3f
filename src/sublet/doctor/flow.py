"""The order in which a script would come to its calls, as far as it can be read.

Follows calls of the script's own functions into them. Both arms of a branch are gone through, and
marked, so that what only one of them does is not said to precede what the other does.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from sublet.doctor.program import Flow, Function, Program, Step, is_function

_MOST = 20_000
"""So many steps of a script are looked at."""
_DEEPEST = 30
_ENVIRON = ("os.environ", "environ")


def flows(program: Program) -> tuple[Flow, ...]:
    """The steps of the script, then those of each function that it does not call itself."""
    walk = _Walk(program)
    walk.body(program.tree.body)
    found = [tuple(walk.steps)]
    called = set(walk.entered)
    for function in program.functions.values():
        if function.name not in called:
            other = _Walk(program)
            other.enter(function)
            called |= other.entered
            found.append(tuple(other.steps))
    return tuple(found)


def flow_of(program: Program, function: Function) -> Flow:
    """The steps that happen when this function is called."""
    walk = _Walk(program)
    walk.enter(function)
    return tuple(walk.steps)


@dataclass
class _Walk:
    """Goes through statements, and notes steps with what is around them."""

    program: Program
    steps: list[Step] = field(default_factory=list)
    entered: set[str] = field(default_factory=set)
    """The functions that were called."""
    _done: set[tuple[str, bool]] = field(default_factory=set)
    _loops: tuple[ast.AST, ...] = ()
    _arms: tuple[tuple[int, int], ...] = ()
    _within: tuple[str, ...] = ()
    _stack: tuple[str, ...] = ()

    def body(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            around = self._loops, self._arms, self._within, self._stack
            try:
                if len(self.steps) < _MOST:
                    self._statement(statement)
            except RecursionError:  # Of a sum of a thousand terms, say: nothing of it is known.
                self._loops, self._arms, self._within, self._stack = around

    def enter(self, function: Function) -> None:
        """Go through the body of a function, once in a loop and once outside of loops."""
        name = function.name
        self.entered.add(name)
        key = (name, bool(self._loops))
        if name in self._stack or len(self._stack) > _DEEPEST or key in self._done:
            return
        self._done.add(key)
        before, self._stack = self._stack, (*self._stack, name)
        self.body(function.body)
        self._stack = before

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for decorator in node.decorator_list:
                    self._expression(decorator)
                if isinstance(node, ast.ClassDef):
                    self.body([one for one in node.body if not is_function(one)])
            case ast.If(test=test, body=body, orelse=orelse):
                self._expression(test)
                if _is_main(test):
                    self.body(body)
                else:
                    self._branches(node, [body, orelse])
            case ast.Match(subject=subject, cases=cases):
                self._expression(subject)
                self._branches(node, [case.body for case in cases])
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                self.body(body)
                self._branches(node, [orelse, *(one.body for one in handlers)])
                self.body(final)
            case ast.For() | ast.AsyncFor():
                self._expression(node.iter)
                self._loop(node, node.body)
                self.body(node.orelse)
            case ast.While():
                self._expression(node.test)
                self._loop(node, node.body)
                self.body(node.orelse)
            case ast.With() | ast.AsyncWith():
                self._with(node)
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case _:
                self._expression(node)
                if isinstance(node, ast.Assign):
                    for target in node.targets:
                        self._assigned(target, node)

    def _branches(self, node: ast.AST, arms: Sequence[Sequence[ast.stmt]]) -> None:
        before = self._arms
        for number, arm in enumerate(arms):
            self._arms = (*before, (id(node), number))
            self.body(arm)
        self._arms = before

    def _loop(self, node: ast.AST, body: Sequence[ast.stmt]) -> None:
        before, self._loops = self._loops, (*self._loops, node)
        self.body(body)
        self._loops = before

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        before = self._within
        for item in node.items:
            self._expression(item.context_expr)
            self._within = (*self._within, self.program.name_of(item.context_expr))
        self.body(node.body)
        self._within = before

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        modules = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module]
        for module in modules:
            self._note(f"import {module.partition('.')[0]}", node)

    def _assigned(self, target: ast.expr, node: ast.Assign) -> None:
        """`os.environ["NAME"] = …` is a step of its own."""
        match target:
            case ast.Subscript(value=value, slice=ast.Constant(value=str(name))):
                if self.program.name_of(value) in _ENVIRON:
                    self._note(f"environ {name}", node)

    def _expression(self, node: ast.AST) -> None:
        match node:
            case ast.Lambda():
                return
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                before, self._loops = self._loops, (*self._loops, node)
                self._children(node)
                self._loops = before
            case ast.Call():
                self._children(node)
                self._call(node)
            case _:
                self._children(node)

    def _children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self._expression(child)

    def _call(self, node: ast.Call) -> None:
        name = self.program.name_of(node.func)
        environ = name.removesuffix(".setdefault").removesuffix(".update")
        if environ in _ENVIRON and environ != name:
            self._variables(node, name)
        self._note(name, node)
        match node.func:
            case ast.Name(id=called) if called in self.program.classes:
                self._method(self.program.classes[called], "__init__")
            case ast.Name(id=called) if called in self.program.functions:
                self.enter(self.program.functions[called])
            case ast.Attribute(attr=attr) if attr in self.program.functions:
                self._only_method(attr)

    def _variables(self, node: ast.Call, name: str) -> None:
        """`os.environ.setdefault("NAME", …)` and `os.environ.update(NAME=…)`."""
        found: list[object] = []
        if name.endswith(".setdefault") and node.args and isinstance(node.args[0], ast.Constant):
            found = [node.args[0].value]
        if name.endswith(".update"):
            found = [one.arg for one in node.keywords]
            if node.args and isinstance(node.args[0], ast.Dict):
                found += [one.value for one in node.args[0].keys if isinstance(one, ast.Constant)]
        for variable in found:
            if isinstance(variable, str):
                self._note(f"environ {variable}", node)

    def _only_method(self, name: str) -> None:
        """Enter a method, if just one class has one of this name."""
        owners = [one for one in self.program.classes.values() if _has(one, name)]
        if len(owners) == 1:
            self._method(owners[0], name)

    def _method(self, owner: ast.ClassDef, name: str) -> None:
        for node in owner.body:
            if is_function(node) and node.name == name:
                self.enter(node)

    def _note(self, name: str, node: ast.AST) -> None:
        line = getattr(node, "lineno", 1)
        function = self._stack[-1] if self._stack else ""
        self.steps.append(Step(name, node, line, self._loops, self._arms, self._within, function))


def _has(owner: ast.ClassDef, name: str) -> bool:
    return any(is_function(node) and node.name == name for node in owner.body)


def _is_main(test: ast.expr) -> bool:
    match test:
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()]):
            return True
    return False
