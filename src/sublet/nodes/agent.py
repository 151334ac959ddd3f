"""The agent: a detached actor on a node, through which attempts come to that node's own broker.

One serves all homes. It keeps nothing that has to outlive it: its programs end with it, and Ray's
node, this process and its programs end in this order when the node is held for dead.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

import sublet
from sublet.client.api import status
from sublet.client.program import this_process
from sublet.errors import SubletError
from sublet.home import Home
from sublet.nodes import packages
from sublet.nodes.attempt import CHUNK, NodeAttempt, public_name
from sublet.nodes.limits import CLIENTLESS, IDLE

_LOOKS = 1.0
_OUTPUT = 0.03
"""Seconds between looks at what programs have written."""
_JUST_NOW = 1.0
_HOLDS_WITHIN = 5.0
_FORGOTTEN = 24 * 3600.0
_OF_THE_MACHINE = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "HOSTNAME", "PWD", "OLDPWD"),
    *("LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "DISPLAY", "CUDA_VISIBLE_DEVICES"),
)
"""Variables that say where things are on a machine: a program gets those of its node."""
_MACHINES = ("SUBLET_", "RAY_", "XDG_", "SSH_", "LC_TERMINAL")
_KEPT = ("SUBLET_ARRAY_",)
_RAYS = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED")
"""What Ray sets for its workers, and is no business of programs."""


class _Group:
    """Memory or GPUs that Ray counts as taken."""

    def __init__(self, group: PlacementGroup) -> None:
        self._group = group

    def release(self) -> None:
        remove_placement_group(self._group)


class _Nothing:
    def release(self) -> None:
        pass


class Agent:
    """The methods are called by bridges; each may be called again with the same mark."""

    def __init__(self, node: str) -> None:
        for name in _RAYS:
            os.environ.pop(name, None)
        self._node = node
        self._home = Home.find()
        self._home.make()
        self._place = self._home.path / "ray" / "output"
        self._attempts: dict[str, NodeAttempt] = {}
        self._devices: list[dict[str, Any]] = []
        self._fault = ""
        self._asked = time.monotonic()
        self._news = threading.Condition()
        self._sweep()
        self._look()
        threading.Thread(target=self._watch, daemon=True).start()

    def hello(self) -> dict[str, Any]:
        """Which Sublet this is, and what it runs for whom."""
        return {
            "version": sublet.__version__,
            "attempts": {mark: one.home for mark, one in list(self._attempts.items())},
        }

    def start(self, home: str, order: dict[str, Any], package: packages.Package) -> str:
        """Start an attempt; empty if it is started, or was before. `pack`: its files are needed
        first. Anything else says why it cannot be started here."""
        self._asked = time.monotonic()
        mark = order["mark"]
        with self._news:
            if mark in self._attempts:
                return ""
        spec = order["spec"]
        if not packages.is_here(package):
            there = packages.place(self._home.path, package)
            if not there.is_dir():
                return "pack"
            spec = packages.moved(spec, package, there)
        if order["port"] and not _is_free(order["port"]):
            return f"port {order['port']} is taken on its node"
        with self._news:
            if mark not in self._attempts:
                one = self._attempts[mark] = NodeAttempt(
                    mark,
                    home,
                    self._place,
                    self._here(spec),
                    order["foreground"],
                    lambda: self._hold(order),
                    self._ring,
                )
                one.start()
        self._ring()
        return ""

    def give(self, package: packages.Package, data: bytes) -> None:
        """The files that `start` has asked for."""
        packages.unpack(self._home.path, package, data)

    def poll(
        self, home: str, wants: dict[str, tuple[int, int, int]], within: float
    ) -> dict[str, Any]:
        """What is new: of each mark, after so much of its two streams and this sequence number; a
        negative offset wants no output now. Waits `within` seconds for something."""
        self._asked = now = time.monotonic()
        mine = {mark: self._attempts.get(mark) for mark in wants}
        for one in mine.values():
            if one is not None:
                one.heard = now
        deadline = now + within
        while True:
            found = {
                mark: update
                for mark, one in mine.items()
                if (update := _update(one, *wants[mark])) is not None
            }
            left = deadline - time.monotonic()
            if found or left <= 0 or self._has_new(home, wants):
                break
            with self._news:
                self._news.wait(min(left, _OUTPUT if wants else left))
        theirs = self._of(home)
        return {
            "attempts": found,
            "devices": self._devices,
            "fault": self._fault,
            "jobs": {one.job: one.mark for one in theirs},
            "marks": [one.mark for one in theirs],
        }

    def _of(self, home: str) -> list[NodeAttempt]:
        return [one for one in list(self._attempts.values()) if one.home == home]

    def _has_new(self, home: str, wants: dict[str, Any]) -> bool:
        """Whether an attempt was started after the bridge has said what it wants."""
        just_now = time.monotonic() - _JUST_NOW
        return any(one.made > just_now and one.mark not in wants for one in self._of(home))

    def signal(self, mark: str, number: int) -> None:
        """Send a signal to a program."""
        if (one := self._attempts.get(mark)) is not None:
            one.signal(number)

    def stop(self, mark: str) -> bool:
        """End a program; False if there is none."""
        one = self._attempts.get(mark)
        if one is None or one.end is not None:
            return False
        one.stop()
        return True

    def pause(self, mark: str, on: bool) -> None:
        """Stop a program where it is, or let it go on."""
        if (one := self._attempts.get(mark)) is not None:
            one.pause(on)

    def forget(self, mark: str) -> None:
        """Its end is known at home."""
        one = self._attempts.get(mark)
        if one is not None and one.end is not None:
            del self._attempts[mark]
            one.close()

    def _here(self, spec: dict[str, Any]) -> dict[str, Any]:
        """The spec as this node's broker gets it."""
        around, program = spec["surroundings"], spec["program"]
        theirs = {
            os.fsdecode(name): os.fsdecode(value) for name, value in around["environ"].items()
        }
        environ = {
            name: value
            for name, value in os.environ.items()
            if name not in _RAYS and not name.startswith("RAY_")
        }
        for name, value in theirs.items():
            if name.startswith(_KEPT) or not (
                name in _OF_THE_MACHINE or name.startswith(_MACHINES)
            ):
                environ[name] = value
        python = program.get("python") or b""
        if python and not os.access(python, os.X_OK):
            program = program | {"python": os.fsencode(sys.executable)}
        return spec | {
            "program": program,
            "client": this_process(),
            "surroundings": around
            | {
                "environ": {os.fsencode(k): os.fsencode(v) for k, v in environ.items()},
                "affinity": tuple(sorted(os.sched_getaffinity(0))),
                "ignored": (),
                "limits": {},
                "closed": (),
                "nice": os.getpriority(os.PRIO_PROCESS, 0),
            },
        }

    def _hold(self, order: dict[str, Any]) -> "_Group | _Nothing | str":
        """Have Ray give to nobody else what the attempt may use."""
        bundle = {"memory": float(order["charge"]), "GPU": order["gpus"]}
        bundle = {name: amount for name, amount in bundle.items() if amount}
        if not bundle:
            return _Nothing()
        group = placement_group(
            [bundle],
            name=f"sublet:{self._node}:{public_name(order['mark'])}",
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": self._node}],
        )
        if group.wait(_HOLDS_WITHIN):
            return _Group(group)
        remove_placement_group(group)
        return "Ray has given what is free on its node to its own tasks"

    def _sweep(self) -> None:
        """Remove what an agent before this one has left."""
        with contextlib.suppress(OSError):
            for path in self._place.iterdir():
                path.unlink()
        mine = f"sublet:{self._node}:"
        for one in placement_group_table().values():
            if one["name"].startswith(mine) and one["state"] != "REMOVED":
                with contextlib.suppress(ValueError):
                    remove_placement_group(ray.util.get_placement_group(one["name"]))

    def _watch(self) -> None:
        """Look at the node's devices, end what nobody asks for, and end when nobody asks at all."""
        while True:
            time.sleep(_LOOKS)
            now = time.monotonic()
            for one in list(self._attempts.values()):
                if one.end is None and one.foreground and now > one.heard + CLIENTLESS:
                    one.stop()
                if one.end is not None and now > max(one.heard, one.over) + _FORGOTTEN:
                    self.forget(one.mark)
            if not self._attempts and now > self._asked + IDLE:
                os._exit(0)
            self._look()

    def _look(self) -> None:
        """What the node's broker says of its devices."""
        try:
            snapshot = status()
        except (SubletError, OSError) as error:
            self._fault = str(error)
            return
        self._fault = ""
        self._devices = [
            {
                "device": row.device,
                "free": row.free,
                "standing": row.standing,
                "fault": row.fault,
                "charges": {
                    lease.job: _charge(lease, row.device.id)
                    for lease in snapshot.leases
                    if lease.within is None and _charge(lease, row.device.id)
                },
            }
            for row in snapshot.devices
            if not row.device.on
        ]

    def _ring(self) -> None:
        with self._news:
            self._news.notify_all()


def _charge(lease: Any, device: str) -> int:
    if lease.cards:
        return sum(card.charge for card in lease.cards if card.device == device)
    return int(lease.charge) if lease.device == device else 0


def _update(one: NodeAttempt | None, out: int, err: int, sequence: int) -> dict[str, Any] | None:
    """What is new of an attempt; None if nothing is."""
    if one is None:
        return {"unknown": True}
    update: dict[str, Any] = {}
    end, seen = one.end, one.sequence  # Before its output: nothing is written after its end.
    left = False
    for stream, offset in ((0, out), (1, err)):
        data = one.output(stream, offset) if offset >= 0 else b""
        left = left or offset < 0 or len(data) == CHUNK
        if data:
            update[("out", "err")[stream]] = data
    if end is not None and not left:
        return update | {"end": end, "sequence": seen}
    if seen != sequence:
        update |= {"sequence": seen, "job": one.job, "how": one.how}
    return update or None


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True
