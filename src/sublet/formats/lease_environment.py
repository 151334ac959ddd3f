"""The environment of a leased program: the variables that TensorFlow and CUDA read at their start.

Decides between what the lease needs and what the user has set. Pure: it takes an environment and
returns a new one. It is applied before the program starts and again just before TensorFlow's
runtime does; the second time changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from . import fence_file
from .attempt_files import dump_prefix
from .lease import VARIABLE, LeaseTerms

SITE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "inside", "site")

USE_BFC = "TF_CPU_ALLOCATOR_USE_BFC"
BFC_LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
GPU_ALLOCATOR = "TF_GPU_ALLOCATOR"
SMALLEST_GPU = "TF_MIN_GPU_MULTIPROCESSOR_COUNT"
DUMP = "TF_BFC_MEMORY_DUMP"
PATH = "PYTHONPATH"
LIBRARY_PATH = "LD_LIBRARY_PATH"
FENCE_FILE = "SUBLET_FENCE_FILE"
"""What the fence reads: the terms of the lease (`fence_file`)."""
LOGICAL = "SUBLET_LOGICAL_DEVICES"
"""Into how many logical devices TensorFlow divides each device of the lease (`sublet launch
--logical`)."""
LEFT = "SUBLET_LEFT"
"""A copy of the CPU pool's limit, set while it is below the ceiling because part of the lease is
lent. It shows that the limit is not the user's wish."""

_NOTHING = ("", "none", "void", "nodevfiles")
"""What users and schedulers write for no GPU at all; the last one is Slurm's."""
_CHOOSE = "`--device` or `gpu=` chooses another"


def leased_environment(
    lease: LeaseTerms, environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The environment for a program under `lease`, and a line for each setting that it replaces."""
    env = _without_outer_lease(lease, environ)
    notes: list[str] = []
    if lease.on_gpu:
        _lease_gpu(lease, env, notes)
    else:
        _lease_cpu(lease, env, notes)
    env.setdefault(DUMP, dump_prefix(lease.dir, 0))
    env[PATH] = _python_path(env.get(PATH, ""))
    env[VARIABLE] = lease.to_json()
    return env, notes


def logical_devices(environ: Mapping[str, str]) -> int:
    """Into how many logical devices each device is divided; 0 if it is not."""
    asked = environ.get(LOGICAL, "")
    return int(asked) if asked.isdecimal() and int(asked) > 1 else 0


def too_late(lease: LeaseTerms, environ: Mapping[str, str]) -> str | None:
    """A line for a program that has named other devices after TensorFlow started; else None."""
    asked = environ.get(VISIBLE)
    if asked is None or asked == (lease.uuids if lease.on_gpu else "-1"):
        return None
    if not lease.on_gpu and hides_gpus(environ):
        return None
    return (
        f"{VISIBLE}={asked} changes nothing: TensorFlow has started on {lease.devices}, the device "
        f"of this lease; {_CHOOSE}, before the start"
    )


def without_fence(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment less the fence of the lease that it names: that is not the user's setting."""
    env = dict(environ)
    if env.pop(FENCE_FILE, None) is None:
        return env
    try:
        fence = LeaseTerms.from_json(env.get(VARIABLE, "")).fence
    except ValueError:
        return env
    entries = env.get(LIBRARY_PATH, "").split(os.pathsep)
    if fence in entries:
        env[LIBRARY_PATH] = os.pathsep.join(entry for entry in entries if entry != fence)
        if not env[LIBRARY_PATH]:
            del env[LIBRARY_PATH]
    return env


def is_ours(prefix: str | None, lease: LeaseTerms) -> bool:
    """Whether the allocator leaves its dumps in the lease's directory, as the user has not named
    another place."""
    return prefix is not None and os.path.dirname(prefix) == lease.dir


def hides_gpus(environ: Mapping[str, str]) -> bool:
    """Whether the user wants no GPU to be seen, whatever the lease is on."""
    asked = environ.get(VISIBLE)
    if asked is None:
        return False
    first = asked.partition(",")[0].strip()
    return first.startswith("-1") or first.lower() in _NOTHING


def of_outer_lease(name: str, environ: Mapping[str, str]) -> bool:
    """Whether this variable is as the lease has set it under which the environment was made, and
    so is no wish of the user's."""
    try:
        outer = LeaseTerms.from_json(environ.get(VARIABLE, ""))
    except ValueError:
        return False
    return environ.get(name) == leased_environment(outer, {})[0].get(name)


def cpu_limit(environ: Mapping[str, str]) -> int | None:
    """The limit of the CPU pool in MiB; None if TensorFlow would not use that pool."""
    if environ.get(USE_BFC, "").lower() not in ("1", "true"):
        return None
    return _positive(environ.get(BFC_LIMIT))


def _lease_cpu(lease: LeaseTerms, env: dict[str, str], notes: list[str]) -> None:
    if env.get(USE_BFC, "1").lower() not in ("1", "true"):
        notes.append(f"{USE_BFC}={env[USE_BFC]} becomes 1: the lease is enforced by that allocator")
    env[USE_BFC] = "1"
    asked, limit = env.get(BFC_LIMIT), lease.ceiling_mib
    wanted = _positive(asked)
    if asked is not None and (wanted is None or wanted > limit):
        notes.append(f"{BFC_LIMIT}={asked} becomes {limit}: the ceiling of this lease")
    elif wanted is not None:
        limit = wanted
    env[BFC_LIMIT] = str(limit)
    if VISIBLE in env and not hides_gpus(env):
        notes.append(f"{VISIBLE}={env[VISIBLE]} becomes -1: this lease is on the CPU; {_CHOOSE}")
    env[VISIBLE] = "-1"


def _lease_gpu(lease: LeaseTerms, env: dict[str, str], notes: list[str]) -> None:
    asked = env.get(VISIBLE)
    if hides_gpus(env):
        notes.append(f"{VISIBLE}={asked} is kept: the lease on {lease.devices} stays unused")
    elif lease.uuids is not None:
        if asked is not None and asked != lease.uuids:
            more = "; `--gpus N` leases several" if "," in asked else ""
            notes.append(
                f"{VISIBLE}={asked} becomes {lease.uuids}: the device of this lease; "
                f"{_CHOOSE}{more}"
            )
        env[VISIBLE] = lease.uuids
    env[ORDER] = "PCI_BUS_ID"
    if lease.more:
        # TensorFlow leaves out a GPU that is much smaller than the largest.
        if env.get(SMALLEST_GPU, "1") != "1":
            notes.append(f"{SMALLEST_GPU}={env[SMALLEST_GPU]} becomes 1: the lease has these GPUs")
        env[SMALLEST_GPU] = "1"
    if env.get(GROWTH, "true") != "true":
        notes.append(f"{GROWTH}={env[GROWTH]} becomes true: memory is taken as it is needed")
    env[GROWTH] = "true"
    allocator = env.pop(GPU_ALLOCATOR, "")
    if allocator.lower() not in ("", "bfc"):
        notes.append(f"{GPU_ALLOCATOR}={allocator} is dropped: no lease can be enforced under it")
    if lease.fence:
        path = env.get(LIBRARY_PATH)
        env[LIBRARY_PATH] = lease.fence if path is None else f"{lease.fence}{os.pathsep}{path}"
        env[FENCE_FILE] = os.path.join(lease.dir, fence_file.NAME)


def _without_outer_lease(lease: LeaseTerms, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment less what an outer lease has imposed: that was not the user's wish."""
    env = without_fence(environ)
    if env.pop(LEFT, "") == env.get(BFC_LIMIT):
        del env[BFC_LIMIT]
    try:
        outer = LeaseTerms.from_json(env.pop(VARIABLE, ""))
    except ValueError:
        return env
    if outer == lease:
        return env
    for name, value in leased_environment(outer, {})[0].items():
        if name != PATH and env.get(name) == value:
            del env[name]
    if is_ours(env.get(DUMP), outer):
        del env[DUMP]
    return env


def _python_path(path: str) -> str:
    """The path with our site directory first. An empty entry would mean the current directory."""
    others = path.split(os.pathsep) if path else []
    return os.pathsep.join([SITE, *(entry for entry in others if entry != SITE)])


def _positive(text: str | None) -> int | None:
    try:
        number = int(text or "")
    except ValueError:
        return None
    return number if number > 0 else None
