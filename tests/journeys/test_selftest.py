"""`sublet selftest`: on the CPU, on cards that work, and on a card that TensorFlow cannot use."""

import getpass
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from standin import Gpu, Machine
from sublet.tools.selftest.report import scrub
from support.sandbox import PATIENCE, Sandbox

NewSandbox = Callable[..., Sandbox]
NewMachine = Callable[..., Machine]
GIB = 1 << 30
OF_MEMORY = ("side by side", "warm start", "ceiling", "out of memory", "cost", "raise")
CARDS = (
    Gpu(name="Card A", uuid="GPU-aaaa", total=16 * GIB),
    Gpu(name="Card B", uuid="GPU-bbbb", total=8 * GIB),
)


def states(report: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["state"] for check in report["checks"]}


def test_what_holds_and_what_does_not_is_told(
    sandbox: Sandbox, new_sandbox: NewSandbox, new_machine: NewMachine
) -> None:
    """At the same time on three machines: without a card, with two, and without the libraries."""
    cards = new_machine(*CARDS, computes=False)
    poor = new_machine(CARDS[0], computes=False, missing=["libcudnn.so.9"])
    boxes = [sandbox, new_sandbox(**cards.environ), new_sandbox(**poor.environ)]
    children = [box.start("selftest", "--json") for box in boxes]
    ended = [child.communicate(timeout=4 * PATIENCE) for child in children]
    cpu, gpu, without = (json.loads(out) for out, _ in ended)
    assert [child.returncode for child in children] == [0, 0, 1], ended
    passed = dict.fromkeys(OF_MEMORY, "pass")
    absent = dict.fromkeys(("driver", "cards", "growth", "fence", "two cards"), "not here")
    assert states(cpu) == passed | absent | {"tensorflow": "pass"}
    assert set(states(gpu).values()) == {"pass"}
    assert "a lease of 256 MiB gave 248 MiB, and refused more" in str(gpu["checks"])
    assert "a process costs 256 MiB beside its pool" in str(gpu["checks"])
    assert "the driver shows 128 MiB, and gives no more than" in str(gpu["checks"])
    assert not cards.refusals()
    failed = {check["name"]: check for check in without["checks"] if check["state"] == "fail"}
    assert set(failed) == {"tensorflow", "cards"}
    assert "cannot load libcudnn.so.9" in failed["tensorflow"]["seen"]
    assert "tensorflow[and-cuda]" in failed["tensorflow"]["advice"]
    for box, (_, said) in zip(boxes, ended, strict=True):
        assert "sublet: checking " in said
        report = (box.work / "sublet-selftest.json").read_text()
        for secret in (str(box.home), str(box.work), "GPU-aaaa", "/root", "/home"):
            assert secret not in report


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/home/ada/.venv/bin/python: no tensorflow", "…/python: no tensorflow"),
        ("cannot open '/some/x'", "cannot open '…/x'"),
        ("CUDA_VISIBLE_DEVICES=GPU-12ab-34 or MIG-a1", "CUDA_VISIBLE_DEVICES=GPU-… or MIG-…"),
        ("on CPU:0, 3.5 GiB/s, 1/2", "on CPU:0, 3.5 GiB/s, 1/2"),
    ],
)
def test_a_report_has_no_paths_and_no_names(text: str, left: str) -> None:
    assert scrub(text) == left
    assert getpass.getuser() not in scrub(f"by {getpass.getuser()}.")
    assert socket.gethostname() not in scrub(f"{socket.gethostname()}: refused")


def test_a_selftest_on_a_device_that_is_not_there_is_refused(sandbox: Sandbox) -> None:
    refused = sandbox.sublet("selftest", "--device", "gpu7")
    assert refused.returncode == 2
    assert "There is no device 'gpu7'." in refused.stderr
