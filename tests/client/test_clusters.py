"""What a command sees of a cluster: the lines of its tasks, and its exit code."""

from pathlib import Path

from msgspec.structs import replace

from sublet.client.cluster_logs import TaskLog
from sublet.client.jobs import exit_code, first_failure
from sublet.wire.rows import JobRow

ROW = JobRow(3, "train.py", "running", "", 0.0, 1, "3.1", "normal", "guaranteed", "grow",
             gang=(3, 4), role="worker", role_index=0)  # fmt: skip


def test_lines_come_whole_and_of_a_progress_bar_the_last_state(tmp_path: Path) -> None:
    log = TaskLog(tmp_path)
    assert list(log.follow(ROW)) == []
    assert list(log.read()) == []
    path = tmp_path / "3.1.log"
    path.write_bytes(b"one\ntw")
    assert list(log.read()) == ["one"]
    with path.open("ab") as file:
        file.write(b"o\n10%\r50%\r100%\nno end")
    assert list(log.read()) == ["two", "100%"]
    (tmp_path / "3.2.log").write_bytes(b"again\n")
    assert list(log.follow(replace(ROW, attempt_id="3.2"))) == ["no end"]
    assert list(log.read()) == ["again"]
    assert list(log.last) == ["again"]
    assert list(log.close()) == []


def test_the_exit_code_of_a_cluster_is_that_of_the_first_failure() -> None:
    ended = replace(ROW, state="finished", cause="stopped", code=143, since=5.0)
    first = replace(ended, id=4, cause="exited", code=7, since=4.0)
    late = replace(ended, id=5, cause="exited", code=1, since=6.0)
    assert first_failure([ended, first, late]) is first
    assert exit_code([ended, first, late]) == 7
    assert exit_code([replace(ended, code=0), replace(first, code=0)]) == 0
    alone = replace(ended, gang=(), code=9)
    assert exit_code([alone, first]) == 9
