"""A Ray cluster as commands and the broker see it: what its bridge has written, and the bridge.

The bridge (`sublet.nodes.bridge`) is the one process of this home that is connected to the cluster.
Whoever needs it starts it; it ends some time after nobody has.
"""

import contextlib
import fcntl
import hashlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from sublet.domain.device import Device
from sublet.errors import BadRequest, WorldError
from sublet.home import Home
from sublet.wire.frames import at

AUTO = "auto"
"""The cluster of this machine, in Ray's words."""
_CONNECTS_WITHIN = 60.0
_STARTS_WITHIN = 10.0
_FRESH = 15.0
"""Seconds after which what a bridge has written counts for nothing."""


class NodeDevice(Struct, frozen=True):
    """A device of a node, and what others than this home's jobs hold of it."""

    device: Device
    others: int
    fault: str | None = None


class ClusterState(Struct, frozen=True):
    """What the bridge knows; with a `fault`, it is not connected."""

    address: str
    devices: tuple[NodeDevice, ...] = ()
    fault: str = ""
    hint: str = ""
    faults: dict[str, str] = {}
    """What is wrong with nodes."""
    ready: bool = False
    """Whether each node was asked, or is taking too long."""


class Cluster:
    """One cluster, and the directory in the home that belongs to it."""

    def __init__(self, home: Home, address: str) -> None:
        self.home = home
        self.address = address
        digest = hashlib.blake2b(address.encode(), digest_size=8).hexdigest()
        self.path = home.path / "ray" / digest
        self.socket = str(self.path / "bridge.sock")

    @property
    def _state(self) -> Path:
        return self.path / "state.json"

    @property
    def _wanted(self) -> Path:
        return self.path / "wanted"

    @property
    def log(self) -> Path:
        """What the bridge and Ray say."""
        return self.path / "bridge.log"

    def read(self) -> ClusterState | None:
        """What the bridge has written last; None before it has."""
        try:
            return msgspec.json.decode(self._state.read_bytes(), type=ClusterState)
        except (OSError, msgspec.MsgspecError):
            return None

    def write(self, state: ClusterState) -> None:
        """Replace what is known; for the bridge."""
        new = self._state.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(state))
        new.replace(self._state)

    def age(self) -> float:
        """Seconds since the bridge has written."""
        try:
            return time.time() - self._state.stat().st_mtime
        except OSError:
            return float("inf")

    def fault(self) -> str:
        """Why no program can be started there now; empty if one can."""
        state = self.read()
        if state is None or (not state.fault and self.age() > _FRESH):
            return f"connects to the Ray cluster {self.address}"
        return state.fault

    def want(self) -> None:
        """Have the bridge stay a while."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._wanted.touch(mode=0o600)

    def unwant(self) -> None:
        """Let the bridge end, once no attempt needs it."""
        self._wanted.unlink(missing_ok=True)

    def wanted(self) -> float:
        """Seconds since somebody last wanted the bridge."""
        try:
            return time.time() - self._wanted.stat().st_mtime
        except OSError:
            return float("inf")

    @contextlib.contextmanager
    def held(self, within: float = 0.0) -> Iterator[bool]:
        """Hold the cluster's lock, as its bridge does; yields False if there is one already."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + within
        try:
            while not _lock(descriptor):
                if time.monotonic() >= until:
                    yield False
                    return
                time.sleep(0.01)
            yield True
        finally:
            os.close(descriptor)

    def bridged(self) -> bool:
        """Whether a bridge runs."""
        with self.held() as free:
            return not free

    def start(self) -> None:
        """Start the bridge, as nobody's child; one that is too many ends at once."""
        import subprocess

        self.want()
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        environ = {**os.environ, "SUBLET_HOME": str(self.home.path)}
        for name in ("SUBLET_LEASE", "RAY_ADDRESS"):
            environ.pop(name, None)
        words = [sys.executable, "-m", "sublet.nodes.bridge", self.address]
        try:
            with subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _MIDDLE, *words],
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=environ,
            ):
                pass
        finally:
            os.close(descriptor)

    def ensure(self) -> ClusterState:
        """Have a bridge that is connected; raises what is wrong if there cannot be one."""
        import importlib.util

        self.want()
        began, started = time.time(), 0.0
        while (now := time.time()) < began + _CONNECTS_WITHIN:
            bridged, state = self.bridged(), self.read()
            if state is not None and self.age() < (_FRESH if bridged else now - began):
                if bridged and state.ready:
                    if state.devices:
                        return state
                    what = "; ".join(f"{name}: {fault}" for name, fault in state.faults.items())
                    raise WorldError(
                        f"No node of the Ray cluster {self.address} can run programs.",
                        what or f"See {self.log}.",
                    )
                if not bridged and state.fault:
                    raise WorldError(_sentence(state.fault), state.hint)
            if not bridged and now > started + _STARTS_WITHIN:
                if importlib.util.find_spec("ray") is None:
                    raise BadRequest(
                        "--on ray needs the package ray, which is not installed.",
                        "Install it: pip install 'sublet[ray]'.",
                    )
                self.start()
                started = now
            time.sleep(0.05)
        raise WorldError(
            f"There is no connection to the Ray cluster {self.address} after "
            f"{_CONNECTS_WITHIN:.0f} s.",
            f"See {self.log}.",
        )

    def connect(self) -> socket.socket | None:
        """A connection to the bridge; None if there is none."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            at(self.socket, sock.connect)
        except OSError:
            sock.close()
            return None
        return sock


def clusters(home: Home) -> list[Cluster]:
    """Those of which this home knows something."""
    found = []
    try:
        names = sorted(os.listdir(home.path / "ray"))
    except OSError:
        return []
    for name in names:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            text = (home.path / "ray" / name / "state.json").read_bytes()
            found.append(Cluster(home, msgspec.json.decode(text, type=ClusterState).address))
    return found


def read_address(on: str) -> str:
    """What `--on` names, as Ray takes it: `ray` is the cluster of RAY_ADDRESS, or this machine's;
    `ray://host:port` and `host:port` are themselves."""
    if on == "ray":
        return os.environ.get("RAY_ADDRESS", "").strip() or AUTO
    host, _, port = on.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or "/" in host or not on.isprintable():
        raise BadRequest(
            f"--on {on}: there is no such cluster.",
            "Write ray, ray://HOST:10001, or HOST:6379, the address of a Ray cluster.",
        )
    return on


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_MIDDLE = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
os.chdir("/")
os.umask(0o077)
os.execv(sys.argv[1], sys.argv[1:])
"""
