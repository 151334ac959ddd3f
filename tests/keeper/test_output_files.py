"""Output files: every byte in order, bounded on disk, and no part of Sublet in between."""

import errno
import gc
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.client.logs import Log
from sublet.keeper import output_files
from support.launcher_harness import LauncherHarness
from support.sandbox import wait_for

MiB = 1 << 20
TWO_LINES = """
import os, time
print('a', flush=True)
while not os.path.exists('go'): time.sleep(0.01)
print('b')
"""


def _whole(path: Path) -> tuple[bytes, int]:
    """All that a reader sees, and how much is reported missing."""
    data, missing = b"", 0
    with Log.open(path) as log:
        for piece in log.read():
            if isinstance(piece, bytes):
                data += piece
            else:
                missing += piece.size
    return data, missing


def _on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


def _can_punch(directory: Path) -> bool:
    path = directory / "probe"
    path.write_bytes(b"x" * MiB)
    with path.open("r+b") as file:
        return output_files.punch(file.fileno(), 0, MiB)


def test_both_streams_of_a_job_come_in_one_file_in_their_order(launcher: LauncherHarness) -> None:
    code = "import os\nfor i in range(500): os.write(1 + i % 2, b'%d\\n' % i)"
    launched = launcher.start("1.1", code)
    assert launched.ended()["status"] == 0
    assert launched.log.read_bytes() == b"".join(b"%d\n" % i for i in range(500))


def test_split_streams_come_apart_and_there_is_nothing_to_read(launcher: LauncherHarness) -> None:
    code = "import os, sys; print(repr(sys.stdin.read())); os.write(2, b'\\xff\\0')"
    assert launcher.start("3.2", code, split=True).ended()["status"] == 0
    assert (launcher.logs / "3.2.out").read_bytes() == b"''\n"
    assert (launcher.logs / "3.2.err").read_bytes() == b"\xff\0"
    assert (launcher.logs / "3.2.err").stat().st_mode & 0o777 == 0o600


def test_a_directory_that_is_not_there_is_an_error_and_leaks_nothing(tmp_path: Path) -> None:
    gc.collect()  # What earlier tests have left open is not to be closed just now.
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        output_files.open_streams(str(tmp_path / "none"), "1.1", split=True)
    assert set(os.listdir("/proc/self/fd")) <= set(before)


def test_output_goes_on_when_the_keeper_is_killed(launcher: LauncherHarness) -> None:
    launched = launcher.start("1.1", TWO_LINES)
    launched.says("a")
    launched.kill_keeper()
    (launcher.work / "go").touch()
    assert launched.ended()["status"] == 0
    assert launched.log.read_bytes() == b"a\nb\n"


@pytest.mark.parametrize("killed", [False, True], ids=["keeper lives", "keeper killed"])
def test_a_job_that_writes_as_fast_as_it_can_does_not_fill_the_disk(
    launcher: LauncherHarness, killed: bool
) -> None:
    """Two gigabytes of numbered lines: the first and the latest are there, whole and in order.

    Whoever bounds them may be without a processor for a while, so the job is held up where it would
    be far ahead; it comes to its end only because the file becomes smaller while it writes.
    """
    if not _can_punch(launcher.root):
        pytest.skip("this file system makes no holes")
    code = (
        "import os, time\n"
        "os.write(1, b'begins\\n')\n"
        "row = b''.join(b'%015d\\n' % i for i in range(65536))\n"
        "for _ in range(2048):\n"
        "    os.write(1, row)\n"
        "    while os.fstat(1).st_blocks > 1 << 20: time.sleep(0.01)\n"
        "os.write(1, b'ends\\n')\n"
    )
    limit = 32 * MiB
    launched = launcher.start("1.1", code, limit=limit)
    if killed:
        launched.says("begins")
        launched.kill_keeper()
    most = 0
    while launched.members():
        most = max(most, _on_disk(launched.log))
    assert launched.ended()["status"] == 0
    data, missing = _whole(launched.log)
    assert len(data) + missing == 2048 * MiB + len(b"begins\nends\n")
    assert data.startswith(b"begins\n%015d\n" % 0)
    assert data.endswith(b"%015d\nends\n" % 65535)
    assert len(data) <= limit + MiB
    assert _on_disk(launched.log) <= limit + MiB
    assert most < 1024 * MiB


def test_a_hole_that_was_made_in_part_is_made_whole_by_the_next(tmp_path: Path) -> None:
    """File systems begin at the end of it, and the one who makes it may be killed meanwhile."""
    if not _can_punch(tmp_path):
        pytest.skip("this file system makes no holes")
    path = tmp_path / "1.1.log"
    path.write_bytes(b"x" * (32 * MiB))
    with path.open("rb+") as file:
        output_files.punch(file.fileno(), 16 * MiB, 4 * MiB)
    bound = output_files.SizeLimit([str(path)], 24 * MiB)
    bound.tick(bound.due)
    bound.close()
    assert _on_disk(path) <= 24 * MiB


def test_a_log_that_cannot_be_written_costs_the_program_its_write_and_nothing_else(
    launcher: LauncherHarness,
) -> None:
    """As on a full disk: the program hears of it, lives, and ends with its own code."""
    code = (
        "import os, sys, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try:\n"
        "    while True: os.write(1, b'x' * 4096)\n"
        "except OSError as error: sys.exit(error.errno)\n"
    )
    small = {str(resource.RLIMIT_FSIZE): [65536, 65536]}
    launched = launcher.start("1.1", code, limits=small)
    assert os.waitstatus_to_exitcode(launched.ended()["status"]) == errno.EFBIG
    assert launched.log.stat().st_size == 65536


def test_a_full_disk_costs_the_program_its_write_and_nothing_else(tmp_path: Path) -> None:
    """A file system of one mebibyte, where one may be mounted."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", small], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a small file system cannot be mounted here: " + mounted.stderr.decode())
    try:
        streams = output_files.open_streams(str(small), "1.1", split=False)
        bound = output_files.SizeLimit(output_files.paths(str(small), "1.1", split=False), MiB // 2)
        code = (
            "import os, sys, errno\n"
            "try:\n"
            "    while True: os.write(1, b'x' * 4096)\n"
            "except OSError as error: sys.exit(7 if error.errno == errno.ENOSPC else 1)\n"
        )
        child = subprocess.run([sys.executable, "-c", code], stdout=streams[1], check=False)
        assert child.returncode == 7
        bound.close()
        os.write(streams[1], b"there is room again")
        for number in streams:
            os.close(number)
        data, missing = _whole(small / "1.1.log")
        assert data.endswith(b"there is room again")
        assert len(data) + missing == (small / "1.1.log").stat().st_size
        assert len(data) < MiB // 2 + MiB // 8
    finally:
        subprocess.run(["umount", small], check=True)


def test_who_bounds_it_later_goes_on_from_the_hole(tmp_path: Path) -> None:
    """Nothing is counted twice, and what stays is the first and the latest part."""
    if not _can_punch(tmp_path):
        pytest.skip("this file system makes no holes")
    path = tmp_path / "1.1.log"
    dice = random.Random(3)
    written = b""
    for _ in range(3):
        piece = dice.randbytes(5 * MiB)
        written += piece
        with path.open("ab") as file:
            file.write(piece)
        bound = output_files.SizeLimit([str(path)], 4 * MiB)
        bound.tick(bound.due)
        bound.close()
    data, missing = _whole(path)
    assert len(data) + missing == len(written)
    assert 2 * MiB < len(data) <= 4 * MiB
    head = next(i for i, pair in enumerate(zip(data, written, strict=False)) if len(set(pair)) > 1)
    assert written.endswith(data[head:])
    assert head >= MiB


def test_where_no_holes_can_be_made_the_first_part_stays_and_the_loss_is_told(
    tmp_path: Path,
) -> None:
    path = tmp_path / "1.1.log"
    path.write_bytes(b"a" * (3 * MiB))
    bound = output_files.SizeLimit([str(path)], MiB, hole=lambda *_: False)
    bound.tick(bound.due)
    with path.open("ab") as file:
        file.write(b"later")
    bound.close()
    data, missing = _whole(path)
    assert (data, missing) == (b"a" * (MiB // 4) + b"later", 3 * MiB - MiB // 4)


def test_a_file_that_was_removed_is_no_error(tmp_path: Path) -> None:
    bound = output_files.SizeLimit([str(tmp_path / "gone")], MiB)
    assert bound.due == float("inf")
    bound.close()


def test_a_follower_never_reads_a_hole_as_output_while_it_is_made(tmp_path: Path) -> None:
    """A reader in the middle of what is being left out learns of it, and goes on behind it."""
    if not _can_punch(tmp_path):
        pytest.skip("this file system makes no holes")
    path = tmp_path / "1.1.log"
    path.write_bytes(b"x" * (8 * MiB))
    bound = output_files.SizeLimit([str(path)], 4 * MiB)
    data, missing = 0, 0
    with Log.open(path) as log:
        for number, piece in enumerate(log.read()):
            if isinstance(piece, bytes):
                assert not piece.strip(b"x")
                data += len(piece)
            else:
                missing += piece.size
            if number == 20:
                bound.tick(bound.due)
    bound.close()
    assert missing > 0
    assert data + missing == 8 * MiB


def test_removing_everything_while_a_job_writes_does_not_hurt_it(launcher: LauncherHarness) -> None:
    launched = launcher.start("1.1", TWO_LINES)
    launched.says("a")
    launched.log.unlink()
    (launcher.work / "go").touch()
    assert launched.ended()["status"] == 0
    wait_for(lambda: not launched.members(), "it has gone")


def test_the_keeper_notes_how_long_a_file_was_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "7.1.log"
    path.write_bytes(b"")
    clock = [1000.0]
    monkeypatch.setattr("sublet.keeper.output_files.time.time", lambda: clock[0])
    bound = output_files.SizeLimit([str(path)])

    def after(seconds: float, written: bytes) -> None:
        with path.open("ab") as file:
            file.write(written)
        clock[0] += seconds
        bound.tick(clock[0])

    after(0, b"one\n")
    after(1, b"two\n")  # Too soon; not forgotten.
    after(15, b"")
    after(3600, b"")
    after(1, b"three\n")
    clock[0] += 1
    path.write_bytes(path.read_bytes() + b"four\n")
    bound.close()
    times = (tmp_path / "7.1.log.times").read_text().split("\n")
    assert times == ["1000 4", "1016 8", "4617 14", "4618 19", ""]
    sizes = [output_files.size_at(str(path), when) for when in (999, 1000, 4000, 4617, 9999)]
    assert sizes == [0, 4, 8, 14, 19]
