"""How large a job may be, and what no program could be started with.

Clients of ours keep to it. Whoever speaks the protocol himself is refused here, before anything of
it is in the state, in the ledger, or on its way to a keeper.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import chain

from sublet.domain.history import Forecast
from sublet.domain.job import JobSpec, Process, Role, Surroundings
from sublet.domain.memory import Share
from sublet.errors import BadRequest

_LARGEST_TEXT = 6 << 20
"""Bytes of arguments and environment: more than that no Linux starts a program with."""
_LONGEST_NAME = 200
_LONGEST_LINE = 2000
_MOST = 100_000
_INT64 = 1 << 63
MOST_IN_GANG = 64
"""Tasks of the largest cluster."""


def check(spec: JobSpec) -> None:
    """Refuse what is too large, or cannot be."""
    if len(spec.name) > _LONGEST_NAME or len(spec.device or "") > _LONGEST_NAME:
        raise _refusal("name or device", f"has at most {_LONGEST_NAME} characters")
    if len(spec.cold) > _LONGEST_LINE:
        raise _refusal("reason to start cold", f"has at most {_LONGEST_LINE} characters")
    if len(spec.notify) > _LONGEST_LINE or "\0" in spec.notify:
        raise _refusal("notify", f"has at most {_LONGEST_LINE} characters, and no NUL")
    program, around = spec.program, spec.surroundings
    words = (program.target, program.python, *program.args, *program.flags, around.cwd)
    _check_text(chain(words, around.environ, around.environ.values(), around.forgotten))
    _check_surroundings(around)
    if spec.client is not None:
        _check_process(spec.client)
    if isinstance(spec.memory, Share) and not math.isfinite(spec.memory.share):
        raise _refusal("memory", "is a finite share")
    if spec.time is not None and not 0 < spec.time < math.inf:
        raise _refusal("time", "is a number of seconds above 0")
    if not 0 <= spec.grace < math.inf:
        raise _refusal("grace", "is a number of seconds")
    if spec.gang is not None:
        raise _refusal("gang", "is made by the broker")
    if spec.gpus is not None and not 1 <= spec.gpus < _MOST:
        raise BadRequest(f"--gpus {spec.gpus}: cannot be.", "Ask for 1 GPU or more.")
    if not 0 <= spec.retries < _INT64:
        raise _refusal("retries", "is not negative")
    others = (*spec.after, *spec.after_ok)
    if len(others) > _MOST or any(not 0 <= number < _INT64 for number in others):
        raise _refusal("after", f"names at most {_MOST} jobs, by their numbers")


def check_gang(
    spec: JobSpec, roles: Sequence[tuple[Role, int]], owner: Process | None, stall: float
) -> None:
    """Refuse a cluster that TensorFlow knows no use for, or that is no gang."""
    if not 0 < stall < math.inf:
        raise _refusal("cluster", "may stand still for some seconds")
    if owner is not None:
        _check_process(owner)
    counts = dict(roles)
    if len(counts) != len(roles) or any(count < 1 for count in counts.values()):
        raise _refusal("cluster", "names each role once, with one task or more")
    if not counts.get("chief") and not counts.get("worker"):
        raise BadRequest("A cluster needs a worker or a chief.", "Write `--workers 2`.")
    for role in ("chief", "evaluator"):
        if counts.get(role, 0) > 1:
            raise BadRequest(f"A cluster has one {role} at most.", f"Write `--{role} 1`.")
    if sum(counts.values()) > MOST_IN_GANG:
        raise BadRequest(
            f"A cluster of {sum(counts.values())} tasks is too large.",
            f"At most {MOST_IN_GANG} on one machine.",
        )
    if spec.service != "guaranteed" or spec.after or spec.after_ok or spec.within is not None:
        raise _refusal("cluster", "is guaranteed, waits for no other jobs, and is in no lease")


def check_forecast(forecast: Forecast) -> None:
    """Refuse what a ledger cannot keep."""
    numbers = (forecast.expected, forecast.low, forecast.high, *(p.peak for p in forecast.points))
    finite = all(math.isfinite(each) for each in (forecast.at, *(p.batch for p in forecast.points)))
    if not finite or len(numbers) > _MOST or any(not 0 <= each < _INT64 for each in numbers):
        raise _refusal("forecast", "has sizes in bytes")
    if len(forecast.rests_on) > _LONGEST_LINE:
        raise _refusal("forecast", f"rests on at most {_LONGEST_LINE} characters")


def _check_text(texts: Iterable[bytes]) -> None:
    size = 0
    for text in texts:
        size += len(text) + 1
        if b"\0" in text:
            raise BadRequest("An argument or a variable has a null byte in it.", "Leave it out.")
    if size > _LARGEST_TEXT:
        raise BadRequest(
            f"The arguments and the environment have {size >> 20} MiB; no program can be started "
            f"with more than {_LARGEST_TEXT >> 20} MiB.",
            "Hand large data over in a file.",
        )


def _check_surroundings(around: Surroundings) -> None:
    if not 0 <= around.umask <= 0o7777 or not -20 <= around.nice <= 20:
        raise _refusal("umask or niceness", "is out of range")
    if len(around.affinity) > _MOST or any(not 0 <= cpu < _MOST for cpu in around.affinity):
        raise _refusal("affinity", "has numbers of processors")
    if any(not 1 <= number <= 64 for number in around.ignored):
        raise _refusal("list of ignored signals", "has numbers of signals")
    if any(number not in (0, 1, 2) for number in around.closed):
        raise _refusal("list of closed streams", "has 0, 1 and 2")
    for number, limits in around.limits.items():
        if not 0 <= number < 64 or any(not -1 <= limit < _INT64 for limit in limits):
            raise _refusal("list of limits", "has numbers of the kernel's")


def _check_process(process: Process) -> None:
    if not 0 < process.pid < 1 << 31 or not 0 <= process.start < _INT64:
        raise _refusal("client", "is a process")


def _refusal(what: str, rule: str) -> BadRequest:
    return BadRequest(f"A job's {what} {rule}.", "Nothing was accepted.")
