"""Who gets a lease now, and why the others wait.

First come, first served: a job that does not fit holds its devices for itself, so that it cannot
be passed over for ever. Over several devices, the one that is left with the least room is taken.
"""

from msgspec import Struct

from sublet.domain.device import Device
from sublet.domain.job import Tenant
from sublet.domain.memory import MemoryAsk
from sublet.policy.sizing import SMALLEST, Evidence, Size, size
from sublet.units import format_bytes


class Room(Struct, frozen=True):
    """A device and what is left of it."""

    device: Device
    free: int
    """May be negative: strangers can take what was free."""
    standing: int = 0
    strangers: int = 0
    tenants: tuple[Tenant, ...] = ()


class Candidate(Struct, frozen=True):
    """A job that waits."""

    job: int
    ask: MemoryAsk
    device: str | None
    overhead: dict[str, int]
    """What one more process costs beside its ceiling, by device."""
    evidence: dict[str, Evidence]
    """What is known of the program, by kind of device."""
    least: int = 0
    held: str = ""
    """Why the job cannot start, whatever is free; empty if it can."""


class Grant(Struct, frozen=True):
    """This job gets this much, there."""

    job: int
    device: str
    size: Size
    charge: int


class Plan(Struct, frozen=True):
    """What to do now, and why not more."""

    grants: tuple[Grant, ...]
    reasons: dict[int, str]


def plan(rooms: tuple[Room, ...], waiting: tuple[Candidate, ...]) -> Plan:
    """Decide for all that wait, in the order they came."""
    free = {room.device.id: room.free for room in rooms}
    by_id = {room.device.id: room for room in rooms}
    first_in_line: dict[str, int] = {}
    grants: list[Grant] = []
    reasons: dict[int, str] = {}
    for candidate in waiting:
        if candidate.held:
            reasons[candidate.job] = candidate.held
            continue
        names = eligible(candidate.device, rooms)
        opened = [name for name in names if name not in first_in_line]
        fitting = [grant for name in opened if (grant := _fit(candidate, by_id[name], free[name]))]
        if fitting:
            best = min(fitting, key=lambda grant: free[grant.device] - grant.charge)
            free[best.device] -= best.charge
            grants.append(best)
            continue
        ahead = [first_in_line[name] for name in names if name in first_in_line]
        reasons[candidate.job] = _reason(candidate, by_id, free, names, ahead)
        for name in names:
            first_in_line.setdefault(name, candidate.job)
    return Plan(tuple(grants), reasons)


def most_ever(room: Room, overhead: int) -> int:
    """The largest ceiling this device could give with no other program on it."""
    return room.device.capacity - room.standing - overhead


def eligible(device: str | None, rooms: tuple[Room, ...]) -> list[str]:
    """The devices a job may go to: those it names, else the GPUs, else the CPU."""
    if device is None:
        device = "gpu" if any(room.device.kind == "gpu" for room in rooms) else "cpu"
    return [
        room.device.id
        for room in rooms
        if device in (room.device.id, room.device.kind, room.device.uuid)
    ]


def _fit(candidate: Candidate, room: Room, free: int) -> Grant | None:
    name = room.device.id
    overhead = candidate.overhead[name]
    evidence = candidate.evidence.get(room.device.kind, Evidence())
    chosen = size(candidate.ask, room.device, free - overhead, evidence, candidate.least)
    if chosen is None:
        return None
    return Grant(candidate.job, name, chosen, chosen.ceiling + overhead)


def _reason(
    candidate: Candidate,
    rooms: dict[str, Room],
    free: dict[str, int],
    names: list[str],
    ahead: list[int],
) -> str:
    if not names:
        return f"there is no device {candidate.device!r} any more"
    # The device that comes closest is the one worth talking about.
    name = max(names, key=lambda name: free[name])
    room = rooms[name]
    overhead = candidate.overhead[name]
    evidence = candidate.evidence.get(room.device.kind, Evidence())
    wanted = size(candidate.ask, room.device, most_ever(room, overhead), evidence, candidate.least)
    ceiling = wanted.ceiling if wanted is not None else SMALLEST
    if str(candidate.ask) == "grow":
        ceiling = SMALLEST
    needs = f"needs {format_bytes(ceiling)} + {format_bytes(overhead)} for its process on {name}"
    has = f"{format_bytes(max(free[name], 0))} of {format_bytes(room.device.capacity)} free"
    if free[name] >= ceiling + overhead and ahead:
        return f"{needs}; {has}, but #{ahead[0]} is first in line"
    return f"{needs}; {has}{_held_by(room)}" + (f"; after #{ahead[0]}" if ahead else "")


def _held_by(room: Room) -> str:
    largest = sorted(room.tenants, key=lambda tenant: -tenant.bytes)[:3]
    named = [
        f"#{tenant.job} {tenant.name} {format_bytes(tenant.bytes)}"
        if tenant.job is not None
        else f"{tenant.name} {format_bytes(tenant.bytes)}"
        for tenant in largest
    ]
    if room.strangers:
        named.append(f"other programs {format_bytes(room.strangers)}")
    return f"; held by {', '.join(named)}" if named else ""
