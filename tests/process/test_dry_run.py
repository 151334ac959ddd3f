"""`sublet run --dry-run`."""

from support.sandbox import Sandbox


def test_a_program_that_would_start_is_not_started(sandbox: Sandbox) -> None:
    sandbox.write("train.py", "open('it ran', 'w')")
    said = sandbox.sublet("run", "--dry-run", "--memory", "64MiB", "train.py", check=True)
    first, lease, *_ = said.stdout.splitlines()
    assert first == "train.py would start now, on cpu"
    assert lease == "  lease   64.0 MiB on cpu (as asked)"
    assert not (sandbox.work / "it ran").exists()
    refused = sandbox.sublet("run", "--dry-run", "--memory", "900TiB", "train.py")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "will never fit" in refused.stderr
