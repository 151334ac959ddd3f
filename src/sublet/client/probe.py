"""`sublet probe`: a few short runs of a program, and a forecast of what it needs."""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from sublet.client import job_request
from sublet.client.api import Quiet
from sublet.client.connection import ask
from sublet.client.run import run_in_foreground
from sublet.domain.history import Explanation, Forecast
from sublet.domain.job import JobSpec
from sublet.errors import BadRequest
from sublet.formats.probe import VARIABLE, ProbeNotes, ProbeOrder
from sublet.home import Home
from sublet.policy.probe_forecast import Pass, forecast
from sublet.wire.messages import Ended, Explained, KeepForecast

if TYPE_CHECKING:
    from sublet.client.job_follower import Listener

SHARES = (0.25, 0.5)
"""The share of the program's own batch that each short run gets. If these show that the whole
batch is harmless, a last run takes it."""
_HARMLESS = 0.5
"""A run with the whole batch is harmless if it is expected to take at most this share of the
probe's lease, and of its time at four times the length of the run before."""
_START = 60.0
"""Seconds that a program may take to start TensorFlow, beside the time it is watched."""


def probe(
    words: Sequence[str],
    memory: str = "auto",
    seconds: float = 30.0,
    python: str | None = None,
    listener: "Listener | None" = None,
    on_pass: Callable[[float], None] = lambda share: None,
) -> tuple[JobSpec, Forecast]:
    """Run a program for a few steps with parts of its batch, and forecast what a full run needs.

    Call it from the main thread: the time limit is a signal. The program can see that it is probed
    by the variable SUBLET_PROBE. What Keras and TensorFlow save goes to a scratch directory; files
    that the program writes itself are written. `on_pass` is told the share of the batch that each
    short run gets, before it begins.
    """
    spec, passes = short_runs(words, memory, seconds, python, listener, on_pass)
    return spec, forecast(passes, time.time())


def short_runs(
    words: Sequence[str],
    memory: str = "auto",
    seconds: float = 30.0,
    python: str | None = None,
    listener: "Listener | None" = None,
    on_pass: Callable[[float], None] = lambda share: None,
) -> tuple[JobSpec, list[Pass]]:
    """The short runs of a probe, as `probe` makes them, and what each has shown."""
    tree = job_request.job(words, memory, device="cpu", python=python)
    spec = msgspec.convert(tree, JobSpec)
    passes: list[Pass] = []
    with tempfile.TemporaryDirectory(prefix="sublet-probe-") as directory:
        for share in (*SHARES, 1.0):
            began = time.monotonic()
            on_pass(share)
            done = _pass(spec, share, seconds, Path(directory), listener or Quiet())
            passes.append(done)
            took = time.monotonic() - began
            if not done.scaled or (
                share == SHARES[-1] and not _harmless(passes, 4 * took, seconds)
            ):
                break
    return spec, passes


def _harmless(passes: list[Pass], takes: float, seconds: float) -> bool:
    ceiling = min(one.ceiling for one in passes)
    complete = all(one.complete for one in passes)
    affordable = forecast(passes).high <= _HARMLESS * ceiling and takes <= _HARMLESS * seconds
    return complete and affordable


def keep(spec: JobSpec, forecast: Forecast) -> Explanation:
    """Have the broker keep a forecast as evidence; returns what `auto` makes of it."""
    return ask(KeepForecast(spec, forecast), Explained).explanation


def _pass(spec: JobSpec, share: float, seconds: float, scratch: Path, listener: "Listener") -> Pass:
    directory = scratch / f"{share:g}"
    directory.mkdir()
    order = ProbeOrder(share, seconds, str(directory))
    environ = {
        **spec.surroundings.environ,
        os.fsencode(VARIABLE): os.fsencode(order.to_json()),
    }
    spec = replace(spec, surroundings=replace(spec.surroundings, environ=environ))
    tree = msgspec.to_builtins(spec, builtin_types=(bytes,))
    log = directory / "output"
    with open(os.devnull) as nothing, log.open("wb") as output:
        streams = [nothing.fileno(), output.fileno(), output.fileno()]
        try:
            with _at_most(seconds + _START):
                ended = run_in_foreground(tree, Home.find(), listener, streams, False)
        except TimeoutError:
            raise BadRequest(
                f"{spec.name} did not start TensorFlow within {_START:.0f} s, or did not end.",
                "Give it more time with --seconds, or run it once under `sublet run`.",
            ) from None
    return _judge(spec, ended, directory, share, log)


def _judge(spec: JobSpec, ended: Ended, directory: Path, share: float, log: Path) -> Pass:
    outcome = ended.outcome
    notes = ProbeNotes.read(str(directory))
    peak = max(outcome.peak or 0, notes.peak)
    if not outcome.tensorflow or not peak:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        words = f" It said: {last[0][:200]}" if last and outcome.code else ""
        raise BadRequest(
            f"{spec.name} ended with {outcome.code} before TensorFlow held any memory.{words}",
            "Check that it runs with `python`, and that it is a TensorFlow program.",
        )
    return Pass(
        share=notes.share if notes.full else 1.0,
        peak=peak,
        complete=outcome.code == 0 and not notes.stopped,
        scaled=bool(notes.full) and (notes.tried < notes.full or share == 1.0),
        ceiling=ended.lease.ceiling if ended.lease else 0,
        exceeded=outcome.cause == "lease exceeded",
        rows=notes.tried,
        full=notes.full,
        seconds=notes.seconds,
        epochs=notes.epochs,
        steps=notes.steps,
        weights=notes.weights,
    )


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread when the time is up. That closes the connection, on
    which the keeper ends the program."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
