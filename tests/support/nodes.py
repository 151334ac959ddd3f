"""A Ray cluster on this machine, whose nodes have homes of their own."""

import os
import warnings
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.sandbox import Sandbox


class Nodes:
    """The nodes, the first one with Ray's head. On the way out all processes end."""

    def __init__(self) -> None:
        # Ray's sockets need a short path.
        self._stack = ExitStack()
        self._root = Path(
            self._stack.enter_context(TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
        )
        self._cluster: Any = None
        self._homes: dict[Any, Sandbox] = {}

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        try:
            ray.shutdown()
            if self._cluster is not None:
                self._cluster.shutdown()
        finally:
            for sandbox in self._homes.values():
                sandbox.close()
            self._stack.close()

    def add(self, memory: int, leased: int | None = None, cpus: int = 2) -> Any:
        """A node with so much memory for Ray, of which its broker leases `leased`."""
        from ray.cluster_utils import Cluster

        number = len(self._homes)
        sandbox = Sandbox(self._root / f"h{number}", self._root / f"w{number}")
        environ = {name: value for name, value in sandbox.environ.items() if "SUBLET" in name}
        environ["SUBLET_CPU_MEMORY"] = f"{leased or 2 * memory}B"
        options: dict[str, Any] = {
            "num_cpus": cpus,
            "num_gpus": 0,
            "memory": memory,
            "object_store_memory": 200 << 20,
            "env_vars": environ,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's own.
            if self._cluster is None:
                head = {**options, "include_dashboard": False, "temp_dir": str(self._root / "r")}
                self._cluster = Cluster(initialize_head=True, head_node_args=head)
                node = self._cluster.head_node
            else:
                node = self._cluster.add_node(**options)
        sandbox.environ |= environ
        self._homes[node] = sandbox
        return node

    def remove(self, node: Any) -> None:
        """Kill a node, with all that Ray has started there."""
        self._cluster.remove_node(node, allow_graceful=False)

    def home(self, node: Any) -> Path:
        """The home of a node's broker."""
        return self._homes[node].home

    @property
    def address(self) -> str:
        """Of the cluster, as Ray writes it."""
        return str(self._cluster.address)

    def connect(self) -> None:
        """Connect this process."""
        import ray

        os.environ.pop("RAY_ADDRESS", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(
                address=self._cluster.address,
                log_to_driver=False,
                logging_level="error",
                configure_logging=False,
            )
