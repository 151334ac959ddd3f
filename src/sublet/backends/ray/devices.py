"""The devices of this machine and of the nodes of Ray clusters that this home uses."""

import time
from collections.abc import Mapping

from sublet.backends.ray.cluster import Cluster, ClusterState, clusters
from sublet.devices import Probe
from sublet.domain.device import Device, DeviceFacts
from sublet.home import Home

_LOOKS = 0.5
"""Seconds between two looks at what bridges have written."""
_AWAY = "its node is away"
_FORGOTTEN = 600.0
"""Seconds after which a node that is away is not shown any more."""


class ProbeWithNodes(Probe):
    """A probe that also knows what bridges have written of their clusters. Costs nothing where
    there are none."""

    def __init__(self, probe: Probe, home: Home) -> None:
        self._probe = probe
        self._home = home
        self._looked = -_LOOKS
        self._clusters: list[tuple[Cluster, ClusterState]] = []
        self._nodes: dict[str, DeviceFacts] = {}
        self._seen: dict[str, float] = {}
        self._look()

    @property
    def left_out(self) -> Mapping[str, str]:  # type: ignore[override]
        """The GPUs of this machine that cannot be used, and why."""
        return self._probe.left_out

    @property
    def driver(self) -> str:
        """The driver of this machine and its cards in one line."""
        return self._probe.driver

    def devices(self) -> list[Device]:
        """Those of this machine, then those of nodes: all that leases may be on."""
        return [*self._probe.devices(), *(fact.device for fact in self._nodes.values())]

    def facts(self) -> dict[str, DeviceFacts]:
        """Of every device, by id, as it is now."""
        if time.monotonic() >= self._looked + _LOOKS:
            self._look()
        return self._probe.facts() | self._nodes

    def close(self) -> None:
        self._probe.close()

    def _look(self) -> None:
        self._looked = now = time.monotonic()
        found: dict[str, DeviceFacts] = {}
        for cluster in clusters(self._home):
            state = cluster.read()
            if state is None:
                continue
            fault = cluster.fault()
            for one in state.devices:
                device, trouble = one.device, fault or one.fault
                free = max(0, device.capacity - one.others)
                found[device.id] = (
                    DeviceFacts.unknown(device, trouble)
                    if trouble
                    else DeviceFacts(device, used=one.others, available=free)
                )
                if not trouble or device.id not in self._seen:
                    self._seen[device.id] = now
        for name, fact in self._nodes.items():
            if name not in found:
                found[name] = DeviceFacts.unknown(fact.device, _AWAY)
        self._nodes = {
            name: fact for name, fact in found.items() if now < self._seen[name] + _FORGOTTEN
        }
