"""What the broker is asked for."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sublet.client import job_request
from sublet.client.lease import Lease
from sublet.domain.job import JobSpec
from sublet.errors import BadRequest
from sublet.wire.pack import pack

SPELLED = os.fsdecode(b"caf\xe9")
"""A word as a command line gives it when its bytes are not UTF-8."""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job_spec(words: list[str], **options: Any) -> JobSpec:
    """As the broker understands it."""
    return msgspec.msgpack.decode(pack(job_request.job(words, **options)), type=JobSpec)


def sent(spec: JobSpec) -> JobSpec:
    """The same after the socket and the ledger."""
    over_the_wire = msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=JobSpec)
    return msgspec.json.decode(msgspec.json.encode(over_the_wire), type=JobSpec)


def test_names_that_are_not_text_are_shown_as_well_as_they_can_be_and_run_as_they_are(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / SPELLED).mkdir()
    (work / SPELLED / f"{SPELLED}.py").write_text("")
    monkeypatch.setenv("SUBLET_TEST", SPELLED)
    monkeypatch.chdir(SPELLED)
    spec = job_spec([f"{SPELLED}.py", SPELLED])
    assert sent(spec) == spec
    assert spec.name == "caf\N{REPLACEMENT CHARACTER}.py"
    assert (spec.program.target, spec.program.args) == (b"caf\xe9.py", (b"caf\xe9",))
    assert spec.surroundings.cwd.endswith(b"/caf\xe9")
    assert spec.surroundings.environ[b"SUBLET_TEST"] == b"caf\xe9"
    named = job_spec([f"{SPELLED}.py"], name=SPELLED, device=SPELLED)
    assert sent(named) == named
    assert (named.name, named.device) == ("caf\N{REPLACEMENT CHARACTER}",) * 2


def test_a_name_is_one_short_line_that_moves_no_cursor(work: Path) -> None:
    """Whoever draws it, also in other terminals than the one it came from."""
    (work / "train.py").write_text("")
    assert job_spec(["train.py"], name="a\n\x1b[31mb").name == "a��[31mb"
    assert job_spec(["train.py"], name="训练 🎉").name == "训练 🎉"
    assert job_spec(["train.py"], name="x" * 80).name == "x" * 80
    assert job_spec(["train.py"], name="x" * 81).name == "x" * 79 + "…"


def test_a_job_is_called_after_what_it_runs_unless_it_was_named(work: Path) -> None:
    (work / "package").mkdir()
    (work / "package" / "__main__.py").write_text("")
    (work / "train.py").write_text("")
    assert job_spec([str(work / "train.py")]).name == "train.py"
    assert job_spec(["package/"]).name == "package"
    assert job_spec(["python3", "-m", "pkg.train"]).name == "-m pkg.train"
    assert job_spec(["python3", "-c", "print(1)"]).name == "-c"
    assert job_spec(["sh", "-c", "exit"]).name == "sh"
    assert job_spec(["train.py"], name="mine").name == "mine"


@pytest.mark.parametrize(
    ("written", "meant"),
    [("0", "gpu0"), ("0, 2", "gpu0,gpu2"), ("cpu", "cpu"), ("GPU-1a", "GPU-1a")],
)
def test_a_number_is_the_name_of_a_gpu(written: str, meant: str) -> None:
    assert job_request.job(("true",), device=written)["device"] == meant


def test_what_python_gets_wrong_is_answered_with_what_to_write() -> None:
    with pytest.raises(BadRequest, match=r"one string. Write a list of words: \['t.py', '-v'\]"):
        job_request.job("t.py -v")
    with pytest.raises(BadRequest, match=r'memory=5 is not a string. Write memory="2GiB"'):
        job_request.job(["true"], memory=5)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match=r"'5x' has no known unit: .x.. Write a size"):
        job_request.job(["true"], memory="5x")
    spec = job_request.job_without_client(["true"], time="2h", grace="1min")
    assert (spec["time"], spec["grace"]) == (7200.0, 60.0)


def test_a_lease_is_a_table_in_a_notebook() -> None:
    html = Lease(memory=2 << 30, device="gpu0", job=12, name="<b>.ipynb")._repr_html_()
    assert "<td" in html
    assert "2.0 GiB" in html
    assert "#12 &lt;b&gt;.ipynb" in html
    assert "held" in html
