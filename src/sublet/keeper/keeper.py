"""The small parent of one worker.

It owns the worker's process tree: everything the program starts, however it detaches, stays below
it. It ends that tree when it is asked to, when the time limit is reached or when the job's client
is gone; pauses it; keeps it in its class of service, on its processors and its output within
bounds; writes an exit record, and outlives both the broker and the nursery (`supervisor`). It never
decides about leases, and never waits for a broker to listen.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import NamedTuple

from ..formats import attempt_files, packets, worker_spec
from ..formats.worker_spec import WorkerSpec
from . import held_port, process_tree, subreaper, witness
from .cgroup import Cgroup
from .supervisor import Supervisor, identity
from .worker import enter, run_cold


class StartOrder(NamedTuple):
    """Which attempt to keep, the link to the broker, and the program's descriptors: its three
    streams and, for a pool's worker, the channel to its pool."""

    directory: str
    link: socket.socket
    streams: list[int]

    @classmethod
    def of(cls, directory: str, descriptors: list[int]) -> StartOrder:
        """An order whose link and streams came as descriptors."""
        link, *streams = descriptors
        return cls(directory, socket.socket(fileno=link), streams)


def keep(
    await_order: Callable[[], StartOrder | None],
    how: str,
    prepare: Callable[[], None] = lambda: None,
) -> WorkerSpec:
    """Fork a worker, wait for the order, and keep the worker.

    Returns in the worker only, when it is to become its program; the keeper never returns. The fork
    comes before the order, so that a nursery can have a pair ready; the worker calls `prepare`
    meanwhile.
    """
    gc.disable()
    its_witness = witness.fork_keeper()
    os.setsid()
    subreaper.become("sublet-keeper")
    ours, theirs = packets.pair()
    worker = os.fork()
    if worker == 0:
        ours.close()
        prepare()
        return enter(theirs)
    theirs.close()
    try:
        # Before the order comes, because moving a process into a group takes the kernel a while.
        group = _enclose(worker)
        order = await_order()
        if order is None or not _keep(order, worker, ours, group, how, its_witness):
            # The worker ends by itself when its channel is closed.
            ours.close()
            os.waitpid(worker, 0)
        if group is not None:
            group.close()
    except BaseException as error:
        # Nobody is left to catch it, and the tree must not outlive its keeper's bug.
        print(f"sublet keeper: {error!r}", file=sys.stderr, flush=True)
        process_tree.end(os.getpid(), signal.SIGKILL)
        os._exit(70)
    os._exit(0)


def _enclose(worker: int) -> Cgroup | None:
    group = Cgroup.make(f"{os.getpid()}-{process_tree.start_time(os.getpid())}")
    if group is None or group.enter(worker):
        return group
    group.close()
    return None


def _keep(
    order: StartOrder,
    worker: int,
    channel: socket.socket,
    group: Cgroup | None,
    how: str,
    its_witness: socket.socket,
) -> bool:
    """Stay until the attempt's tree is gone; False if the attempt cannot be had any more."""
    if os.waitid(os.P_PID, worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
        return False  # Killed while it waited. Unclaimed, the attempt is known not to have begun.
    own = {**identity(os.getpid()), "boot": process_tree.boot()}
    spec = worker_spec.read(order.directory)
    if spec is None or not attempt_files.claim(order.directory, own):
        return False
    # Until the tree is gone; whoever has ordered us holds it until we say that we do.
    port = _hold_port(spec.get("port", 0))
    supervisor = Supervisor(order.directory, spec, own, worker, how, group, order.link, its_witness)
    packets.send(its_witness, {"keeps": worker, "directory": order.directory})
    supervisor.introduce()
    packets.send(channel, {"go": order.directory}, order.streams)
    channel.close()
    packets.close(order.streams)
    supervisor.run()
    if port is not None:
        port.close()
    return True


def _hold_port(number: int) -> socket.socket | None:
    """Hold the port on which a task of a cluster is to listen."""
    try:
        return held_port.hold(number) if number else None
    except OSError:
        return None  # Somebody listens there: the program will say so itself.


def main() -> None:
    """A cold keeper: `keeper DIRECTORY HOW LINK STDIN STDOUT STDERR [CHANNEL]`, descriptors as
    numbers."""
    directory, how, *numbers = sys.argv[1:]
    order = StartOrder.of(directory, [int(number) for number in numbers])
    run_cold(keep(lambda: order, how))


if __name__ == "__main__":
    main()
