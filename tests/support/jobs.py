"""Records to test with: valid ones, of which a test names only what it is about."""

from hypothesis import strategies as st
from msgspec.structs import replace

from sublet.domain.device import Device, DeviceFacts, Holder
from sublet.domain.job import (
    Finished,
    Job,
    JobSpec,
    JobState,
    Outcome,
    Process,
    Program,
    Running,
    Starting,
    Surroundings,
    Tenant,
    Waiting,
)
from sublet.domain.lease import Lease
from sublet.domain.memory import Auto, Between, Exactly, Grow, MemoryAsk, Share
from sublet.units import GiB, MiB

CLIENT = Process(100, 1000)
KEEPER = Process(101, 1001)
WORKER = Process(102, 1002)


def device(name: str = "cpu", capacity: int = 2 * GiB) -> Device:
    """The CPU, or a GPU for any other name."""
    if name == "cpu":
        return Device("cpu", "cpu", "A CPU", capacity, None, None, "set for the test")
    return Device(name, "gpu", "A GPU", capacity, 0, f"GPU-{name}", "set for the test", (8, 6))


def facts(
    of: Device, used: int = 0, available: int | None = None, holders: tuple[Holder, ...] = ()
) -> DeviceFacts:
    """A device that is idle, as far as the test does not say otherwise."""
    left = of.capacity - used if available is None else available
    return DeviceFacts(of, used, left, holders)


def lease(on: str = "cpu", ceiling: int = 512 * MiB, outside: int = 128 * MiB) -> Lease:
    return Lease(on, ceiling, ceiling + outside, "as asked")


def job(
    number: int = 1,
    state: JobState | None = None,
    script: bytes = b"/home/someone/train.py",
    args: tuple[bytes, ...] = (),
    cwd: bytes = b"/home/someone",
    attempt: int = 1,
    least: int = 0,
) -> Job:
    """A job that waits, unless the test says otherwise."""
    return Job(
        id=number,
        token=f"token-{number}",
        spec=JobSpec(
            name="train.py",
            program=Program("script", script, args, (), b"/usr/bin/python3"),
            surroundings=Surroundings(cwd, {b"HOME": b"/home/someone"}, 0o22, 0, (0, 1), (), {}),
            memory=Auto(),
            client=CLIENT,
        ),
        submitted=1.0,
        state=Waiting(1.0) if state is None else state,
        attempt=attempt,
        least=least,
    )


def running(on: Lease, worker: Process = WORKER) -> Running:
    return Running(2.0, on, 1.0, 7.0, KEEPER, worker, "warm")


def kept(one: Job) -> Job:
    """The job as a ledger keeps it: one that has ended without its environment."""
    if not isinstance(one.state, Finished):
        return one
    return replace(one, spec=replace(one.spec, surroundings=one.spec.surroundings.forget()))


# Arbitrary ones.

numbers = st.integers(1, 2**40)
amounts = st.integers(0, 2**50)
moments = st.floats(0, 2e9)
# What a record can hold: text without lone surrogates.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
leases = st.builds(Lease, texts, amounts, amounts, texts, st.lists(st.integers(0, 256)).map(tuple))
processes = st.builds(Process, st.integers(1, 2**22), st.integers(0, 2**62))
asks: st.SearchStrategy[MemoryAsk] = st.one_of(
    st.builds(Exactly, st.integers(1, 40 * GiB), st.booleans()),
    st.builds(Share, st.floats(0.0001, 1.0), st.booleans()),
    st.tuples(st.integers(1, 40 * GiB), st.integers(1, 40 * GiB)).map(
        lambda ends: Between(min(ends), max(ends))
    ),
    st.builds(Grow),
    st.builds(Auto),
)
_words = st.lists(st.binary(max_size=30), max_size=4).map(tuple)
programs = st.builds(
    Program,
    st.sampled_from(["script", "module", "code", "command", "process"]),
    st.binary(min_size=1, max_size=60),
    _words,
    _words,
    st.binary(max_size=30),
)
surroundings = st.builds(
    Surroundings,
    cwd=st.binary(min_size=1, max_size=40),
    environ=st.dictionaries(st.binary(min_size=1, max_size=20), st.binary(max_size=40), max_size=5),
    umask=st.integers(0, 0o777),
    nice=st.integers(-20, 19),
    affinity=st.lists(st.integers(0, 255), unique=True, max_size=4).map(tuple),
    ignored=st.lists(st.integers(1, 64), unique=True, max_size=3).map(tuple),
    limits=st.dictionaries(
        st.integers(0, 15), st.tuples(st.integers(-1, 2**62), st.integers(-1, 2**62)), max_size=3
    ),
)
specs = st.builds(
    JobSpec,
    name=texts,
    program=programs,
    surroundings=surroundings,
    memory=asks,
    client=processes,
    device=st.none() | texts,
    cpus=st.none() | st.integers(1, 256),
    on_oom=st.sampled_from(["fail", "grow"]),
    cold=texts,
)
outcomes = st.builds(
    Outcome,
    cause=st.sampled_from(["exited", "signalled", "lease exceeded", "stopped", "lost"]),
    code=st.integers(0, 255),
    peak=st.none() | amounts,
    system_peak=st.none() | amounts,
    asked=st.none() | amounts,
    failures=st.integers(0, 1000),
    message=texts,
    tenants=st.lists(st.builds(Tenant, texts, amounts, st.none() | numbers), max_size=2).map(tuple),
    waited=moments,
    startup=st.none() | moments,
    ran=moments,
    tensorflow=st.booleans(),
)
live_states: st.SearchStrategy[JobState] = st.one_of(
    st.builds(Waiting, moments),
    st.builds(Starting, moments, leases, moments, moments),
    st.builds(Running, moments, leases, moments, moments, processes, processes, texts, texts),
)
states: st.SearchStrategy[JobState] = live_states | st.builds(
    Finished, moments, outcomes, st.none() | leases, texts
)


def jobs(number: int, of: st.SearchStrategy[JobState] = states) -> st.SearchStrategy[Job]:
    """Any job of this number."""
    attempts = st.integers(1, 50)
    return st.builds(Job, st.just(number), texts, specs, moments, of, attempts, amounts)
