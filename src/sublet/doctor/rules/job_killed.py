"""Signals that end a program from outside, or that it sends itself."""

import signal
from collections.abc import Iterator

from sublet.doctor.rule import Rule, Seen
from sublet.wire.rows import JobRow

_MEANINGS = {
    signal.SIGKILL: "somebody has killed it, most likely the kernel, for lack of memory (`dmesg`)",
    signal.SIGABRT: "a check within TensorFlow or CUDA has failed; its last lines say which",
    signal.SIGSEGV: "TensorFlow or another library has crashed",
    signal.SIGBUS: "a file or shared memory that it had mapped was gone, or the disk was full",
    signal.SIGILL: "the processor lacks an instruction that TensorFlow was built for",
}


def _job(row: JobRow) -> Iterator[Seen]:
    if row.cause != "signalled" or row.by_user or row.code is None:
        return
    meaning = _MEANINGS.get(signal.Signals(row.code - 128)) if row.code > 128 else None
    if meaning is not None:
        yield Seen(words=(f"#{row.id} {row.name}", row.reason, meaning, str(row.id)))


RULE = Rule(
    id="job-killed",
    severity="error",
    sentence="{The job} was {killed}: {why}.",
    fix="Read the end of `sublet logs {3}`; against the kernel's killer use smaller data or fewer "
    "jobs at once.",
    job=_job,
)
