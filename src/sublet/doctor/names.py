"""What the names in a script mean: what was imported under them, or assigned to them."""

import ast

from sublet.doctor.program import UNKNOWN, Program, is_function, library_name

_KNOWN = ("tf", "tf1", "keras", "os", "sys", "multiprocessing", "threading", "concurrent")


def imported_names(program: Program) -> dict[str, str]:
    """The names that imports bind, and other names for the same: `layers = tf.keras.layers`."""
    names: dict[str, str] = {}
    for node in program.nodes:
        match node:
            case ast.Import(names=parts):
                for part in parts:
                    name = part.asname or part.name.partition(".")[0]
                    target = part.name if part.asname else name
                    names[name] = library_name(target)
            case ast.ImportFrom(module=str(module), names=parts, level=0):
                for part in parts:
                    names[part.asname or part.name] = library_name(f"{module}.{part.name}")
    # After all imports, wherever they stand: `tf = tf.compat.v1` holds for what follows it.
    for node in program.nodes:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=(ast.Attribute() | ast.Name()) as value
            ):
                meaning = _dotted(value, names)
                if meaning and meaning.partition(".")[0] in _KNOWN:
                    names[name] = meaning
    return names


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute) and (value := _dotted(node.value, names)):
        return library_name(f"{value}.{node.attr}")
    return ""


def variable_kinds(program: Program) -> dict[str, str]:
    """What variables hold, as far as an assignment in the script shows it; the last one counts."""
    kinds: dict[str, str] = {}
    # Set at once, so that those that follow can be read with those before.
    program.__dict__["kinds"] = kinds
    for function in program.functions.values():
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
                kinds.setdefault(function.name, _kind(program, node.value).removesuffix("()"))
    for name, made in program.classes.items():
        if base := next((kind for kind in map(program.name_of, made.bases) if _tells(kind)), ""):
            kinds[name] = base
    for node in program.nodes:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    _bind(program, kinds, target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                _bind(program, kinds, target, value)
            case ast.NamedExpr(target=target, value=value):
                _bind(program, kinds, target, value)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    if item.optional_vars is not None:
                        _bind(program, kinds, item.optional_vars, item.context_expr)
    _returned_variables(program, kinds)
    return {name: kind for name, kind in kinds.items() if _tells(kind)}


def _returned_variables(program: Program, kinds: dict[str, str]) -> None:
    """`model = build()` holds what the variable holds that `build` returns."""
    for function in program.functions.values():
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Name):
                kind = kinds.get(node.value.id, "")
                if _tells(kind):
                    kinds[function.name] = kind.removesuffix("()")
    for node in program.nodes:
        match node:
            case ast.Assign(
                targets=[target], value=ast.Call(func=ast.Name(id=called)) as value
            ) if called in program.functions and called in kinds:
                _bind(program, kinds, target, value)


def _bind(program: Program, kinds: dict[str, str], target: ast.expr, value: ast.expr) -> None:
    kind = _kind(program, value)
    if not _tells(kind):
        return
    match target:
        case ast.Name(id=name):
            kinds[name] = kind
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            kinds[f"self.{attr}"] = kind


def _kind(program: Program, value: ast.expr) -> str:
    match value:
        case ast.Call():
            return program.name_of(value)
        case ast.Name(id=name):
            return program.kinds.get(name, UNKNOWN)
        case ast.ListComp(elt=ast.Call() as each):
            return f"{program.name_of(each)}[]"
        case ast.Attribute() | ast.Subscript():
            return program.name_of(value)
    return UNKNOWN


def _tells(kind: str) -> bool:
    return bool(kind) and not kind.startswith(UNKNOWN)


def decorated(program: Program, name: str, decorator: str) -> ast.AST | None:
    """The decorator of this name on a function of this name."""
    function = program.functions.get(name)
    if not is_function(function):
        return None
    for one in function.decorator_list:
        if program.name_of(one).removesuffix("()") == decorator:
            return one
    return None
