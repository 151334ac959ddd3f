"""`sublet.lease`: a lease for the process that asks, before TensorFlow starts in it.

    not held ──asked──▶ waiting ──Offered, claim──▶ held, to the end of the process
       ▲                   │ Ctrl-C, timeout          │ release, while TensorFlow has not started
       └───────────────────┴──────────────────────────┘

The claim in the attempt's directory decides who has the lease, so nothing depends on the connection
once it is made: the broker may die, and the next one finds the process by its pid and start time.
"""

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct

from sublet.client.connection import connect
from sublet.client.job_request import shown
from sublet.client.lease_request import PATIENCE, LeaseRequest, in_notebook
from sublet.client.program import surroundings, this_process
from sublet.domain.memory_option import read_memory
from sublet.errors import BadRequest, WorldError
from sublet.formats import attempt_files
from sublet.formats.lease import LeaseTerms
from sublet.formats.lease_environment import VISIBLE
from sublet.home import Home
from sublet.inside import current_lease, in_process_lease
from sublet.units import format_bytes
from sublet.wire.messages import GiveBack

if TYPE_CHECKING:
    from sublet.domain.job_fields import JobFields
    from sublet.wire.pack import Tree

_FIRST = "Restart the kernel (or the program), and call `sublet.lease` before anything else."


class Lease(Struct, frozen=True):
    """The lease of this process. It ends with the process, not with this object.

    TensorFlow gives memory back only when its process ends, so `with sublet.lease(...)` is refused.
    """

    memory: int
    """The ceiling in bytes: TensorFlow's allocator gives no more."""
    device: str
    job: int
    """Its number in `sublet status` and `sublet ps`."""
    name: str

    def __repr__(self) -> str:
        state = ", given back" if self.job in _given_back else ""
        size = format_bytes(self.memory)
        return f"<sublet.Lease {size} on {self.device}, #{self.job} {self.name}{state}>"

    def _repr_html_(self) -> str:
        from sublet.views.table import Column, to_html

        state = "given back" if self.job in _given_back else "held"
        row = [format_bytes(self.memory), self.device, f"#{self.job} {self.name}", state]
        return to_html([Column(title) for title in ("lease", "on", "job", "state")], [row])

    def __enter__(self) -> NoReturn:
        with contextlib.suppress(BadRequest):
            self.release()
        raise BadRequest(
            "A lease lasts until its process ends, and not for a `with` block.",
            'Write `sublet.lease("2GiB")` on a line of its own. For a part of a program there is '
            "`sublet.Pool`: its workers end, and their memory with them.",
        )

    def __exit__(self, *_: object) -> None: ...

    def release(self) -> None:
        """Give the lease back; only before TensorFlow starts. Afterwards, end the process."""
        with _lock:
            if _held is None or _held.lease is not self or _held.pid != os.getpid():
                raise BadRequest(
                    f"{self!r} is not this process's own to give back.",
                    "It ends with the process that holds it.",
                )
            if why := in_process_lease.too_late():
                raise BadRequest(
                    f"{why}, and gives no memory back before the process ends.",
                    "Restart the kernel or end the program; the lease ends with it.",
                )
            _give_back()


class _Held:
    """What this process holds, and what it had asked for."""

    def __init__(self, lease: Lease, terms: LeaseTerms, token: str, asked: "Tree", home: Home):
        self.lease = lease
        self.terms = terms
        self.token = token
        self.asked = asked
        self.home = home
        self.pid = os.getpid()


_held: _Held | None = None
_given_back: set[int] = set()
"""The jobs of leases that this process has given back."""
_lock = threading.Lock()


def _after_fork() -> None:
    """Make a new lock: a thread of the parent may hold the old one."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def lease(
    memory: str = "auto",
    *,
    device: str | None = None,
    cpus: int | None = None,
    name: str | None = None,
    timeout: float | None = None,
) -> Lease:
    """Hold a lease in this process: `sublet.lease("2GiB")`, before TensorFlow starts.

    Waits until there is room; after `timeout` seconds it raises TimedOut, a TimeoutError. The other
    options are those of `sublet run`. Called again for the same memory, it returns the same lease;
    in a program that Sublet has started, the lease of that program.
    """
    if timeout is not None and not timeout >= 0:
        raise BadRequest(f"timeout={timeout!r}: it is 0 or more.", "Leave it out to wait.")
    asked: Tree = {"memory": read_memory(memory), "device": device}
    if _held is not None and _held.pid != os.getpid():
        raise BadRequest(
            f"This process was forked from {_held.pid}, which holds {_held.lease!r} for itself.",
            "Start it fresh instead: multiprocessing's `spawn`, or `sublet.run`.",
        )
    with _lock:
        if _held is not None:
            return _same(_held, asked)
        if (outer := _outer()) is not None:
            return _within(outer, asked)
        if why := in_process_lease.too_late():
            raise BadRequest(f"{why}: it is too late for a lease.", _FIRST)
        return _ask(asked, cpus, name, timeout)


def _same(held: _Held, asked: "Tree") -> Lease:
    """The lease that this process has, if that is what it asks for."""
    terms = held.terms
    known = asked["device"] in (None, terms.device, terms.kind, terms.uuid)
    if known and asked["memory"] in (held.asked["memory"], {"type": "auto"}):
        return held.lease
    raise BadRequest(
        f"This process holds {held.lease!r} already, and can have only one.",
        "Restart the kernel to ask for another, or `.release()` it before TensorFlow starts.",
    )


def _outer() -> LeaseTerms | None:
    """The lease under which this process was started; None if there is none, or it has ended."""
    outer = current_lease.current()
    return outer if outer is not None and os.path.isdir(outer.dir) else None


def _within(outer: LeaseTerms, asked: "Tree") -> Lease:
    """The lease of the program around us, if that is enough: leases nest, they do not add."""
    memory = asked["memory"]
    wanted = memory.get("bytes", int(memory.get("share", 0) * outer.capacity))
    what = f"This process runs under the lease of job #{outer.job}: "
    what += f"{format_bytes(outer.ceiling)} on {outer.device}"
    if asked["device"] not in (None, outer.device, outer.kind, outer.uuid):
        raise BadRequest(f"{what}, not {asked['device']}.", "Start the program on that device.")
    if wanted > outer.ceiling:
        raise BadRequest(
            f"{what}, less than the {format_bytes(wanted)} it asks for.",
            "Start the program with more: `sublet run --memory`. Leases nest, they do not add.",
        )
    return Lease(outer.ceiling, outer.device, outer.job, "(of the program around it)")


def _ask(asked: "Tree", cpus: int | None, name: str | None, timeout: float | None) -> Lease:
    global _held
    path, args = _program()
    name = name or os.path.basename(path) or path
    spec: JobFields = {
        "name": shown(name),
        "program": {"kind": "process", "target": os.fsencode(path), "args": args},
        # Nothing will be started, so nothing else needs the environment.
        "surroundings": surroundings() | {"environ": _wish()},
        "memory": asked["memory"],
        "device": asked["device"],
        "client": this_process(),
        "cpus": cpus,
        "cold": "it runs already",
    }
    request = LeaseRequest(spec, Home.find(), timeout)
    try:
        while _held is None:
            terms, granted = request.wait()
            mine = Lease(terms.ceiling, terms.device, terms.job, spec["name"])
            # Before the claim: a Ctrl-C right after it must find what there is to give back.
            _held = _Held(mine, terms, request.token, asked, request.home)
            if not _claim(terms):
                _held = None
        in_process_lease.take(terms, granted.cpus)
        if why := in_process_lease.too_late():
            raise BadRequest(f"{why} while it waited for a lease.", _FIRST)
        request.settle()
    except BaseException:
        if _held is not None:
            _give_back()
        raise
    finally:
        request.close()
    return _held.lease


def _wish() -> dict[bytes, bytes]:
    """The part of the environment that says which devices the user wants."""
    asked = os.environ.get(VISIBLE)
    return {} if asked is None else {VISIBLE.encode(): os.fsencode(asked)}


def _give_back() -> None:
    """Record that the lease is given back, then tell the broker, if there is one."""
    global _held
    assert _held is not None
    held, _held = _held, None
    _given_back.add(held.lease.job)
    in_process_lease.leave(held.terms)
    record = {"status": 0, "note": "given back before TensorFlow started"}
    with contextlib.suppress(OSError):
        attempt_files.write(held.terms.dir, "exit.json", record, sync=True)
    with contextlib.suppress(OSError, WorldError):
        connection = connect(held.home)
        if connection is not None:
            connection.frames.sock.settimeout(PATIENCE)
            connection.send(GiveBack(held.terms.job, held.token))
            connection.receive()
            connection.close()


def _claim(terms: LeaseTerms) -> bool:
    """Claim the offered lease; False if the broker has withdrawn it."""
    try:
        return attempt_files.claim(terms.dir, {**this_process()})
    except FileNotFoundError:
        return False
    except OSError as error:
        raise WorldError(
            f"The lease could not be taken: {error.strerror}: {terms.dir}.",
            "Free some space there, and restart the kernel or the program.",
        ) from error


def _program() -> tuple[str, tuple[bytes, ...]]:
    """This process as a path and arguments: what people see, and what its measurements are
    kept under."""
    main = sys.modules.get("__main__")
    if (notebook := getattr(main, "__vsc_ipynb_file__", None)) is not None:
        return str(notebook), ()
    if in_notebook():
        # Jupyter's server names the notebook in the environment of its kernel.
        return os.environ.get("JPY_SESSION_NAME") or "notebook", ()
    if (file := getattr(main, "__file__", None)) is not None:
        return os.path.abspath(file), tuple(os.fsencode(word) for word in sys.argv[1:])
    return "python", ()
