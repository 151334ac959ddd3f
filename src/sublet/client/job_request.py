"""A command line and its options, as the plain fields of a `domain.job.JobSpec`.

Loads nothing but the standard library, so that a command can send its job before it loads the rest.
"""

import os

from sublet.client.program import read_command, surroundings, this_process, why_cold
from sublet.domain.memory_option import read_memory
from sublet.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Unpack

    from sublet.client.options import RunOptions
    from sublet.domain.job_fields import JobFields

_LONGEST_NAME = 80

CHOICES = {
    "on_oom": ("fail", "grow", "split", "split-exact"),
    "priority": ("high", "normal", "low"),
    "service": ("guaranteed", "opportunistic"),
}


def job(
    words: "Sequence[str]",
    memory: str = "auto",
    *,
    device: str | None = None,
    gpus: int | None = None,
    cpus: int | None = None,
    on_oom: str = "fail",
    name: str | None = None,
    python: str | None = None,
    cold: bool = False,
    leave_children: bool = False,
    fence: bool | None = None,
    notify: str | None = None,
    on: str | None = None,
) -> "JobFields":
    """The spec of a job that runs this command line, from here, and ends with this process."""
    asked = read_memory(memory)
    if gpus is not None and gpus < 1:
        raise BadRequest(f"gpus {gpus} is less than 1.", "To run without a GPU, name device cpu.")
    if isinstance(words, str):
        raise BadRequest(f"{words!r} is one string.", f"Write a list of words: {words.split()!r}.")
    program = read_command(list(words), python)
    spec: JobFields = {
        "name": shown(name) if name else _name(program["kind"], program["target"]),
        "program": program,
        "surroundings": surroundings(),
        "memory": asked,
        "client": this_process(),
        "device": _printable(_devices(device)) if device else None,
        "gpus": gpus,
        "cpus": cpus,
        "on_oom": choice("on_oom", on_oom),
        "cold": "it was asked for" if cold else why_cold(program),
        "leave_children": leave_children,
    }
    if on:
        from sublet.backends.ray.cluster import Cluster, read_address
        from sublet.home import Home

        spec["on"] = read_address(on)
        # So that the broker knows the cluster's devices, or its user what is wrong with it.
        Cluster(Home.find(), spec["on"]).ensure()
    if notify:
        from sublet.notify import check

        spec["notify"] = check(notify)
    if _is_on(os.environ.get("SUBLET_FENCE", "")) if fence is None else fence:
        from sublet.client.fence_build import find_or_build
        from sublet.home import Home

        spec["fence"] = find_or_build(Home.find())
    return spec


def job_without_client(
    words: "Sequence[str]",
    memory: str = "auto",
    *,
    after: "Iterable[int]" = (),
    after_ok: "Iterable[int]" = (),
    priority: str = "normal",
    service: str = "guaranteed",
    time: float | str | None = None,
    grace: float | str | None = None,
    retries: int = 0,
    requeue: bool = True,
    split: bool = False,
    **options: "Unpack[RunOptions]",
) -> "JobFields":
    """The spec of a job that waits and runs on its own, whatever becomes of this process."""
    options.setdefault("on_oom", "grow")
    tree = job(words, memory, **options)
    time, grace = _seconds(time), _seconds(grace)
    if time is not None and not time > 0:
        raise BadRequest("A time limit must be more than 0.", "Such as 90s, 45min or 2h.")
    if grace is not None and not grace >= 0:
        raise BadRequest("The grace period cannot be negative.", "Such as 30s.")
    if retries < 0:
        raise BadRequest(f"retries {retries}: cannot be negative.", "Write 0 or more.")
    return tree | {
        "client": None,
        "priority": choice("priority", priority),
        "service": choice("service", service),
        "time": time,
        "grace": 10.0 if grace is None else grace,
        "after": tuple(after),
        "after_ok": tuple(after_ok),
        "retries": retries,
        "requeue": requeue,
        "split": split,
    }


def _seconds(span: float | str | None) -> float | None:
    """A number is in seconds; a text has its unit, as on the command line."""
    if not isinstance(span, str):
        return None if span is None else float(span)
    from sublet.units import parse_seconds

    return parse_seconds(span)


def choice(option: str, value: str) -> str:
    """The value, if the option takes it; a BadRequest that names all it takes, if not."""
    if value not in CHOICES[option]:
        *most, last = CHOICES[option]
        raise BadRequest(
            f"{option.replace('_', '-')} {value!r} is unknown.",
            f"Write {', '.join(most)} or {last}.",
        )
    return value


def shown(name: str) -> str:
    """A name as it is stored: one line, short, and without control characters."""
    text = "".join(one if one.isprintable() else "\ufffd" for one in _printable(name))
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def _name(kind: str, target: bytes) -> str:
    text = os.fsdecode(target)
    names = {"code": "-c", "module": f"-m {text}"}
    return shown(names.get(kind, os.path.basename(text.rstrip("/"))))


def _is_on(setting: str) -> bool:
    return setting.lower() in ("1", "on", "true", "yes")


def _devices(names: str) -> str:
    """Devices as they are called: a mere number is a GPU's."""
    each = (name.strip() for name in names.split(","))
    return ",".join(f"gpu{name}" if name.isdecimal() else name for name in each)


def _printable(text: str) -> str:
    """Replace the bytes of a command line's word that are not UTF-8."""
    return os.fsencode(text).decode(errors="replace")
