"""What was asked for, and the states it goes through; each state carries exactly its own data."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from sublet.domain.lease import Lease
from sublet.domain.memory import MemoryAsk


class Process(Struct, frozen=True):
    """One process, told apart from a later one with the same number by its start time."""

    pid: int
    start: int
    """Clock ticks after boot, as the kernel counts them."""


class Program(Struct, frozen=True):
    """What to run. Text is kept as the bytes the operating system gave."""

    kind: Literal["script", "module", "code", "command"]
    target: bytes
    """The script's path, the module's name, the code, or the command itself."""
    args: tuple[bytes, ...] = ()
    flags: tuple[bytes, ...] = ()
    """Options of the interpreter, before the target."""
    python: bytes = b""
    """The interpreter; empty for a command that is not Python."""

    def argv(self) -> list[bytes]:
        """The command line that starts this program cold."""
        if self.kind == "command":
            return [self.target, *self.args]
        option = {"script": [], "module": [b"-m"], "code": [b"-c"]}[self.kind]
        return [self.python, *self.flags, *option, self.target, *self.args]


class Surroundings(Struct, frozen=True):
    """What a child inherits from the shell it is typed into."""

    cwd: bytes
    environ: dict[bytes, bytes]
    umask: int
    nice: int
    affinity: tuple[int, ...]
    ignored: tuple[int, ...]
    """Signals the client was told to ignore (nohup), ignored in the program too."""
    limits: dict[int, tuple[int, int]]
    """Resource limits by number: soft, hard."""


class JobSpec(Struct, frozen=True):
    """A job as it was asked for; never changes."""

    name: str
    program: Program
    surroundings: Surroundings
    memory: MemoryAsk
    client: Process
    """The job ends when this process does."""
    device: str | None = None
    cpus: int | None = None
    on_oom: Literal["fail", "grow"] = "fail"
    cold: str = ""
    """Why this job must not be started warm; empty if it may."""


class Tenant(Struct, frozen=True):
    """One who held memory on the device, for the story of an out-of-memory."""

    name: str
    bytes: int
    job: int | None = None


Cause = Literal["exited", "signalled", "lease exceeded", "stopped", "lost"]


class Outcome(Struct, frozen=True):
    """How an attempt ended. An ending is data, never an exception."""

    cause: Cause
    code: int
    """As a shell would say it: 0 to 255, 128 + n for signal n."""
    peak: int | None = None
    """The most that TensorFlow's allocator held."""
    system_peak: int | None = None
    """The most the whole process tree added to the machine (PSS)."""
    asked: int | None = None
    """The allocation that failed."""
    failures: int = 0
    message: str = ""
    tenants: tuple[Tenant, ...] = ()
    waited: float = 0.0
    startup: float | None = None
    """Seconds from the grant to the program's first line."""
    ran: float = 0.0
    tensorflow: bool = False
    """Whether TensorFlow's runtime was started in it."""


class Waiting(Struct, frozen=True, tag="waiting"):
    """Accepted, without a lease."""

    since: float


class Starting(Struct, frozen=True, tag="starting"):
    """Granted; the worker has been asked for and has not reported."""

    since: float
    lease: Lease
    waited: float
    tick: float
    """Monotonic seconds at the grant."""


class Running(Struct, frozen=True, tag="running"):
    """A worker runs under the lease."""

    since: float
    lease: Lease
    waited: float
    tick: float
    keeper: Process
    worker: Process
    how: str
    """`warm`, or `cold` and why."""
    stopping: str = ""
    """Why it was asked to stop; empty if it was not."""


class Finished(Struct, frozen=True, tag="finished"):
    """The exit was seen; the lease has ended."""

    at: float
    outcome: Outcome
    lease: Lease | None = None
    how: str = ""


JobState = Waiting | Starting | Running | Finished


class Job(Struct, frozen=True):
    """A job and its current attempt."""

    id: int
    token: str
    """Only who knows it may attach to the job."""
    spec: JobSpec
    submitted: float
    state: JobState
    attempt: int = 1
    least: int = 0
    """The smallest ceiling worth trying: smaller ones have failed."""

    def evolve(self, state: JobState) -> "Job":
        """The same attempt in another state."""
        return replace(self, state=state)

    def again(self, at: float, least: int = 0) -> "Job":
        """Waiting for another attempt, under a lease of at least so much."""
        return replace(
            self, state=Waiting(at), attempt=self.attempt + 1, least=max(least, self.least)
        )

    @property
    def run(self) -> str:
        """The name of the current attempt's directory."""
        return f"{self.id}.{self.attempt}"

    @property
    def lease(self) -> Lease | None:
        """The live lease; None when nothing is held."""
        return self.state.lease if isinstance(self.state, Starting | Running) else None
