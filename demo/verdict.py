"""What the demo has shown, in one sentence."""

from demo.race import Race
from sublet.units import format_bytes, format_seconds

SUBLET = "Sublet"


def holds(race: Race, most_charged: int, capacity: int) -> bool:
    """True if no program died and all of it stayed within the device."""
    return not race.deaths and race.most <= capacity and most_charged <= capacity


def sentence(ways: dict[str, Race], most_charged: int, capacity: int) -> str:
    """Each way in a few words, Sublet last."""
    by_hand = [_by_hand(name, race, capacity) for name, race in ways.items() if name != SUBLET]
    whole = "; ".join([*by_hand, _ours(ways[SUBLET], most_charged, capacity)])
    return whole[0].upper() + whole[1:]


def _by_hand(name: str, race: Race, capacity: int) -> str:
    count = len(race.finishes)
    if race.deaths:
        return f"{name} killed {len(race.deaths)} of {count} programs"
    if race.most > capacity:
        return f"{name} took {format_bytes(race.most)} of a {format_bytes(capacity)} device"
    return f"{name} finished all {count}"


def _ours(race: Race, most_charged: int, capacity: int) -> str:
    count, seconds = len(race.finishes), format_seconds(race.seconds)
    if race.deaths:
        return f"with Sublet {len(race.deaths)} of {count} programs died."
    most = max(race.most, most_charged)
    if most > capacity:
        return f"with Sublet all {count} finished, but took {format_bytes(most)}."
    return f"with Sublet all {count} finished within {format_bytes(race.most)}, in {seconds}."
