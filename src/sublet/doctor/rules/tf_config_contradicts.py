"""TF_CONFIG says which tasks a cluster has, and which of them this process is."""

import ast
import json
from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program, literal
from sublet.doctor.rule import Rule, Seen

_ROLES = ("chief", "worker", "ps", "evaluator", "master")


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    for step in program.steps:
        if step.name == "environ TF_CONFIG" and isinstance(step.node, ast.Assign):
            config = _configuration(program, step.node.value)
            if config is not None and (wrong := contradiction(config)):
                yield Seen(step.line, (wrong,))


def _configuration(program: Program, value: ast.expr) -> object:
    match value:
        case ast.Call(args=[first, *_]) if program.name_of(value) == "json.dumps()":
            if isinstance(first, ast.Name):
                first = _assigned(program, first.id) or first
            return literal(first)
        case ast.Constant(value=str(text)):
            return _parsed(text)
    return None


def _assigned(program: Program, name: str) -> ast.expr | None:
    """The one value of a variable that nothing changes."""
    found = None
    for node in program.nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                if found is not None:
                    return None
                found = value
            case ast.Subscript(value=ast.Name(id=target), ctx=ast.Store()) if target == name:
                return None
            case ast.Subscript(value=ast.Subscript(value=ast.Name(id=target)), ctx=ast.Store()):
                if target == name:
                    return None
    return found


def _machine(machine: Machine) -> Iterator[Seen]:
    text = machine.environ.get("TF_CONFIG", "")
    if text and (wrong := contradiction(_parsed(text))):
        yield Seen(words=(wrong,), text=f"TF_CONFIG={text[:200]}")


def _parsed(text: str) -> object:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text


def contradiction(config: object) -> str:
    """What is wrong with a TF_CONFIG, in words; empty if nothing is."""
    if not isinstance(config, dict):
        return "is no JSON object"
    cluster, task = config.get("cluster", {}), config.get("task", {})
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        return "has a cluster or a task that is no object"
    if not cluster:
        return ""
    if unknown := [role for role in cluster if role not in _ROLES]:
        return f"names a role that TensorFlow does not know: {unknown[0]!r}"
    addresses = [one for role in cluster.values() if isinstance(role, list) for one in role]
    if twice := [one for one in addresses if addresses.count(one) > 1]:
        return f"has {twice[0]} twice in its cluster"
    return _task(cluster, task)


def _task(cluster: dict[str, object], task: dict[str, object]) -> str:
    role, index = task.get("type"), task.get("index", 0)
    if role is None:
        return "has a cluster and does not say which task this is"
    if role == "evaluator":
        return ""
    tasks = cluster.get(str(role))
    if tasks is None:
        return f"says that this is a {role}, and its cluster has none"
    if not str(index).isdigit():
        return f"has the index {index!r}, which is no number"
    count = len(tasks) if isinstance(tasks, list | dict) else None
    if count is not None and int(str(index)) >= count:
        return f"says that this is {role} {index}, and its cluster has {count}, counted from 0"
    return ""


RULE = Rule(
    id="tf-config-contradicts",
    severity="error",
    sentence="TF_CONFIG {contradicts itself}: the workers wait for each other for ever, or do not "
    "start.",
    fix="Write the same cluster for all tasks, each with its own `task`; or leave it to `sublet "
    "launch`.",
    log=(
        r"The `task_id` \S+ exceeds the maximum id of \w+",
        r"`task_type` \S+ not found in cluster_spec",
        r"There must be at most one '\w+' job",
    ),
    code=_code,
    machine=_machine,
)
