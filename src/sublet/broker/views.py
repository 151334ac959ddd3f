"""The broker's knowledge as rows, for people and programs that look."""

from sublet.backends.local.nurseries import Nursery
from sublet.broker.rooms import Sample, in_use
from sublet.domain.device import DeviceFacts
from sublet.domain.job import Job, Running, Starting, Waiting
from sublet.home import Home
from sublet.inside.measure import read_boards
from sublet.policy.rooms import Room
from sublet.wire.messages import DeviceRow, LeaseRow, NurseryRow, WaitingRow


def device_rows(rooms: tuple[Room, ...]) -> tuple[DeviceRow, ...]:
    """How full each device is."""
    return tuple(
        DeviceRow(
            device=room.device,
            leased=sum(one.charge for one in room.holdings),
            strangers=room.strangers,
            standing=room.standing,
            free=max(0, room.free),
        )
        for room in rooms
    )


def lease_rows(
    holding: list[Job], facts: dict[str, DeviceFacts], samples: dict[str, Sample], home: Home
) -> tuple[LeaseRow, ...]:
    """Who holds what."""
    return tuple(_lease_row(job, facts, samples, home) for job in holding)


def waiting_rows(waiting: list[Job], told: dict[int, str]) -> tuple[WaitingRow, ...]:
    """Who waits for what."""
    return tuple(
        WaitingRow(
            job=job.id,
            name=job.spec.name,
            memory=str(job.spec.memory),
            device=job.spec.device,
            since=job.state.since,
            reason=told.get(job.id, "it has just come"),
        )
        for job in waiting
        if isinstance(job.state, Waiting)
    )


def nursery_rows(nurseries: list[Nursery]) -> tuple[NurseryRow, ...]:
    """The warm processes, and why one is not."""
    return tuple(
        NurseryRow(
            python=nursery.key.python,
            state=f"off: {nursery.why}" if nursery.state == "off" else nursery.state,
            pid=None if nursery.state == "off" else nursery.pid,
            tensorflow=nursery.tensorflow,
            holds=nursery.holds,
        )
        for nursery in nurseries
    )


def _lease_row(
    job: Job, facts: dict[str, DeviceFacts], samples: dict[str, Sample], home: Home
) -> LeaseRow:
    state = job.state
    assert isinstance(state, Starting | Running)
    lease = state.lease
    fact = facts.get(lease.device)
    held = in_use(job, fact, samples) if fact is not None else None
    boards = read_boards(str(home.runs / job.run))
    running = state if isinstance(state, Running) else None
    return LeaseRow(
        job=job.id,
        attempt=job.attempt,
        name=job.spec.name,
        state="stopping" if running and running.stopping else type(state).__name__.lower(),
        device=lease.device,
        ceiling=lease.ceiling,
        charge=lease.charge,
        now=sum(board.current for board in boards) if boards else None,
        peak=sum(board.peak for board in boards) if boards else None,
        since=state.since,
        pid=running.worker.pid if running else None,
        how=running.how if running else "starting",
        basis=lease.basis,
        over=held is not None and held > lease.charge,
    )
