"""Evidence of running out of memory, from what may be lying in an attempt's directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sublet.formats.lease import LeaseTerms
from sublet.formats.oom_evidence import OomEvidence, read_evidence
from sublet.inside.measure import UsageWriter
from sublet.inside.oom import asked, excerpt, is_oom

NOTHING = OomEvidence(0, None, None, None, None, uncaught=False, unheard=False)


def record(message: str, uncaught: bool, time: float, asked: int = 8) -> str:
    fields = {"message": message, "asked": asked, "limit": 64, "peak": 60, "current": 50}
    return json.dumps({**fields, "uncaught": uncaught, "time": time})


def leave_dumps(directory: Path, *times: float) -> None:
    """What the allocator of one process leaves at these times."""
    for time in times:
        (directory / f"dump-7_GPU_0_bfc.{max(0, int(time * 1e6))}").write_bytes(b"")


def test_nothing_left_is_no_evidence(tmp_path: Path) -> None:
    assert read_evidence(str(tmp_path)) == NOTHING
    assert read_evidence(str(tmp_path / "gone")) == NOTHING


def test_the_error_that_ended_the_program_is_told_rather_than_a_later_one_that_was_caught(
    tmp_path: Path,
) -> None:
    (tmp_path / "oom-1.json").write_text(record("fatal", True, 10.0, asked=99))
    (tmp_path / "oom-2.json").write_text(record("caught", False, 20.0))
    assert read_evidence(str(tmp_path)) == OomEvidence(
        2, 99, 64, 60, "fatal", uncaught=True, unheard=False
    )


def test_a_dump_after_the_last_error_is_a_failure_that_nobody_heard_of(
    tmp_path: Path, on_cpu: Callable[..., LeaseTerms]
) -> None:
    usage = UsageWriter(on_cpu(tmp_path), 1)
    usage.note(limit=64, peak=60)
    usage.note_failure(8)
    (tmp_path / "oom-1.json").write_text(record("caught", False, 10.0))
    leave_dumps(tmp_path, 0.0, 9.9)
    assert not read_evidence(str(tmp_path)).unheard
    leave_dumps(tmp_path, 20.0, 30.1)
    assert read_evidence(str(tmp_path)) == OomEvidence(
        2, 8, 64, 60, "caught", uncaught=False, unheard=True
    )


@pytest.mark.parametrize(
    ("dumps", "unheard"),
    [
        ((100.0, 110.0), True),
        ((100.0, 104.0, 112.5), True),
        ((100.0, 110.0, 130.0), True),
        ((100.0, 100.0), False),
        ((100.0, 104.0, 108.0), False),
        ((100.0, 160.0), False),
        (tuple(100.0 + number / 100 for number in range(32)), True),
    ],
)
def test_an_allocation_that_was_tried_again_and_succeeded_is_no_failure(
    tmp_path: Path, dumps: tuple[float, ...], unheard: bool
) -> None:
    """One that fails is tried for ten seconds; the first of very many tries may be forgotten."""
    leave_dumps(tmp_path, *dumps)
    (tmp_path / "dump-8_bfc.110000000").write_bytes(b"")  # Another process's.
    assert read_evidence(str(tmp_path)).unheard == unheard


def test_rubbish_is_no_evidence(tmp_path: Path) -> None:
    for number, text in enumerate(["", "{", "[]", "7", "null", '{"message": 1}', "[" * 9999]):
        (tmp_path / f"oom-{number}.json").write_text(text)
    (tmp_path / "oom-8.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "oom-9.json").mkdir()
    (tmp_path / "dump-7_x.yz").write_bytes(b"")
    (tmp_path / "inside-3").write_bytes(b"\xff" * 80)
    assert read_evidence(str(tmp_path)) == NOTHING


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("OOM when allocating tensor with shape[100,1048576] and type float on /job:x", 400 << 20),
        ("OOM when allocating tensor with shape[3] and type bfloat16 on /job:x", 6),
        ("OOM when allocating tensor with shape[] and type double on /job:x", 8),
        ("OOM when allocating temporary tensor with shape[2,5] and type half on", 20),
        ("OOM when allocating tensor of shape [2,5] and type uint8", 10),
        ("Graph execution error:\n\nOOM when allocating tensor with shape[7] and type int64", 56),
        ("Out of memory while trying to allocate 1234 bytes.", 1234),
        ("Out of memory while trying to allocate 200.50MiB. [Op:__inference_f_20]", 401 << 19),
        ("OOM when allocating something else", 0),
    ],
)
def test_what_was_asked_is_read_from_the_message(message: str, size: int) -> None:
    assert is_oom(message)
    assert asked(message) == size


def test_a_busy_server_is_not_out_of_memory() -> None:
    assert not is_oom("RESOURCE_EXHAUSTED: Received message larger than max (5 vs. 4)")


def test_the_telling_part_of_a_long_trace_is_kept() -> None:
    trace = "Graph execution error:\n" + "  File x\n" * 1000
    assert excerpt(trace + "OOM when allocating tensor").startswith("OOM when allocating tensor")
    assert excerpt("OOM when allocating tensor" + trace).startswith("OOM when allocating tensor")
    graph = "Graph execution error:\n\nDetected at node dense/MatMul\n" + "OOM when allocating\nx"
    assert excerpt(graph) == "OOM when allocating\nx"


def test_a_constant_for_which_there_was_no_memory_is_named() -> None:
    """TensorFlow says that it could not read it, and prints it."""
    sizes = "".join(f"  dim {{\n    size: {size}\n  }}\n" for size in (800, 1024))
    proto = f"dtype: DT_FLOAT\ntensor_shape {{\n{sizes}}}\nfloat_val: 1\n"
    message = f"Graph execution error:\n\nNode: 'ones'\nCannot parse tensor from proto: x\n{proto}"
    assert excerpt(message) == (
        "OOM when allocating tensor with shape[800,1024] and type float, a constant"
    )
    assert excerpt("Graph execution error:\nsomething else").startswith("Graph execution error")
    eager = "{{function_node __wrapped__Fill_device_/job:localhost/device:CPU:0}} "
    eager += "OOM when allocating tensor with shape[4] and type float by bfc [Op:Fill] name: "
    assert excerpt(eager) == "OOM when allocating tensor with shape[4] and type float by bfc"
