"""A Ray cluster on this machine, of which each node has a home of its own."""

import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.sandbox import Sandbox

MiB = 1 << 20


class RayCluster:
    """Three nodes, and a home from which jobs come to them: `sandbox`."""

    def __init__(self, memory: int = 1300 * MiB) -> None:
        from ray.cluster_utils import Cluster

        self.memory = memory
        # Ray's sockets need a short path.
        self._place = tempfile.TemporaryDirectory(prefix="nodes-", ignore_cleanup_errors=True)
        self.path = Path(self._place.name)
        (self.path / "home").mkdir()
        self.sandbox = Sandbox(
            self.path / "home" / "sublet",
            self.path / "work",
            HOME=str(self.path / "home"),
            SUBLET_RAY_FENCE="12",
        )
        self.nodes: dict[str, Any] = {}
        self.homes: dict[str, Sandbox] = {}
        self._cluster = Cluster()
        for name in ("n1", "n2", "n3"):
            self.add(name)
        self.address = self._cluster.address
        self.sandbox.environ["RAY_ADDRESS"] = self.address

    def add(self, name: str) -> None:
        """Add a node."""
        home = self.path / name
        (self.path / f"{name}-work").mkdir(exist_ok=True)
        self.homes[name] = Sandbox(home, self.path / f"{name}-work")
        environ = {
            "SUBLET_HOME": str(home),
            "SUBLET_CPU_MEMORY": f"{self.memory}B",
            "SUBLET_CONFIG": os.devnull,
            "PYTHONPATH": "",
        }
        self.homes[name].environ |= environ
        self.nodes[name] = self._cluster.add_node(
            num_cpus=2,
            memory=4 * self.memory,
            object_store_memory=80 * MiB,
            include_dashboard=False,
            env_vars=environ,
            node_name=name,
        )

    def kill(self, name: str) -> None:
        """Kill Ray's processes on a node, as a machine that is cut off loses them."""
        self._cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def close(self) -> None:
        """End everything; fails if something stays."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._place.cleanup)
            # Ray's own processes on a node have its home in their environment.
            for one in self.homes.values():
                stack.callback(one.close)
            stack.callback(self._cluster.shutdown)
            stack.callback(self.sandbox.close)


def main() -> None:
    """Keep a cluster until stdin ends, for those who try things by hand."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cluster = RayCluster()
    print(cluster.path, cluster.address, flush=True)
    sys.stdin.read()
    cluster.close()


if __name__ == "__main__":
    main()
