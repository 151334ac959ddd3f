"""Reading a job's output: any bytes, to the end, across attempts, without surprises."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from sublet.client.logs import JobLogs, Log, Output
from sublet.errors import BadRequest
from sublet.keeper import output_files
from sublet.keeper.output_files import Gap

MiB = 1 << 20
READER = """
import sys, types
from sublet.cli import main
from sublet.client.jobs import Job
def status(job):
    state = sys.stdin.readline().strip() or "finished"
    return types.SimpleNamespace(state=state, attempt_id="7.1", gang=())
Job.status = status
sys.argv = ["sublet", "logs", *sys.argv[1:]]
sys.exit(main())
"""


class Row(Struct, frozen=True):
    state: str
    attempt_id: str


def _text(outputs: Iterator[Output]) -> bytes:
    return b"".join(output.piece for output in outputs if isinstance(output.piece, bytes))


def _job(directory: Path, *rows: Row) -> JobLogs:
    """A job whose broker gives these answers, and then the last one for ever."""
    answers = list(rows)
    return JobLogs(directory, 7, lambda: answers.pop(0) if len(answers) > 1 else answers[0])


@pytest.mark.parametrize(
    ("times", "ago", "expected"),
    [
        ("1000 4\n1100 10\n", 50, b"second\nthird\n"),  # Its first byte came after 1000.
        ("1000 4\n1100 10\n", 0, b"second\nthird\n"),  # From the start of a line.
        ("1000 4\n1090 11\n1200 17\n", 0, b"third\n"),
        ("1000 4\n", 200, b"one\nsecond\nthird\n"),
        ("1000 4\n1100 99\n", 0, b""),  # More than there is.
        ("1000 4\n900 8\n1100 11\n", 0, b"third\n"),
        ("1000 4\n1200 8\n1050 17\n", 0, b"second\nthird\n"),  # A clock that was set back.
        ("nonsense\n", 0, b"one\nsecond\nthird\n"),
        (None, 0, b"one\nsecond\nthird\n"),
    ],
)
def test_output_since_a_time_is_never_less_than_that(
    tmp_path: Path, times: str | None, ago: int, expected: bytes
) -> None:
    path = tmp_path / "7.1.log"
    path.write_bytes(b"one\nsecond\nthird\n")
    if times is not None:
        (tmp_path / "7.1.log.times").write_text(times)
    logs = _job(tmp_path, Row("finished", "7.1"))
    assert _text(logs.read(since=1100 - ago)) == expected
    assert _text(logs.read(tail=1, since=1100 - ago)) == expected[-6:]


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\n", 5, b"a\nb\n"),
        (b"a\nb\n", 2, b"a\nb\n"),
        (b"a\nb\n", 0, b""),
        (b"", 3, b""),
        (b"\n\n\n", 2, b"\n\n"),
        (b"x" * (3 * MiB) + b"\nlast\n", 1, b"last\n"),
        (b"first\n" + b"x" * (3 * MiB) + b"\nlast\n", 2, b"x" * (3 * MiB) + b"\nlast\n"),
        (b"\xff\0\n\xfe\n", 1, b"\xfe\n"),
    ],
    ids=range(10),
)
def test_the_tail_is_the_last_lines_whatever_they_hold(
    tmp_path: Path, text: bytes, count: int, expected: bytes
) -> None:
    path = tmp_path / "7.1.log"
    path.write_bytes(text)
    with Log.open(path) as log:
        log.seek_lines(count)
        assert b"".join(piece for piece in log.read() if isinstance(piece, bytes)) == expected


def test_a_tail_never_reaches_over_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "7.1.log"
    path.write_bytes(b"old\n" * MiB + b"x" * MiB + b"\nnew\n")
    bound = output_files.SizeLimit([str(path)], MiB)
    bound.tick(bound.due)
    bound.close()
    with Log.open(path) as log:
        log.seek_lines(100)
        pieces = list(log.read())
    assert not [piece for piece in pieces if isinstance(piece, Gap)]
    assert b"".join(piece for piece in pieces if isinstance(piece, bytes)).endswith(b"x\nnew\n")


def test_the_latest_attempt_that_has_written_is_shown(tmp_path: Path) -> None:
    """The third one waits."""
    (tmp_path / "7.1.log").write_bytes(b"one")
    (tmp_path / "7.2.log").write_bytes(b"two")
    job = _job(tmp_path, Row("waiting", "7.3"))
    assert _text(job.read()) == b"two"
    assert _text(job.read(attempt=1)) == b"one"


def test_a_follower_reads_all_attempts_to_the_very_end(tmp_path: Path) -> None:
    """Also what was written between the last look and the end."""
    (tmp_path / "7.1.log").write_bytes(b"one ")
    running, again = Row("running", "7.1"), Row("running", "7.2")
    answers = [
        (running, "7.1.log", b""),
        (again, "7.1.log", b"more "),
        (again, "7.2.log", b"two "),
        (Row("finished", "7.2"), "7.2.log", b"end"),
    ]

    def find() -> Row:
        row, name, written = answers.pop(0)
        with (tmp_path / name).open("ab") as file:
            file.write(written)
        return row

    assert _text(JobLogs(tmp_path, 7, find).follow()) == b"one more two end"


def test_following_waits_for_a_job_that_has_not_begun(tmp_path: Path) -> None:
    job = _job(tmp_path, Row("waiting", "7.1"), Row("running", "7.1"), Row("finished", "7.1"))
    followed: list[bytes] = []
    thread = threading.Thread(target=lambda: followed.append(_text(job.follow())))
    thread.start()
    (tmp_path / "7.1.log").write_bytes(b"at last")
    thread.join()
    assert followed == [b"at last"]


def test_what_is_not_there_is_explained(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="nothing yet: it is waiting"):
        list(_job(tmp_path, Row("waiting", "7.1")).read())
    with pytest.raises(BadRequest, match="Job 7 has no output"):
        list(_job(tmp_path, Row("finished", "7.1")).read())
    with pytest.raises(BadRequest, match="no output of attempt 4"):
        list(_job(tmp_path, Row("finished", "7.1")).read(attempt=4))
    (tmp_path / "7.1.log").touch()
    with pytest.raises(BadRequest, match="both of its streams to one file"):
        list(_job(tmp_path, Row("finished", "7.1")).read(only="stderr"))


@pytest.fixture
def reader(tmp_path: Path) -> Callable[..., "subprocess.Popen[bytes]"]:
    """The command itself, with a job 7 whose states are read from its stdin."""
    (tmp_path / "logs").mkdir()

    def start(*words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-c", READER, *words],
            env={**os.environ, "SUBLET_HOME": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


def test_the_command_writes_any_bytes_unharmed(tmp_path: Path, reader: Any) -> None:
    data = bytes(range(256)) * 1000
    (tmp_path / "logs" / "7.1.log").write_bytes(data)
    assert reader("7").communicate(b"") == (data, b"")


def test_the_command_says_how_much_is_left_out(tmp_path: Path, reader: Any) -> None:
    path = tmp_path / "logs" / "7.1.log"
    path.write_bytes(b"x" * (8 * MiB))
    bound = output_files.SizeLimit([str(path)], 4 * MiB)
    bound.tick(bound.due)
    bound.close()
    out, said = reader("7").communicate(b"")
    assert 0 < len(out) <= 4 * MiB
    assert said.decode() == f"… {(8 * MiB - len(out)) / MiB:.1f} MiB left out …\n"


def test_split_streams_go_where_they_belong(tmp_path: Path, reader: Any) -> None:
    (tmp_path / "logs" / "7.1.out").write_bytes(b"out")
    (tmp_path / "logs" / "7.1.err").write_bytes(b"err")
    assert reader("7").communicate(b"") == (b"out", b"err")
    assert reader("--stderr", "7").communicate(b"") == (b"err", b"")
    assert reader("--stdout", "7").communicate(b"") == (b"out", b"")


def test_a_pipe_that_closes_early_ends_it_quietly(tmp_path: Path, reader: Any) -> None:
    """As `| head` does."""
    (tmp_path / "logs" / "7.1.log").write_bytes(b"line\n" * MiB)
    child = reader("7")
    child.stdin.close()
    assert child.stdout.readline() == b"line\n"
    child.stdout.close()
    assert child.wait() == 141
    assert child.stderr.read() == b""
    child.stderr.close()


def test_ctrl_c_ends_a_follower_quietly(tmp_path: Path, reader: Any) -> None:
    path = tmp_path / "logs" / "7.1.log"
    path.write_bytes(b"line\n")
    child = reader("-f", "7")
    child.stdin.write(b"running\n" * 1000)
    child.stdin.flush()
    assert child.stdout.readline() == b"line\n"
    child.send_signal(signal.SIGINT)
    _, said = child.communicate()
    assert child.returncode == -signal.SIGINT
    assert said.strip() == b""
