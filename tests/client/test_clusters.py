"""What a command sees of a cluster: lines of its tasks, and who does not come."""

import os
from pathlib import Path

from msgspec.structs import replace

from sublet.client import cluster_watch
from sublet.client.cluster_logs import TaskLog
from sublet.client.cluster_watch import ClusterWatch, culprits
from sublet.client.jobs import exit_code, first_failure
from sublet.keeper import held_port
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


def test_the_task_that_does_not_wait_inside_tensorflow_is_the_one_that_hangs() -> None:
    waits = [
        "Current thread 0x7f (most recent call first):",
        '  File "/venv/tensorflow/python/eager/execute.py", line 53 in quick_execute',
    ]
    hangs = [
        "step 3",
        "Current thread 0x7f (most recent call first):",
        '  File "/home/someone/train.py", line 34 in load',
    ]
    assert culprits({3: waits, 4: hangs}) == {4: 'File "/home/someone/train.py", line 34 in load'}
    assert culprits({3: waits, 4: waits}) == {}
    assert culprits({3: hangs, 4: hangs}) == {}
    assert culprits({3: [], 4: []}) == {}


def test_who_has_not_opened_its_port_is_named_once_when_the_others_have() -> None:
    pid = os.getpid()
    held = held_port.hold()
    port = held_port.number(held)
    with held_port.hold() as missing:
        rows = [
            replace(ROW, pid=pid, port=port),
            replace(ROW, id=4, role_index=1, pid=pid, port=held_port.number(missing)),
        ]
        watch = ClusterWatch(patience=10.0)
        held.listen()
        assert list(watch.look(rows, 0.0, moved=True)) == []
        assert list(watch.look(rows, 9.0, moved=True)) == []
        (told,) = watch.look(rows, 10.0, moved=True)
        assert told.startswith("worker 1 (#4) has not opened its port 127.0.0.1:")
        assert list(watch.look(rows, 30.0, moved=True)) == []
        ended = [replace(row, state="finished", cause="exited", code=0) for row in rows]
        assert [row.id for row in watch.unused(ended)] == [4]
    held.close()


def test_where_nobody_opens_a_port_the_program_is_doubted() -> None:
    with held_port.hold() as held:
        rows = [replace(ROW, pid=os.getpid(), port=held_port.number(held))]
        watch = ClusterWatch(patience=10.0)
        assert list(watch.look(rows, 0.0, moved=True)) == []
        (told,) = watch.look(rows, 11.0, moved=True)
        assert "no task has opened its port" in told


def test_a_process_that_does_not_listen_for_it_is_not_asked_for_its_stacks() -> None:
    """The signal would end it."""
    assert not cluster_watch.ask_for_stacks(os.getpid())


def test_the_exit_code_of_a_cluster_is_that_of_the_first_failure() -> None:
    ended = replace(ROW, state="finished", cause="stopped", code=143, since=5.0)
    first = replace(ended, id=4, cause="exited", code=7, since=4.0)
    late = replace(ended, id=5, cause="exited", code=1, since=6.0)
    assert first_failure([ended, first, late]) is first
    assert exit_code([ended, first, late]) == 7
    assert exit_code([replace(ended, code=0), replace(first, code=0)]) == 0
    alone = replace(ended, gang=(), code=9)
    assert exit_code([alone, first]) == 9
