"""Who gets a lease now, and why the others wait.

First come, first served: a job that does not fit holds its devices for itself, so that it cannot
be passed over for ever. Over several devices, the one that is left with the least room is taken.
"""

from msgspec import Struct

from sublet.domain.device import Device
from sublet.domain.job import Tenant
from sublet.domain.memory import Grow, MemoryAsk
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
            best = _best(candidate, fitting, free)
            free[best.device] -= best.charge
            grants.append(best)
            continue
        possible = [name for name in names if _need(candidate, by_id[name]) is not None]
        if not possible:
            # It would hold up all others for nothing.
            reasons[candidate.job] = _never(candidate, by_id, names)
            continue
        reasons[candidate.job] = _reason(candidate, by_id, free, possible, first_in_line)
        for name in possible:
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
    chosen = size(
        candidate.ask,
        room.device,
        free - overhead,
        most_ever(room, overhead),
        evidence,
        candidate.least,
    )
    if chosen is None:
        return None
    return Grant(candidate.job, name, chosen, chosen.ceiling + overhead)


def _best(candidate: Candidate, fitting: list[Grant], free: dict[str, int]) -> Grant:
    """The tightest fit; for who takes all there is, the most."""
    if isinstance(candidate.ask, Grow):
        return max(fitting, key=lambda grant: grant.size.ceiling)
    return min(fitting, key=lambda grant: free[grant.device] - grant.charge)


def _need(candidate: Candidate, room: Room) -> int | None:
    """The ceiling it would get on the empty device; None if even that could not give it."""
    if isinstance(candidate.ask, Grow):
        least = max(SMALLEST, candidate.least)
        return least if least <= most_ever(room, candidate.overhead[room.device.id]) else None
    empty = room.device.capacity - room.standing
    grant = _fit(candidate, room, empty)
    return None if grant is None else grant.size.ceiling


def _never(candidate: Candidate, rooms: dict[str, Room], names: list[str]) -> str:
    if not names:
        return f"there is no device {candidate.device!r} any more"
    name = max(names, key=lambda name: most_ever(rooms[name], candidate.overhead[name]))
    most = max(0, most_ever(rooms[name], candidate.overhead[name]))
    wanted = f"{candidate.ask}"
    if candidate.least:
        wanted = f"at least {format_bytes(candidate.least)}"
    return f"asks for {wanted} on {name}, which can give one program {format_bytes(most)} now"


def _reason(
    candidate: Candidate,
    rooms: dict[str, Room],
    free: dict[str, int],
    names: list[str],
    first_in_line: dict[str, int],
) -> str:
    # The device that comes closest is the one worth talking about.
    name = max(names, key=lambda name: free[name])
    room = rooms[name]
    overhead = candidate.overhead[name]
    ceiling = _need(candidate, room) or SMALLEST
    ahead = first_in_line.get(name)
    needs = f"needs {format_bytes(ceiling)} + {format_bytes(overhead)} for its process on {name}"
    has = f"{format_bytes(max(free[name], 0))} of {format_bytes(room.device.capacity)} free"
    if free[name] >= ceiling + overhead and ahead is not None:
        return f"{needs}; {has}, but #{ahead} is first in line"
    return f"{needs}; {has}{_held_by(room)}" + (f"; after #{ahead}" if ahead is not None else "")


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
