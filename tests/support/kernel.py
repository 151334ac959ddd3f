"""A real Jupyter kernel, as a notebook has it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

from support.sandbox import Sandbox


class Kernel:
    """Runs cells. What a cell shows is its output, its last value and what it wrote to stderr."""

    def __init__(self, client: Any, pid: int) -> None:
        self._client = client
        self.pid = pid

    def do(self, cell: str) -> str:
        """What the cell shows; it must not fail."""
        shown, reply = self._execute(cell)
        assert reply["status"] == "ok", reply
        return shown

    def fails(self, cell: str) -> str:
        """The error that the cell ends with."""
        _, reply = self._execute(cell)
        assert reply["status"] == "error", reply
        return f"{reply['ename']}: {reply['evalue']}"

    def _execute(self, cell: str) -> tuple[str, dict[str, Any]]:
        shown = ""

        def hear(message: dict[str, Any]) -> None:
            nonlocal shown
            content = message["content"]
            shown += content.get("text", "") + content.get("data", {}).get("text/plain", "")

        reply = self._client.execute_interactive(cell, timeout=90, output_hook=hear)
        return shown, reply["content"]


@contextmanager
def kernel(sandbox: Sandbox, notebook: str, directory: Path) -> Iterator[Kernel]:
    """One for this notebook; it is shut down at the dedent, as from Jupyter's menu."""
    manager = KernelManager(connection_file=str(directory / "kernel.json"))
    environ = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "IPYTHONDIR": str(directory),
        "JPY_SESSION_NAME": notebook,
        **sandbox.environ,
    }
    manager.start_kernel(cwd=str(sandbox.work), env=environ)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        provisioner: Any = manager.provisioner
        yield Kernel(client, provisioner.pid)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
