"""A real Jupyter kernel under a lease."""

import json
from pathlib import Path

from support.kernel import kernel
from support.queue import reached
from support.sandbox import PATIENCE, Sandbox, wait_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebooks" / "lease.ipynb"


def _cells() -> list[str]:
    cells = json.loads(EXAMPLE.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_a_notebook_holds_a_lease_until_its_kernel_ends(sandbox: Sandbox, tmp_path: Path) -> None:
    """The example's cells run; what does not fit is refused, and the kernel lives on."""
    lease, train, look = _cells()
    with kernel(sandbox, "/home/someone/lease.ipynb", tmp_path) as notebook:
        shown = notebook.do(lease)
        assert shown.startswith("<sublet.Lease 256 MiB on cpu, #")
        assert "loss" in notebook.do(train)
        assert "('lease.ipynb', 'cpu', 268435456, " in notebook.do(look)
        (row,) = [row for row in sandbox.status()["leases"] if row["pid"] == notebook.pid]
        assert (row["state"], row["lease"]) == ("running", 256 << 20)
        assert notebook.do(lease) == shown
        assert notebook.fails("import tensorflow as tf; tf.zeros([1024, 1024, 512])").startswith(
            "ResourceExhaustedError"
        )
        assert notebook.do("float(tf.zeros([1])[0])") == "0.0"
    ended = reached(sandbox, row["job"], "finished")
    assert (ended["cause"], ended["exit"]) == ("exited", 0)
    assert 0 < ended["peak"] <= 256 << 20


def test_a_notebook_that_waits_says_what_for(sandbox: Sandbox, tmp_path: Path) -> None:
    """It also says when the lease was granted."""
    sandbox.write("hold.sh", "while [ ! -e go ]; do sleep 0.02; done")
    first = sandbox.start("run", "--memory", "3GiB", "sh", "hold.sh")
    wait_for(
        lambda: [r for r in sandbox.status()["leases"] if r["name"] == "sh"], "the device is full"
    )
    with kernel(sandbox, "/home/someone/waits.ipynb", tmp_path) as notebook:
        said = notebook.fails("import sublet; sublet.lease('2GiB', timeout=0)")
        assert said.startswith("TimedOut: No lease at once: needs 2.0 GiB")
        shown = notebook.do(
            "import pathlib, threading\n"
            "def go():\n"
            "    while not sublet.status().waiting: pass\n"
            "    pathlib.Path('go').touch()\n"
            "threading.Thread(target=go).start()\n"
            "sublet.lease('2GiB')"
        )
        assert "sublet: waiting: needs 2.0 GiB" in shown
        assert "sublet: granted after" in shown
        assert shown.rstrip().endswith("waits.ipynb>")
    first.communicate(timeout=PATIENCE)
