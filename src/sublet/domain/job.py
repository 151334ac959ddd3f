"""Jobs, and the states they go through; each state carries exactly its own data."""

import os
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from sublet.domain.lease import Lease
from sublet.domain.memory import MemoryAsk


class Process(Struct, frozen=True):
    """One process, told apart from a later one with the same number by its start time."""

    pid: int
    start: int
    """Clock ticks after boot, as the kernel counts them."""


POOL_PROGRAM = b"sublet.inside.pool_worker"
"""The module that a pool's workers run."""


class Program(Struct, frozen=True):
    """What to run. Text is kept as the bytes the operating system gave."""

    kind: Literal["script", "module", "code", "command", "process"]
    """`process`: nothing is to be run; the client itself is to hold the lease."""
    target: bytes
    """The script's path, the module's name, the code, or the command itself."""
    args: tuple[bytes, ...] = ()
    flags: tuple[bytes, ...] = ()
    """Options of the interpreter, before the target."""
    python: bytes = b""
    """The interpreter; empty for a command that is not Python."""

    def argv(self) -> list[bytes]:
        """The command line that starts this program cold."""
        if self.kind in ("command", "process"):
            return [self.target, *self.args]
        option = {"script": [], "module": [b"-m"], "code": [b"-c"]}[self.kind]
        return [self.python, *self.flags, *option, self.target, *self.args]


class Surroundings(Struct, frozen=True, weakref=True):
    """What a child inherits from the shell it is typed into. Many jobs share one record."""

    cwd: bytes
    environ: dict[bytes, bytes]
    umask: int
    nice: int
    affinity: tuple[int, ...]
    ignored: tuple[int, ...]
    """Signals that the client ignores (nohup); the program does, too."""
    limits: dict[int, tuple[int, int]]
    """Resource limits by number: soft, hard."""
    closed: tuple[int, ...] = ()
    """Those of the descriptors 0 to 2 that are closed, as after `>&-`."""
    forgotten: tuple[bytes, ...] = ()
    """The names of the variables that `environ` had, once it is forgotten."""

    def forget(self) -> "Surroundings":
        """Without the environment: it holds keys and passwords, and a job that has ended needs
        none."""
        if not self.environ:
            return self
        return replace(self, environ={}, forgotten=tuple(self.environ))


class Task(Struct, frozen=True):
    """One element of an array of jobs."""

    array: int
    """The number of the array's first job."""
    index: int
    at_once: int = 0
    """So many of the array may run at a time; 0 means any number."""


Role = Literal["chief", "worker", "ps", "evaluator"]
"""What a task does in a tf.distribute cluster, in TensorFlow's words."""


class Gang(Struct, frozen=True):
    """The jobs of one tf.distribute cluster: their leases are granted all together or not at all.

    Their numbers are consecutive, in the order of `roles`.
    """

    first: int
    """The number of the first job; it names the gang, too."""
    roles: tuple[tuple[Role, int], ...]
    """How many tasks there are of each role."""
    at: int = 0
    """The place of this job among them."""
    client: Process | None = None
    """The gang ends when this process does; None if it waits and runs on its own."""
    stall: float = 60.0
    """Seconds that it may stand still before its tasks are looked into."""

    @property
    def role(self) -> Role:
        """The part of this job in the cluster: chief, worker, ps or evaluator."""
        return self.tasks[self.at][0]

    @property
    def index(self) -> int:
        """Its number among those of its role."""
        return self.tasks[self.at][1]

    @property
    def tasks(self) -> tuple[tuple[Role, int], ...]:
        """Role and index of each task, in the order of the jobs' numbers."""
        return tuple((role, index) for role, count in self.roles for index in range(count))

    @property
    def numbers(self) -> range:
        """The numbers of all jobs of the gang."""
        return range(self.first, self.first + sum(count for _, count in self.roles))


PORT_UNSEEN = "it was not seen to open its port, and so to take part in its cluster"
"""What is noted of a task that has ended well and alone."""

Priority = Literal["high", "normal", "low"]
Service = Literal["guaranteed", "opportunistic"]
OnOom = Literal["fail", "grow", "split", "split-exact"]
"""What is done about a program that runs out of memory: nothing, it is started again with more, or
its batches are split before it does, perhaps only where that gives the same."""


class JobSpec(Struct, frozen=True):
    """A job as it was asked for; never changes."""

    name: str
    program: Program
    surroundings: Surroundings
    memory: MemoryAsk
    client: Process | None = None
    """The job ends when this process does; None for a job that waits and runs on its own."""
    device: str | None = None
    """A name of the device, or a list of them with commas: it goes to any of these."""
    wished: bool = False
    """Whether that is what its environment's CUDA_VISIBLE_DEVICES says, and no option."""
    gpus: int | None = None
    """So many GPUs, with a lease on each; None for one device of any kind."""
    cpus: int | None = None
    on_oom: OnOom = "fail"
    cold: str = ""
    """Why this job must not be started warm; empty if it may."""
    priority: Priority = "normal"
    service: Service = "guaranteed"
    time: float | None = None
    """Seconds it may run; then SIGTERM, and SIGKILL `grace` seconds later."""
    grace: float = 10.0
    after: tuple[int, ...] = ()
    """Jobs that must have ended before it starts."""
    after_ok: tuple[int, ...] = ()
    """Jobs that must have ended well."""
    retries: int = 0
    """How often it is tried again after it has failed of itself."""
    requeue: bool = True
    """Whether it is started again after a preemption, a reboot, or its own exit code 42."""
    split: bool = False
    """Whether its two streams are logged apart."""
    task: Task | None = None
    within: int | None = None
    """The job out of whose lease this one's comes; None for one that comes out of a device. The
    broker fills it in: who asks can only show the lease it runs under."""
    leave_children: bool = False
    """Whether processes may go on that its program leaves behind; they are strangers then."""
    fence: str = ""
    """The directory of the fence that is to hold its program on a GPU, or why there is none; empty
    if none was asked for."""
    spread: bool = False
    """Whether it goes to the device with the most room instead of the one it fills best."""
    notify: str = ""
    """Who is told that it has ended (`sublet.notify`); empty for nobody."""
    gang: Gang | None = None
    """The cluster of which it is a task; None if it starts alone. The broker fills it in."""
    on: str = ""
    """The Ray cluster on whose nodes it runs, by its address; empty for this machine."""

    @property
    def identity(self) -> str:
        """What counts as the same program, whatever its arguments are."""
        target = self.program.target
        if not target.startswith(b"/"):
            target = self.surroundings.cwd + b"/" + target
        return f"{self.program.kind}:{target.decode(errors='replace')}"

    @property
    def script(self) -> str:
        """The path of the script that it runs; empty if it runs none."""
        if self.program.kind != "script":
            return ""
        path = os.path.join(self.surroundings.cwd, self.program.target)
        return path.decode(errors="replace")

    @property
    def is_pools(self) -> bool:
        """Whether it is a worker of a pool."""
        return self.program.target == POOL_PROGRAM

    @property
    def in_process(self) -> Process | None:
        """The process that is to hold the lease itself; None if a program is to be started."""
        return self.client if self.program.kind == "process" else None


class Tenant(Struct, frozen=True):
    """One who held memory on the device, for the story of an out-of-memory. Without a job it is a
    program that has no lease."""

    name: str
    bytes: int
    job: int | None = None


Cause = Literal[
    "exited",
    "signalled",
    "lease exceeded",
    "device full",
    "time limit",
    "preempted",
    "cancelled",
    "dependency",
    "stopped",
    "lost",
]


CANCELLED: Final = "cancelled"
"""The cause of an end by `sublet cancel`, and the reason of that stop."""


class UncaughtError(Struct, frozen=True):
    """The exception that has ended a program."""

    text: str
    """Its class and its message, as a traceback's last line has them."""
    file: str = ""
    line: int | None = None
    """Where in the program's own script it came through."""


class EventLog(Struct, frozen=True):
    """A directory that a process of a program wrote TensorBoard's event files to."""

    directory: str
    pid: int
    since: float
    """When it began to: wall seconds."""


class Outcome(Struct, frozen=True):
    """How an attempt ended. An ending is data, never an exception."""

    cause: Cause
    code: int
    """As a shell would say it: 0 to 255, 128 + n for signal n."""
    peak: int | None = None
    """The most that TensorFlow's allocators held, in all processes of the program at one time."""
    system_peak: int | None = None
    """The most the whole process tree added to the machine (PSS)."""
    outside: int | None = None
    """The most that its processes held of a GPU beside TensorFlow's pools."""
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
    left: tuple[str, ...] = ()
    """Processes that it left behind, and that were ended: names and numbers."""
    by_user: bool = False
    """Whether its user has ended it, by Ctrl-C for example: that is no failure."""
    unseen: bool = False
    """Whether nobody saw how it ended: it may have done all its work."""
    peaks: tuple[int, ...] = ()
    """The peak on each of several devices, of which `peak` is the most."""
    siblings: str = ""
    """When it ran out of memory: the other processes of the program, and what each could use."""
    error: UncaughtError | None = None
    """The exception that has ended it, if one has and it was seen."""
    event_logs: tuple[EventLog, ...] = ()
    """Where it wrote TensorBoard's event files, as far as that was seen."""


class Waiting(Struct, frozen=True, tag="waiting"):
    """The job was accepted and has no lease."""

    since: float
    tick: float = 0.0
    """Monotonic seconds at its beginning."""
    delay: float = 0.0
    """Seconds from then on in which it is not started."""
    why: str = ""
    """Why it waits again, after an attempt."""


class Starting(Struct, frozen=True, tag="starting"):
    """Granted; the worker has been asked for and has not reported."""

    since: float
    lease: Lease
    waited: float
    tick: float
    """Monotonic seconds at the grant."""
    stopping: str = ""
    """Why it is not wanted any more; empty if it is."""


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


class Paused(Struct, frozen=True, tag="paused"):
    """Not to go on for now. One that ran keeps its lease: its memory is still there."""

    since: float
    was: Waiting | Starting | Running


class Finished(Struct, frozen=True, tag="finished"):
    """The exit was seen; the lease has ended."""

    at: float
    outcome: Outcome
    lease: Lease | None = None
    how: str = ""


JobState = Waiting | Starting | Running | Paused | Finished


class Past(Struct, frozen=True):
    """An attempt that has ended, of a job that was tried again."""

    attempt: int
    at: float
    outcome: Outcome
    lease: Lease | None = None


class Again(Struct, frozen=True):
    """The terms on which a job is tried again."""

    why: str
    delay: float = 0.0
    least: int = 0
    """The smallest ceiling worth trying."""
    forgiven: bool = False
    """Whether the attempt that ended does not count as a failure of the job's own."""


MOST_PAST = 20
"""So many ended attempts of a job are remembered."""


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
    past: tuple[Past, ...] = ()
    failures: int = 0
    """How many attempts in a row have failed of themselves."""
    false_starts: int = 0
    """How many attempts in a row have ended before a line of the program ran."""

    def evolve(self, state: JobState) -> "Job":
        """The same attempt in another state."""
        return replace(self, state=state)

    def again(self, state: Waiting | Paused) -> "Job":
        """Before another attempt; this one has not run."""
        attempt, false_starts = self.attempt + 1, self.false_starts + 1
        return replace(self, state=state, attempt=attempt, false_starts=false_starts)

    def after(self, at: float, tick: float, outcome: Outcome, again: Again) -> "Job":
        """Waiting for another attempt after this one has ended so."""
        past = Past(self.attempt, at, outcome, self.lease)
        return replace(
            self,
            state=Waiting(at, tick, again.delay, again.why),
            attempt=self.attempt + 1,
            least=max(again.least, self.least),
            past=(*self.past, past)[-MOST_PAST:],
            failures=self.failures if again.forgiven else self.failures + 1,
            false_starts=0,
        )

    @property
    def name(self) -> str:
        """The job's name, as its user gave it or as its program is called."""
        return self.spec.name

    @property
    def attempt_id(self) -> str:
        """Names the current attempt, such as "13.1", and its directory."""
        return f"{self.id}.{self.attempt}"

    @property
    def lease_token(self) -> str:
        """The secret that only the processes of the current attempt have in their environment."""
        return f"{self.token}-{self.attempt}"

    @property
    def holds(self) -> Starting | Running | None:
        """The state in which it holds a lease, paused or not; None when it holds none."""
        state = self.state.was if isinstance(self.state, Paused) else self.state
        return state if isinstance(state, Starting | Running) else None

    @property
    def how(self) -> str:
        """How its worker was started; empty if none was."""
        held = self.holds or self.state
        return held.how if isinstance(held, Running | Finished) else ""

    @property
    def lease(self) -> Lease | None:
        """The live lease; None when nothing is held."""
        return None if (state := self.holds) is None else state.lease

    def lease_on(self, device: str) -> Lease | None:
        """The live lease on this device; None when nothing is held there."""
        return None if self.lease is None else self.lease.on(device)
