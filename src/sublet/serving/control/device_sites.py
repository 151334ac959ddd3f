"""Where a server may have engines: one site for each device it uses.

Reads `--device`, and finds what it means on this machine. Decides nothing about models.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from sublet.domain.device import Device, no_such_device
from sublet.wire.rows import DeviceRow


class DeviceSite(Struct, frozen=True):
    """A device, or one of several places on it where the server has engines of its own."""

    name: str
    """For people: the device's, with a number if there are several sites on it."""
    asked: str | None
    """What the broker is asked for."""
    device: Device | None = None
    """None where the broker alone knows: within a lease."""

    def goes_by(self, name: str) -> bool:
        """Whether a model's `device` means this one. A number is the index of a GPU."""
        whole = f"gpu{name}" if name[:1].isdecimal() else name
        return whole == self.name or (self.device is not None and self.device.goes_by(whole))


def find(asked: str | None, devices: Sequence[DeviceRow], nested: bool) -> tuple[DeviceSite, ...]:
    """The sites that `--device` names: each word is a site, and one that means several devices
    (`gpu`) is a site on each. Without it, there is one on each GPU, or else on the CPU.

    Who is `nested` in a lease gets all engines out of that.
    """
    words = [None] if asked is None else [word.strip() for word in asked.split(",")]
    if nested:
        return tuple(DeviceSite(f"lease#{n}", word) for n, word in enumerate(words, 1))
    found = [device for word in words for device in _meant(word, [row.device for row in devices])]
    if len(found) == 1:
        return (DeviceSite(found[0].id, asked, found[0]),)
    several = Counter(device.id for device in found)
    counted: Counter[str] = Counter()
    sites = []
    for device in found:
        counted[device.id] += 1
        number = f"#{counted[device.id]}" if several[device.id] > 1 else ""
        # By its UUID: an index may mean another card when one is gone.
        sites.append(DeviceSite(device.id + number, device.uuid or device.id, device))
    return tuple(sites)


def _meant(word: str | None, devices: Sequence[Device]) -> list[Device]:
    if word is None:
        word = "gpu" if any(device.kind == "gpu" for device in devices) else "cpu"
    found = [device for device in devices if device.goes_by(word)]
    if not found:
        raise no_such_device(word, devices)
    return found
