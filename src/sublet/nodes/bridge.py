"""The bridge: the one process of a home that is connected to a Ray cluster.

    relays ──unix socket──▶ bridge ──actor calls──▶ an agent on each node

It makes the agents, asks each for its news again and again, and writes down what devices the nodes
have. It remembers nothing: killed, it is started again by the next relay, which says what it wants,
and agents know what runs.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

import sublet
from sublet.backends.ray.cluster import Cluster, ClusterState, NodeDevice
from sublet.backends.ray.orders import Order
from sublet.domain.device import Device
from sublet.domain.job import Outcome
from sublet.home import Home
from sublet.nodes.limits import FENCE, IDLE
from sublet.wire.frames import at

_LENGTH = 4
_LARGEST = 1 << 30
_TICK = 1.0
_POLLS = 0.2
"""Seconds for which an agent waits for news before it answers: news of an attempt that is started
meanwhile waits for that."""
_POLLS_IDLE = 0.5
_CALLS_WITHIN = 60.0
_MOST_UNSENT = 1 << 20
_REACHED_WITHIN = 5.0
_CLAIMED_WITHIN = 20.0
_LOCKS_WITHIN = 1.0
"""Who looks whether there is a bridge holds the lock for a moment."""
NAMESPACE = "sublet"
_STARTS = "its agent starts"
_STARTS_WITHIN = 30.0


@dataclass(eq=False)
class Attempt:
    """What one relay wants."""

    order: Order
    package: dict[str, Any]
    written: list[int]
    """How much of the two streams the relay has."""
    writer: asyncio.StreamWriter
    sequence: int = 0
    started: bool = False
    """Whether its node's agent has it, or had."""
    asked: Any = None
    """The agent that was asked to start it."""
    over: bool = False
    files: asyncio.Event = field(default_factory=asyncio.Event)
    data: bytes = b""
    refused: str = ""

    def send(self, **message: Any) -> None:
        """Say something to the relay."""
        data = msgspec.msgpack.encode(message)
        if not self.writer.is_closing():
            self.writer.write(len(data).to_bytes(_LENGTH, "big") + data)

    def finish(self, **message: Any) -> None:
        """Say how it ended."""
        self.over = True
        self.send(**message)


class Node:
    """A node of the cluster, and its agent."""

    def __init__(self, bridge: "Bridge", id: str, name: str, address: str) -> None:
        self.bridge = bridge
        self.id = id
        self.name = name
        self.address = address
        self.alive = True
        self.agent: Any = None
        self.fault = _STARTS
        self.devices: tuple[NodeDevice, ...] = ()
        self.marks: set[str] = set()
        """What its agent runs for this home."""
        self.heard = time.monotonic()
        self.gone: float | None = None
        """When it was found to be dead."""

    async def run(self) -> None:
        """Have an agent there, and hear from it, as long as the node lives."""
        while self.alive:
            try:
                if self.agent is None:
                    await self._start_agent()
                await self._poll()
                await self._end_unclaimed()
            except self.bridge.dead as error:
                # Its programs end with it, within their grace.
                self._lose_agent(str(error))
                await asyncio.sleep(_TICK)
            except Exception as error:  # A network that was cut may come back.
                self.fault = _first_line(error)
                await asyncio.sleep(_TICK)

    async def call(self, method: str, *args: Any) -> Any:
        """Ask the agent."""
        assert self.agent is not None
        return await self.bridge.resolve(getattr(self.agent, method).remote(*args))

    async def _start_agent(self) -> None:
        agent = await asyncio.to_thread(self.bridge.make_agent, self.id)
        said = await self.bridge.resolve(agent.hello.remote())
        if said["version"] != sublet.__version__:
            self.fault = f"it has sublet {said['version']}, and here it is {sublet.__version__}"
            raise RuntimeError(self.fault)
        self.agent, self.fault = agent, ""
        self.marks = {mark for mark, home in said["attempts"].items() if home == self.bridge.home}

    def _lose_agent(self, why: str) -> None:
        self.agent = None
        self.fault = f"its agent has ended: {why.splitlines()[0] if why else ''}"
        for one in self.bridge.of(self):
            if one.started:
                self.bridge.lose(one, f"the agent of the node {self.name} has ended")

    async def _poll(self) -> None:
        wanted = [one for one in self.bridge.of(self) if one.started]
        wants = {one.order.mark: (*_offsets(one), one.sequence) for one in wanted}
        within = _POLLS if wants else _POLLS_IDLE
        said = await self.call("poll", self.bridge.home, wants, within)
        self.heard, self.fault = time.monotonic(), said["fault"]
        self.devices = tuple(self._device(one, said["jobs"]) for one in said["devices"])
        self.marks = set(said["marks"])
        for one in wanted:
            update = said["attempts"].get(one.order.mark)
            if update is not None and not one.over:
                self._tell(one, update)

    async def _end_unclaimed(self) -> None:
        """End what runs for this home and has no relay any more. The relays of those that do have
        turned to this bridge by then."""
        if time.monotonic() > self.bridge.since + _CLAIMED_WITHIN:
            for mark in self.marks - self.bridge.attempts.keys():
                if not await self.call("stop", mark):
                    await self.call("forget", mark)

    def _tell(self, one: Attempt, update: dict[str, Any]) -> None:
        if update.get("unknown"):
            self.bridge.lose(one, f"the agent of the node {self.name} was started anew")
            return
        one.sequence = update.get("sequence", one.sequence)
        for number, stream in enumerate(("out", "err")):
            if data := update.get(stream):
                one.written[number] += len(data)
                one.send(type="output", stream=number + 1, data=data)
        if (end := update.get("end")) is not None:
            one.finish(type="ended", **end)

    def _device(self, row: dict[str, Any], jobs: dict[int, str]) -> NodeDevice:
        """A device as the broker at home sees it. What a nursery holds is free there if nothing
        runs: it ends when a job needs that."""
        there: Device = row["device"]
        ours = sum(charge for job, charge in row["charges"].items() if job in jobs)
        device = replace(
            there,
            id=f"{self.name}/{there.id}",
            on=self.bridge.cluster.address,
            node=self.name,
            address=self.address,
        )
        free = row["free"] + (0 if row["charges"] else row["standing"])
        return NodeDevice(device, max(0, there.capacity - free - ours), row["fault"])


class Bridge:
    """Relays on one side, nodes on the other, in one thread."""

    def __init__(self, cluster: Cluster) -> None:
        import ray
        from ray.exceptions import ActorDiedError

        self.ray = ray
        self.dead: tuple[type[BaseException], ...] = (ActorDiedError,)
        self.cluster = cluster
        self.home = _own_id(cluster)
        self.nodes: dict[str, Node] = {}
        self.attempts: dict[str, Attempt] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.since = time.monotonic()
        self._ready = False

    async def serve(self) -> None:
        """Until nobody has needed it for a while."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.cluster.socket)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        at(self.cluster.socket, sock.bind)
        await asyncio.start_unix_server(self._relay, sock=sock, limit=_LARGEST)
        while self.attempts or self.cluster.wanted() < IDLE:
            await self._look()
            state = self._state()
            self._ready = self._ready or state.ready
            self.cluster.write(state)
            await asyncio.sleep(_TICK if self._ready else 0.1)

    def of(self, node: Node) -> list[Attempt]:
        """The attempts on this node."""
        return [
            one for one in self.attempts.values() if one.order.node == node.name and not one.over
        ]

    def make_agent(self, node: str) -> Any:
        """The agent of a node; there is one for all homes. May take seconds."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from sublet.nodes.agent import Agent

        return (
            self.ray.remote(Agent)
            .options(
                name=f"sublet-agent:{sublet.__version__}:{node}",
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_concurrency=100,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(node)
        )

    async def resolve(self, ref: Any) -> Any:
        """What a call to an agent returns."""
        return await asyncio.wait_for(asyncio.wrap_future(ref.future()), _CALLS_WITHIN)

    def lose(self, one: Attempt, why: str) -> None:
        """Its program is, or soon will be, at an end that nobody sees: say so once that is sure."""
        one.over = True
        self._spawn(self._lose(one, why))

    async def _lose(self, one: Attempt, why: str) -> None:
        await asyncio.sleep(FENCE)
        one.finish(type="lost", why=why)

    async def _look(self) -> None:
        """Which nodes are there."""
        rows = await asyncio.wait_for(asyncio.to_thread(self.ray.nodes), _CALLS_WITHIN)
        names = [row["NodeName"] for row in rows if row["Alive"]]
        for row in rows:
            id, node = row["NodeID"], self.nodes.get(row["NodeID"])
            if row["Alive"] and node is None:
                name = row["NodeName"]
                if names.count(name) > 1:
                    name += f"-{id[:4]}"
                node = self.nodes[id] = Node(self, id, name, row["NodeManagerAddress"])
                self._spawn(node.run())
            elif not row["Alive"] and node is not None and node.alive:
                node.alive = False
                node.fault = "Ray says that it is dead"
                for one in self.of(node):
                    self.lose(one, f"the node {node.name} has died")
                del self.nodes[id]

    def _state(self) -> ClusterState:
        nodes = self.nodes.values()
        asked = all(node.devices or node.fault not in ("", _STARTS) for node in nodes)
        return ClusterState(
            self.cluster.address,
            tuple(
                replace(device, fault=node.fault or device.fault)
                for node in nodes
                for device in node.devices
            ),
            faults={node.name: node.fault for node in nodes if node.fault},
            ready=bool(nodes) and (asked or time.monotonic() > self.since + _STARTS_WITHIN),
        )

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one relay until it hangs up."""
        one: Attempt | None = None
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(_LENGTH), "big")
                message = msgspec.msgpack.decode(await reader.readexactly(length))
                if one is None:
                    order = msgspec.convert(message["order"], Order)
                    one = Attempt(order, message["package"], list(message["written"]), writer)
                    # One that had begun is not begun again: its agent knows it, or it is lost.
                    one.started = message["begun"]
                    self.attempts[order.mark] = one
                    self._spawn(self._start(one))
                elif message["type"] == "done":
                    await self._forget(one)
                    return
                else:
                    await self._do(one, message)
        except (asyncio.IncompleteReadError, ConnectionError):
            if one is not None and self.attempts.get(one.order.mark) is one:
                await self._abandon(one)
        finally:
            writer.close()

    async def _do(self, one: Attempt, message: dict[str, Any]) -> None:
        match message["type"]:
            case "package":
                one.data = message["data"]
                one.files.set()
            case "refuse":
                one.refused = message["why"]
                one.files.set()
            case "signal":
                self._spawn(self._pass_on(one, "signal", message["number"]))
            case "pause":
                self._spawn(self._pass_on(one, "pause", message["on"]))
            case "stop":
                if not one.started and one.asked is None:
                    one.finish(type="ended", outcome=None, how="", why="it was not started yet")
                else:
                    self._spawn(self._pass_on(one, "stop"))

    async def _pass_on(self, one: Attempt, method: str, *args: Any) -> None:
        """Tell the agent that runs it, and one that is not there yet as soon as it is: this bridge
        may have only just been started."""
        while not one.over and self.attempts.get(one.order.mark) is one:
            node = self._node(one)
            if one.started and node is not None and node.agent is not None:
                with contextlib.suppress(Exception):
                    await node.call(method, one.order.mark, *args)
                    return
            await asyncio.sleep(0.1)

    async def _ask(self, one: Attempt, method: str, *args: Any) -> None:
        """Tell its node's agent something; a node that is away is told nothing."""
        node = self._node(one)
        if node is not None and node.agent is not None:
            with contextlib.suppress(Exception):
                await node.call(method, *args)

    def _node(self, one: Attempt) -> Node | None:
        return next((node for node in self.nodes.values() if node.name == one.order.node), None)

    async def _start(self, one: Attempt) -> None:
        """Have it started on its node, when no other attempt of its job is left anywhere."""
        order = one.order
        deadline = time.monotonic() + FENCE
        package = one.package
        while not one.over and self.attempts.get(order.mark) is one:
            node = self._node(one)
            if node is None or node.agent is None:
                if node is None and time.monotonic() > deadline:
                    one.finish(type="lost", why=f"the node {order.node} is not there any more")
                await asyncio.sleep(0.1)
                continue
            if one.started:
                return
            if one.asked not in (None, node.agent):
                self.lose(one, f"the agent of the node {order.node} has ended")
                return
            try:
                if await self._others_live(order):
                    await asyncio.sleep(0.2)
                    continue
                one.asked = node.agent
                said = await node.call("start", self.home, msgspec.structs.asdict(order), package)
                if said == "pack":
                    one.send(type="pack")
                    await one.files.wait()
                    if one.refused:
                        outcome = msgspec.to_builtins(Outcome("stopped", 255, message=one.refused))
                        one.finish(type="ended", outcome=outcome, how="", why="")
                    else:
                        await node.call("give", package, one.data)
                        one.data = b""
                elif said:
                    one.finish(type="ended", outcome=None, how="", why=said)
                else:
                    one.started = True
                    one.send(type="started")
                    return
            except Exception as error:
                node.fault = _first_line(error)
                await asyncio.sleep(_TICK)

    async def _others_live(self, order: Order) -> bool:
        """Whether an attempt of the same job before this one may still run; ends it if so."""
        if not self._state().ready:
            return True
        for node in list(self.nodes.values()):
            for mark in list(node.marks):
                if mark == order.mark or _job(mark) != order.job:
                    continue
                if mark in self.attempts or node.agent is None or await node.call("stop", mark):
                    return True
        return False

    async def _forget(self, one: Attempt) -> None:
        """Its end is written down."""
        if self.attempts.get(one.order.mark) is one:
            del self.attempts[one.order.mark]
        await self._ask(one, "forget", one.order.mark)

    async def _abandon(self, one: Attempt) -> None:
        """Its relay was killed: nobody would hear of its end."""
        del self.attempts[one.order.mark]
        one.over = True
        await self._ask(one, "stop", one.order.mark)


def _offsets(one: Attempt) -> tuple[int, int]:
    """What the relay has of the two streams; negative if it does not read what it was sent."""
    if one.writer.transport.get_write_buffer_size() > _MOST_UNSENT:
        return -1, -1
    return one.written[0], one.written[1]


def _own_id(cluster: Cluster) -> str:
    """By which agents tell homes apart."""
    path = cluster.path / "id"
    if not path.exists():
        path.write_text(os.urandom(16).hex())
    return path.read_text()


def _job(mark: str) -> str:
    """The job of which this is an attempt, as `orders` marks them."""
    return mark.rpartition("-")[0]


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


def connect(address: str) -> None:
    """Connect to the cluster; raises what is wrong."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host:  # Ray itself would try for half a minute.
        socket.create_connection((host, int(port)), _REACHED_WITHIN).close()
    import ray

    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="warning")


def main() -> None:
    """Started by whoever needs the cluster of this address."""
    cluster = Cluster(Home.find(), sys.argv[1])
    with cluster.held(_LOCKS_WITHIN) as free:
        if not free:
            return
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        address = cluster.address
        fault = f"the Ray cluster {'of this machine' if address == 'auto' else address} "
        try:
            connect(address)
        except ImportError:
            cluster.write(
                ClusterState(
                    address,
                    fault="the package ray is not installed",
                    hint="Install it: pip install 'sublet[ray]'.",
                )
            )
        except Exception as error:
            text = _first_line(error)
            mismatch = "version mismatch" in str(error).lower()
            hint = "Use the cluster's own versions." if mismatch else "Is it up? `ray status`"
            cluster.write(
                ClusterState(address, fault=f"{fault}cannot be reached: {text}", hint=hint)
            )
        else:
            asyncio.run(Bridge(cluster).serve())


if __name__ == "__main__":
    main()
