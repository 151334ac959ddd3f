"""The checks, in the order in which they are made and shown."""

import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

from msgspec import Struct

from sublet.client.api import Report, status
from sublet.client.fence_build import find_or_build
from sublet.devices.nvml import Nvml, NvmlAbsent, open_nvml
from sublet.domain.device import Device, no_such_device
from sublet.home import Home
from sublet.inside.cuda_libraries import INSTALL
from sublet.inside.patches import NEWEST, OLDEST
from sublet.tools.selftest.runs import Failed, Run
from sublet.units import MiB, format_bytes, format_seconds
from sublet.wire.messages import Snapshot

CEILING, SMALL, FLOOR, MOST = 256, 128, 128, 512
"""MiB of the leases: for the ceiling, side by side, and from where to where one is raised."""
_HELD, _RAISED = 64, 320
"""MiB that programs take side by side, and under the lease that is raised."""
_SLACK = 32
"""MiB of a ceiling that TensorFlow itself may have."""
_LOADS = 240.0
"""Seconds for the first program: TensorFlow is loaded, from a cold disk perhaps."""

_MARKS = re.compile(r"^\{\{.*?\}\} ?| \[Op:\w+\].*")

State = Literal["pass", "fail", "not here"]


class Check(Struct, frozen=True):
    """One check: what was seen, and what to do about it."""

    name: str
    state: State
    seen: str
    advice: str = ""


def check_all(device: str | None, begins: Callable[[str], None]) -> Iterator[Check]:
    """Make all checks; memory is tried on `device`, else where the most is free. `begins` hears
    what comes next."""
    begins("the broker and the driver")
    snapshot = status()
    gpus = [row.device for row in snapshot.devices if row.device.kind == "gpu"]
    target = _roomiest(snapshot, device)
    yield _driver(snapshot, gpus)
    begins("TensorFlow: it is loaded once, which may take a while")
    found, check = _tensorflow(gpus)
    yield check
    if found is None:
        return
    if not gpus:
        yield Check("cards", "not here", "there is no GPU")
    elif found["cuda_build"] and not found["missing"]:
        begins("each card")
        yield _cards(gpus)
    else:
        # As in real life: a program that names no device runs on the CPU then.
        yield Check("cards", "fail", "TensorFlow cannot use them", f"`{INSTALL}`")
        target = _roomiest(snapshot, device or "cpu")
    yield from _memory(target, begins)
    begins("the fence, which is built for it")
    yield _fence(target)
    begins("two cards at once")
    yield _two_cards([gpu for gpu in gpus if gpu.card is None])


def _driver(snapshot: Snapshot, gpus: list[Device]) -> Check:
    faults = [f"{row.device.id}: {row.fault}" for row in snapshot.devices if row.fault]
    if faults or "left out" in snapshot.driver:
        text = "; ".join([snapshot.driver, *faults])
        return Check("driver", "fail", text, "`nvidia-smi` and the kernel log may say more")
    if not gpus:
        return Check("driver", "not here", snapshot.driver)
    named = ", ".join(f"{gpu.id} {gpu.name} {format_bytes(gpu.capacity)}" for gpu in gpus)
    return Check("driver", "pass", f"{snapshot.driver}: {named}")


def _tensorflow(gpus: list[Device]) -> tuple[dict[str, Any] | None, Check]:
    """Which TensorFlow it is; None if it does not even start."""
    try:
        with Run("look", memory=f"{SMALL}MiB", device="cpu", patience=_LOADS) as run:
            found = run.answer()
            run.finish()
    except Failed as failed:
        advice = "Install it where your programs run: `pip install 'sublet[tensorflow]'`"
        return None, Check("tensorflow", "fail", str(failed), advice)
    version = str(found["tensorflow"])
    seen = f"TensorFlow {version}"
    if found["cuda_build"]:
        seen += f", built with CUDA {found['cuda']} and cuDNN {found['cudnn']}"
    else:
        seen += ", built without CUDA"
    if gpus and found["missing"]:
        seen += f"; it cannot load {', '.join(found['missing'])}"
    if gpus and (found["missing"] or not found["cuda_build"]):
        return found, Check("tensorflow", "fail", seen, f"`{INSTALL}`")
    if not _numbers(OLDEST) <= _numbers(version) <= _numbers(NEWEST):
        seen += f"; Sublet is tested with {OLDEST} to {NEWEST}"
    return found, Check("tensorflow", "pass", seen)


def _cards(gpus: list[Device]) -> Check:
    """Each card that NVML names is the one that a program under a lease on it finds."""
    runs = [(gpu, Run("look", memory=f"{SMALL}MiB", device=gpu.uuid or gpu.id)) for gpu in gpus]
    wrong = []
    for gpu, run in runs:
        with run:
            try:
                seen = run.answer()["gpus"]
                run.finish()
                if seen != [gpu.name]:
                    wrong.append(f"{gpu.id} is {gpu.name}, and a program finds {seen}")
            except Failed as failed:
                wrong.append(f"{gpu.id}: {failed}")
    if wrong:
        return Check("cards", "fail", "; ".join(wrong), "Send the report: this must not be")
    count = f"all {len(gpus)} are" if len(gpus) > 1 else "it is"
    return Check("cards", "pass", f"{count} found by TensorFlow under the name that NVML has")


def _memory(device: Device, begins: Callable[[str], None]) -> Iterator[Check]:
    """What is promised about memory, on one device. Programs that wait for TensorFlow to give up,
    ten seconds, run at the same time as others."""
    begins(f"two leases side by side on {device.id}")
    where = device.uuid or device.id
    with (
        Run("hold", f"{_HELD}", memory=f"{SMALL}MiB", device=where) as one,
        Run("hold", f"{_HELD}", memory=f"{SMALL}MiB", device=where) as other,
    ):
        yield from _side_by_side(device, one, other)
    begins(f"a ceiling, and a lease that is raised, on {device.id}; about 15 s")
    with (
        Run("hold", f"{2 * CEILING}", memory=f"{CEILING}MiB", device=where) as full,
        Run("hold", f"{_RAISED}", memory=f"{FLOOR}MiB..{MOST}MiB", device=where) as raised,
    ):
        yield from _ceiling(device, full)
        yield _raise(raised)


def _side_by_side(device: Device, one: Run, other: Run) -> Iterator[Check]:
    try:
        answers = [run.answer() for run in (one, other)]
        held = [_held(device, answer["pid"]) for answer in answers]
        reports = [run.finish() for run in (one, other)]
    except Failed as failed:
        advice = "`sublet status` shows who holds the device"
        yield Check("side by side", "fail", str(failed), advice)
        return
    wrong = [report for report in reports if report.code]
    if wrong or any(answer["mib"] < _HELD for answer in answers):
        seen = f"they got {', '.join(str(answer['mib']) for answer in answers)} of {_HELD} MiB each"
        yield Check("side by side", "fail", seen, "Send the report: this must not be")
    else:
        where = answers[0]["on"]
        seen = f"two programs held {_HELD} MiB each at the same time, on {where}"
        yield Check("side by side", "pass", seen)
    yield _warm(device, reports)
    if device.kind == "gpu":
        yield _growth(reports[0], held)
    else:
        yield Check("growth", "not here", "of GPUs: without it TensorFlow takes all at once")


def _warm(device: Device, reports: list[Report]) -> Check:
    cold = [report.how for report in reports if report.how != "warm"]
    if cold:
        return Check("warm start", "fail", cold[0], "`sublet status` says what the nursery lacks")
    took = min(report.startup or 0.0 for report in reports)
    seen = f"forked from a process with TensorFlow in {format_seconds(took)}"
    return Check("warm start", "pass", seen + (", CUDA in the child" * (device.kind == "gpu")))


def _growth(report: Report, held: list[int | None]) -> Check:
    if held[0] is None:
        return Check("growth", "not here", "the driver does not say what a process holds")
    beside = (report.charge or 0) - (report.lease or 0)
    seen = f"with {_HELD} MiB in use of {SMALL}, a process holds {format_bytes(held[0])}"
    if held[0] > (2 * _HELD) * MiB + beside:
        return Check("growth", "fail", seen, "Send the report: memory is taken ahead of its need")
    return Check("growth", "pass", seen)


def _ceiling(device: Device, run: Run) -> Iterator[Check]:
    """A lease gives what it says and no more, and running out of it is explained."""
    try:
        answer = run.answer()
        held = _held(device, answer["pid"])
        report = run.finish()
    except Failed as failed:
        yield Check("ceiling", "fail", str(failed), "Send the report")
        return
    got = int(answer["mib"])
    seen = f"a lease of {CEILING} MiB gave {got} MiB, and "
    seen += "refused more" if answer["refused"] else "did not refuse more"
    exact = answer["refused"] and CEILING - _SLACK <= got <= CEILING
    advice = "" if exact else "Send the report: the ceiling is not held"
    yield Check("ceiling", "pass" if exact else "fail", seen, advice)
    text = _MARKS.sub("", str(answer["refused"] or "no error").partition("\n")[0])
    told = report.cause == "lease exceeded"
    seen = f"{'explained' if told else 'not recognised'}: {text}"
    advice = "" if told else "Send the report: this text is new to Sublet"
    yield Check("out of memory", "pass" if told else "fail", seen, advice)
    yield _cost(device, report, held)


def _cost(device: Device, report: Report, held: int | None) -> Check:
    """What a process costs beside its pool, which is full now."""
    charged = (report.charge or 0) - (report.lease or 0)
    whole = report.system_peak if device.kind == "cpu" else held
    if whole is None:
        return Check("cost", "not here", "nobody says what a process holds (container, WSL)")
    cost = max(0, whole - CEILING * MiB)
    seen = f"a process costs {format_bytes(cost)} beside its pool; charged {format_bytes(charged)}"
    if cost > charged:
        return Check("cost", "fail", seen, "Send the report: leases are charged too little here")
    return Check("cost", "pass", seen)


def _raise(run: Run) -> Check:
    try:
        answer = run.answer()
        report = run.finish()
    except Failed as failed:
        return Check("raise", "fail", str(failed), "Send the report")
    if report.code == 0 and (report.lease or 0) > FLOOR * MiB:
        seen = f"a lease of {FLOOR} MiB became {format_bytes(report.lease or 0)} while it was used"
        return Check("raise", "pass", seen)
    seen = f"a lease of {FLOOR} to {MOST} MiB gave {answer['mib']} MiB"
    return Check("raise", "fail", seen, "Leases stay at their floors here: say `--memory SIZE`")


def _fence(device: Device) -> Check:
    """With `--fence`, what a program takes of the driver beside TensorFlow is held to the lease."""
    if device.kind != "gpu":
        return Check("fence", "not here", "of GPUs")
    built = find_or_build(Home.find())
    if not built.startswith("/"):
        return Check("fence", "not here", built)
    where = device.uuid or device.id
    try:
        with Run("driver", "32", memory=f"{SMALL}MiB", device=where, fence=True) as run:
            answer = run.answer()
            report = run.finish()
    except Failed as failed:
        return Check("fence", "fail", str(failed), "Send the report; do without `--fence`")
    shown = int(answer["total"])
    seen = f"under a lease of {SMALL} MiB the driver shows {format_bytes(shown)}, and "
    seen += "gives more" if answer["more"] else "gives no more than was charged"
    if shown == report.lease and answer["some"] and not answer["more"]:
        return Check("fence", "pass", seen)
    return Check("fence", "fail", seen, "Send the report; do without `--fence`")


def _two_cards(gpus: list[Device]) -> Check:
    if len(gpus) < 2:
        return Check("two cards", "not here", "fewer than two whole GPUs")
    try:
        with Run("look", memory=f"{SMALL}MiB", gpus=2) as run:
            found = run.answer()["gpus"]
            run.finish()
    except Failed as failed:
        return Check("two cards", "fail", str(failed), "Send the report")
    state: State = "pass" if len(found) == 2 else "fail"
    return Check("two cards", state, f"a program with two leases finds {', '.join(found)}")


def _roomiest(snapshot: Snapshot, device: str | None) -> Device:
    """Of the devices that this name means, the one with the most room; a GPU, if there is one."""
    meant = [row for row in snapshot.devices if device is None or row.device.goes_by(device)]
    if not meant:
        assert device is not None
        raise no_such_device(device, [row.device for row in snapshot.devices])
    sound = [row for row in meant if not row.fault] or meant
    gpus = [row for row in sound if row.device.kind == "gpu"]
    return max(gpus or sound, key=lambda row: row.free).device


def _held(device: Device, pid: int) -> int | None:
    """What the driver says that a process holds; None where it does not."""
    nvml: Nvml | NvmlAbsent = open_nvml() if device.kind == "gpu" else NvmlAbsent("the CPU")
    if isinstance(nvml, NvmlAbsent):
        return None
    try:
        holders = nvml.facts(device).holders
    finally:
        nvml.close()
    return next((holder.bytes for holder in holders if holder.pid == pid), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
