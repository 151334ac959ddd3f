"""Metrics as families of samples, with Prometheus' rules for names: base units, counters that end
with `_total`, and labels with few values. No job and no model is named."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sublet import __version__
from sublet.exposition import histogram, labels, scalars
from sublet.wire.metrics import WAIT_BOUNDS, Metrics

Samples = Mapping[str, float]
"""By labels."""
Family = tuple[str, str, str, Samples]
"""Name, kind, help and samples."""

_NURSERY_STATES = ("warm", "warming up", "off")


class Process(NamedTuple):
    """What a process takes of the machine."""

    seconds: float
    """Of processor time."""
    memory: int
    """Bytes in main memory."""


def exposition(metrics: Metrics | None, broker: Process | None = None) -> str:
    """The text that Prometheus reads; without metrics, that no broker runs."""
    families = [_build(metrics), _up(metrics)]
    lines = [line for name, kind, text, of in families for line in scalars(name, kind, of, text)]
    if metrics is not None:
        for name, kind, text, samples in (
            *_broker(metrics, broker),
            *_devices(metrics),
            *_jobs(metrics),
            *_counters(metrics),
        ):
            lines += scalars(name, kind, samples, text)
        text = "Seconds that jobs waited for a lease."
        waits = {"": metrics.counts.waits}
        lines += histogram("sublet_lease_wait_seconds", WAIT_BOUNDS, waits, text)
    return "\n".join(lines) + "\n"


def _build(metrics: Metrics | None) -> Family:
    version = metrics.version if metrics is not None else __version__
    text = "The version of Sublet."
    return "sublet_build_info", "gauge", text, {labels(version=version): 1}


def _up(metrics: Metrics | None) -> Family:
    text = "Whether a broker runs: it ends with `sublet down`, programs go on without it."
    return "sublet_broker_up", "gauge", text, {"": int(metrics is not None)}


def _broker(metrics: Metrics, process: Process | None) -> list[Family]:
    text = "When the broker began, in seconds since 1970; counters go on from the one before."
    families: list[Family] = [
        ("sublet_broker_start_time_seconds", "gauge", text, {"": metrics.began}),
        (
            "sublet_nurseries",
            "gauge",
            "Warm processes that start programs, by state.",
            {labels(state=_word(one)): metrics.nurseries.get(one, 0) for one in _NURSERY_STATES},
        ),
    ]
    if process is not None:
        text = "Processor seconds of the broker itself."
        families.append(("sublet_broker_cpu_seconds_total", "counter", text, {"": process.seconds}))
        text = "Main memory of the broker itself."
        families.append(
            ("sublet_broker_resident_memory_bytes", "gauge", text, {"": process.memory})
        )
    return families


def _devices(metrics: Metrics) -> list[Family]:
    rows = {labels(device=row.device.id): row for row in metrics.devices}

    def of(what: str, text: str, amounts: Samples) -> Family:
        return f"sublet_device_{what}", "gauge", text, amounts

    return [
        of(
            "memory_bytes",
            "Memory of a device.",
            {at: row.device.capacity for at, row in rows.items()},
        ),
        of(
            "leased_bytes",
            "Memory that is charged to leases: their ceilings, and what processes cost beside.",
            {at: row.leased for at, row in rows.items()},
        ),
        of(
            "used_bytes",
            "Memory that programs with leases hold.",
            {at: row.used for at, row in rows.items()},
        ),
        of(
            "others_bytes",
            "Memory that programs without a lease hold.",
            {at: row.strangers for at, row in rows.items()},
        ),
        of(
            "nursery_bytes",
            "Memory of the warm processes that start programs.",
            {at: row.standing for at, row in rows.items()},
        ),
        of(
            "free_bytes",
            "Memory that can be leased.",
            {at: row.free for at, row in rows.items()},
        ),
        of(
            "usable",
            "Whether a device can be used.",
            {at: int(row.fault is None) for at, row in rows.items()},
        ),
    ]


def _jobs(metrics: Metrics) -> list[Family]:
    states = {labels(state=state): count for state, count in metrics.jobs.items()}
    return [
        ("sublet_jobs", "gauge", "Jobs that have not ended, by state.", states),
        (
            "sublet_longest_wait_seconds",
            "gauge",
            "How long the job has waited that waits longest.",
            {"": metrics.longest_wait},
        ),
    ]


def _counters(metrics: Metrics) -> list[Family]:
    counts = metrics.counts

    def of(name: str, text: str, amounts: Samples) -> Family:
        return f"sublet_{name}_total", "counter", text, amounts

    def by(label: str, amounts: Iterable[tuple[str, int]]) -> Samples:
        return {labels(**{label: value}): amount for value, amount in amounts}

    finished, ended = counts.finished.items(), counts.attempts.items()
    return [
        of("jobs_submitted", "Jobs that were accepted.", {"": counts.submitted}),
        of("jobs_finished", "Jobs that have finished, by how.", by("outcome", finished)),
        of("attempts_ended", "Attempts that have ended, by how.", by("outcome", ended)),
        of("attempts_started", "Programs that were started.", by("start", counts.starts.items())),
        of("attempts_failed_to_start", "Attempts of which no line ran.", {"": counts.false_starts}),
        of("attempt_run_seconds", "Seconds that attempts ran.", {"": counts.ran}),
        of("job_retries", "Attempts after which a job was queued again.", {"": counts.retries}),
        of("leases_granted", "Leases that were granted.", {"": counts.granted}),
        of(
            "leases_resized", "Leases that grew or shrank.", by("direction", counts.resized.items())
        ),
    ]


def _word(state: str) -> str:
    return state.replace(" ", "_")
