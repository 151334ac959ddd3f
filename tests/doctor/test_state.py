"""What is wrong with jobs and with what the broker sees."""

from typing import Any

import pytest

from sublet.doctor.reading import found_in
from sublet.domain.device import Device
from sublet.wire.messages import Snapshot
from sublet.wire.rows import DeviceRow, JobRow, LeaseRow, NurseryRow

GPU = Device("gpu0", "gpu", "Card", 8 << 30, 0, "GPU-a", "the driver")


def job(**fields: Any) -> JobRow:
    row = JobRow(7, "train.py", "finished", "", 1.0, 1, "7.1", "normal", "guaranteed", "auto")
    return JobRow(**{name: getattr(row, name) for name in JobRow.__struct_fields__} | fields)


def snapshot(**fields: Any) -> Snapshot:
    known: dict[str, Any] = {
        "version": "1",
        "pid": 1,
        "home": "/",
        "up": 1.0,
        "driver": "no driver",
        "devices": (),
        "leases": (),
        "waiting": (),
        "nurseries": (),
    }
    return Snapshot(**known | fields)


@pytest.mark.parametrize(
    ("rule", "fields"),
    [
        ("job-out-of-memory", {"cause": "lease exceeded", "code": 1, "reason": "out of memory"}),
        ("job-out-of-memory", {"cause": "device full", "code": 1}),
        ("job-killed", {"cause": "signalled", "code": 137}),
        ("job-killed", {"cause": "signalled", "code": 134}),
        ("job-killed", {"cause": "signalled", "code": 139}),
        ("job-lost", {"cause": "time limit", "code": 143}),
        ("job-waits", {"state": "waiting", "reason": "#3 has the memory"}),
        ("job-preempted", {"cause": "exited", "code": 42}),
    ],
)
def test_a_job_that_failed_is_told_by_the_brokers_verdict(
    rule: str, fields: dict[str, Any]
) -> None:
    (found,) = found_in("job", job(**fields))
    assert found.rule == rule
    assert "#7 train.py" in found.sentence
    assert fields.get("reason", "") in found.sentence


@pytest.mark.parametrize(
    "fields",
    [
        {"cause": "exited", "code": 0},
        {"cause": "exited", "code": 1},
        {"cause": "signalled", "code": 130, "by_user": True},
        {"cause": "signalled", "code": 143},
        {"cause": "cancelled", "code": 143},
        {"state": "running"},
    ],
)
def test_other_jobs_are_told_nothing(fields: dict[str, Any]) -> None:
    assert found_in("job", job(**fields)) == []


def test_faults_that_the_broker_knows_are_findings() -> None:
    lease = LeaseRow(
        job=3,
        attempt=1,
        name="a.py",
        state="running",
        device="gpu0",
        ceiling=1,
        charge=1,
        now=2,
        peak=2,
        since=1.0,
        pid=9,
        how="warm",
        basis="",
        over=True,
    )
    seen = snapshot(
        devices=(
            DeviceRow(GPU, 0, 0, 0, 0, fault="the driver has lost it"),
            DeviceRow(GPU, 0, 0, 0, 0, note="it does not say who holds what"),
        ),
        leases=(lease,),
        nurseries=(NurseryRow("/bin/python", "off: no room", None, "", 0),),
    )
    found = {one.rule: one.sentence for one in found_in("broker", seen)}
    assert set(found) == {
        *("device-unusable", "processes-not-shown", "lease-overrun", "nursery-off")
    }
    assert "the driver has lost it" in found["device-unusable"]
    assert "no room" in found["nursery-off"]


def test_a_broker_without_faults_is_told_nothing() -> None:
    seen = snapshot(
        devices=(DeviceRow(GPU, 0, 0, 0, 0),),
        nurseries=(NurseryRow("/bin/python", "warm", 1, "2.21", 0),),
    )
    assert found_in("broker", seen) == []
