"""One call: the function, its arguments, and the future that waits for its result."""

import pickle
import re
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from sublet.errors import CallFailed, LeaseExceeded, RemoteError, WorkerDied
from sublet.formats import pickle_transport
from sublet.units import format_bytes

if TYPE_CHECKING:
    from sublet.wire.messages import Ended


class RemoteTraceback(Exception):
    """Where the function failed, as its worker saw it: the cause of the error that is raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


class Call:
    """What was submitted. Only the seat that has taken it settles its future."""

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
        """What it asks for itself; None for the pool's terms."""
        self.future: Future[Any] = Future()
        self._what: tuple[Any, ...] = (function, args, kwargs)
        self._begun = False

    def begin(self) -> bool:
        """From here on it cannot be cancelled; False if it was."""
        if not self._begun:
            self._begun = self.future.set_running_or_notify_cancel()
        return self._begun

    def pack(self) -> pickle_transport.PickledObject:
        """What its worker needs. Raises what pickling raises, with a word about it."""
        try:
            return pickle_transport.pack(self._what)
        except Exception as error:
            error.add_note(
                f"sublet: the function or an argument of {self.name}() cannot be sent to a worker."
            )
            raise

    def answer(self, packet: pickle_transport.PicklePacket) -> None:
        """The result has come."""
        try:
            result = pickle_transport.unpack(packet)
        except Exception as error:
            error.add_note(f"sublet: the result of {self.name}() cannot be read in this process.")
            self.fail(error)
            return
        self._what = ()
        self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """It will have no result; a call that was cancelled meanwhile stays so."""
        self._what = ()
        if self.begin():
            self.future.set_exception(error)


def failure(call: Call, told: dict[str, Any], ended: "Ended | None" = None) -> BaseException:
    """The error that a worker has told of, as this process can raise it."""
    name, kind, text = call.name, told["kind"], told["message"]
    error: BaseException | None = None
    if told["memory"]:
        error = _exceeded(name, ended, text)
    elif kind in ("SystemExit", "KeyboardInterrupt", "GeneratorExit"):
        # Raised here as they are, they would end this process, or be taken for its own.
        what = f"called sys.exit({text})" if kind == "SystemExit" else f"ended with {kind}"
        error = CallFailed(f"{name}() {what}.", "A function in a pool returns, or raises an error.")
    elif told["error"] is not None:
        try:
            error = pickle.loads(told["error"])
        except Exception:
            error = None
    if not isinstance(error, BaseException):
        error = RemoteError(f"{kind}: {text}", "This error has no form that can be sent.")
    if told["where"] == "result":
        error.add_note(f"sublet: the result of {name}() cannot be sent back.")
    elif told["where"] == "unpack":
        error.add_note(
            f"sublet: the worker could not read {name}() or its arguments. A function of a module"
            " needs that module on sys.path; one of the main program or of a notebook does not."
        )
    elif told["where"] == "initializer":
        error.add_note("sublet: it was raised by the pool's initializer.")
    error.__cause__ = RemoteTraceback(told["trace"])
    return error


def death(name: str, ended: "Ended") -> WorkerDied:
    """The error for a call whose worker has ended before it answered."""
    outcome = ended.outcome
    if outcome.cause == "lease exceeded":
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
    """What people call a function, in a word or two."""
    inner = getattr(function, "func", function)  # functools.partial
    name = getattr(inner, "__qualname__", None) or type(inner).__name__
    return str(name).replace("<locals>.", "")[:80]


def _exceeded(name: str, ended: "Ended | None", text: str) -> LeaseExceeded:
    lease = ended.lease if ended is not None else None
    had = f"its lease of {format_bytes(lease.ceiling)}" if lease is not None else "its lease"
    suggest = ended.suggest if ended is not None else None
    more = "more memory" if suggest is None else f"memory={suggest} ({format_bytes(suggest)})"
    hint = f'Try {more}, a smaller batch, or on_oom="grow".'
    code = ended.outcome.code if ended is not None else None
    message = f"{name}() needed more than {had}: {_in_a_line(text)}"
    return LeaseExceeded(message, hint, code, suggest)


def _in_a_line(text: str) -> str:
    """The gist of TensorFlow's message: no graph nodes before it, no dump after it."""
    line = re.sub(r"^(\{\{.*?\}\} )+", "", text.strip()).partition("\n")[0]
    line = line.partition(" on /job:")[0][:200]
    return line if line.endswith(".") else f"{line}."
