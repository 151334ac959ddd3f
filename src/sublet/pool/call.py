"""One call: the function, its arguments, and the future that waits for its result; and chunks."""

import itertools
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from sublet.errors import CallFailed, LeaseExceeded, RemoteError, WorkerDied
from sublet.formats import pickle_transport
from sublet.units import format_bytes, written_bytes

if TYPE_CHECKING:
    from sublet.wire.messages import Ended


Row = tuple[Any, ...]
"""The arguments of one call."""


class RemoteTraceback(Exception):
    """The worker's traceback, as the cause of the error that is raised here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


class Call:
    """A submitted call. Only the dispatcher that has taken it sets the result of its future."""

    def __init__(
        self,
        number: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        memory: str | None,
    ) -> None:
        self.number = number
        self.name = name_of(function)
        self.memory = memory
        """Memory for this call alone; None for the pool's."""
        self.future: Future[Any] = Future()
        self._what: tuple[Any, ...] = (function, args, kwargs)
        self._begun = False

    def begin(self) -> bool:
        """Mark it as running; False if it was cancelled before."""
        if not self._begun:
            self._begun = self.future.set_running_or_notify_cancel()
        return self._begun

    def pack(self) -> pickle_transport.PickledObject:
        """The function and its arguments. Raises what pickling raises, with a note."""
        try:
            return pickle_transport.pack(self._what)
        except Exception as error:
            error.add_note(
                f"sublet: the function or an argument of {self.name}() cannot be sent to a worker."
            )
            raise

    def answer(self, packet: pickle_transport.PicklePacket) -> None:
        """Set the result that has arrived."""
        try:
            result = pickle_transport.unpack(packet)
        except Exception as error:
            error.add_note(f"sublet: the result of {self.name}() cannot be read in this process.")
            self.fail(error)
            return
        self._what = ()
        self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Set the error, unless the call was cancelled."""
        self._what = ()
        if self.begin():
            self.future.set_exception(error)


class Chunk:
    """Several calls of one function that travel as one. The first error ends it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.func = function

    def __call__(self, rows: list[Row]) -> list[Any]:
        return [self.func(*row) for row in rows]


def chunks(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """The rows in lists of `size`; the last may be shorter."""
    rest = iter(rows)
    while chunk := list(itertools.islice(rest, size)):
        yield chunk


def failure(call: Call, report: dict[str, Any], ended: "Ended | None" = None) -> BaseException:
    """The error that a worker has reported, as this process can raise it."""
    name, kind, text = call.name, report["kind"], report["message"]
    error: BaseException | None = None
    if report["memory"]:
        error = _exceeded(name, ended, text)
    elif kind in ("SystemExit", "KeyboardInterrupt", "GeneratorExit"):
        # Raised here as they are, they would end this process, or be taken for its own.
        what = f"called sys.exit({text})" if kind == "SystemExit" else f"ended with {kind}"
        error = CallFailed(f"{name}() {what}.", "A function in a pool returns, or raises an error.")
    elif report["error"] is not None:
        try:
            error = pickle.loads(report["error"])
        except Exception:
            error = None
    if not isinstance(error, BaseException):
        error = RemoteError(f"{kind}: {text}", "This exception cannot be pickled.")
    if report["where"] == "result":
        error.add_note(f"sublet: the result of {name}() cannot be sent back.")
    elif report["where"] == "unpack":
        error.add_note(
            f"sublet: the worker could not read {name}() or its arguments. A function of a module"
            " needs that module on sys.path; one of the main program or of a notebook does not."
        )
    elif report["where"] == "initializer":
        error.add_note("sublet: it was raised by the pool's initializer.")
    error.__cause__ = RemoteTraceback(report["trace"])
    return error


def death(name: str, ended: "Ended") -> WorkerDied:
    """The error of a call whose worker ended before it answered."""
    outcome = ended.outcome
    if outcome.cause in ("lease exceeded", "device full"):
        return _exceeded(name, ended, outcome.message)
    code = outcome.code
    what = {
        "signalled": f"was killed by signal {code - 128}",
        "exited": f"ended with exit code {code}",
        "lost": "was lost",
    }.get(outcome.cause, f"was ended: {outcome.cause}")
    said = f" ({outcome.message})" if outcome.message else ""
    hint = {
        137: "Perhaps the machine ran out of memory: fewer workers or a smaller batch help.",
        139: "A segmentation fault comes from native code; `faulthandler` shows where.",
    }.get(code, f"`sublet ps {ended.job}` shows its job.")
    return WorkerDied(f"The worker of {name}() {what}{said}.", hint, code)


def name_of(function: Callable[..., Any]) -> str:
    """A short name of a function for people."""
    inner = getattr(function, "func", function)  # functools.partial
    name = getattr(inner, "__qualname__", None) or type(inner).__name__
    return str(name).replace("<locals>.", "")[:80]


def _squeezed_out(name: str, ended: "Ended", text: str) -> WorkerDied:
    outcome = ended.outcome
    others = [f"{one.name} {format_bytes(one.bytes)}" for one in outcome.tenants if not one.job]
    where = ended.lease.device if ended.lease is not None else "the device"
    message = (
        f"{name}() got no memory within its lease, as programs without one have taken {where}: "
        f"{', '.join(others) or 'they are gone by now'}. {_in_a_line(text)}"
    )
    return WorkerDied(message, "Call it again when they have ended.", outcome.code)


def _exceeded(name: str, ended: "Ended | None", text: str) -> WorkerDied:
    lease = ended.lease if ended is not None else None
    if ended is not None and ended.outcome.cause == "device full":
        return _squeezed_out(name, ended, text)
    had = f"its lease of {format_bytes(lease.ceiling)}" if lease is not None else "its lease"
    suggest = ended.suggest if ended is not None else None
    more = "more memory" if suggest is None else f'memory="{written_bytes(suggest)}"'
    hint = f'Try {more}, a smaller batch, or on_oom="grow".'
    code = ended.outcome.code if ended is not None else None
    message = f"{name}() needed more than {had}: {_in_a_line(text)}"
    return LeaseExceeded(message, hint, code, suggest)


def _in_a_line(text: str) -> str:
    """The gist of TensorFlow's message: no graph nodes before it, no dump after it."""
    line = re.sub(r"^(\{\{.*?\}\} )+", "", text.strip()).partition("\n")[0]
    line = line.partition(" on /job:")[0][:200]
    return line if line.endswith(".") else f"{line}."
