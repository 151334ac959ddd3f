"""What a job would be given on each device it may go to, whoever is there now."""

from collections.abc import Mapping

from sublet.domain.memory import MemoryAsk
from sublet.policy.capacity import Capacity, eligible, most_ever
from sublet.policy.sizing import Evidence, Size, size
from sublet.policy.wait_queue import Offer
from sublet.units import format_bytes

_NOTHING_KNOWN = Evidence()


def offers(
    ask: MemoryAsk,
    device: str | None,
    capacities: tuple[Capacity, ...],
    overhead: Mapping[str, int],
    evidence: Mapping[str, Evidence],
    least: int = 0,
    within: int | None = None,
    gpus: int | None = None,
    nursery: int | None = None,
) -> tuple[Offer, ...]:
    """One offer for each size; none where the empty device could not give it, and none at all
    where fewer devices could than the job wants `gpus`.

    `overhead` is what one more process costs, by device; `evidence` what is known of the program,
    by kind of device; `nursery` is the one from which the job comes. Who else is on the devices
    does not matter, so an offer holds until the evidence or the nurseries change.
    """
    names = set(eligible(device, capacities, within, gpus))
    several = gpus is not None and gpus > 1
    found: dict[tuple[Size, int], list[str]] = {}
    for capacity in capacities:
        name = capacity.device.id
        if name not in names:
            continue
        ever = most_ever(capacity, overhead[name], nursery)
        known = evidence.get(capacity.device.kind, _NOTHING_KNOWN)
        beside = overhead[name]
        chosen = size(ask, capacity.device, ever, ever, known, least, several, beside)
        if chosen is not None:
            found.setdefault((chosen, beside), []).append(name)
    if sum(map(len, found.values())) < (gpus or 1):
        return ()
    return tuple(
        Offer(
            devices=tuple(sorted(where)),
            ceiling=chosen.ceiling,
            charge=chosen.ceiling + beside,
            basis=chosen.basis,
            roomy=chosen.roomy,
            most=chosen.most,
        )
        for (chosen, beside), where in sorted(found.items(), key=_by_size)
    )


def _by_size(item: tuple[tuple[Size, int], list[str]]) -> tuple[int, int, str]:
    (chosen, beside), where = item
    return chosen.ceiling, beside, min(where)


def never(
    ask: MemoryAsk,
    device: str | None,
    capacities: tuple[Capacity, ...],
    overhead: Mapping[str, int],
    least: int = 0,
    within: int | None = None,
    gpus: int | None = None,
    nursery: int | None = None,
) -> str:
    """Why `offers` has found none, in words."""
    names = eligible(device, capacities, within, gpus)
    if not names and within is not None:
        return f"the lease of #{within}, out of which it was to come, has ended"
    if not names:
        return f"there is no device {device!r} any more"
    most = {
        capacity.device.id: max(0, most_ever(capacity, overhead[capacity.device.id], nursery))
        for capacity in capacities
        if capacity.device.id in names
    }
    wanted = f"at least {format_bytes(least)}" if least else f"{ask}"
    if gpus is not None and gpus > 1:
        each = ", ".join(f"{name} {format_bytes(amount)}" for name, amount in most.items())
        return f"asks for {gpus} GPUs with {wanted} each; one program can be given now: {each}"
    name = max(most, key=lambda name: (most[name], name))
    return f"asks for {wanted} on {name}, which can give one program {format_bytes(most[name])} now"
