"""How long it takes from the start of a program to its first TensorFlow operation."""

from bench import figures
from bench.driver import drive
from bench.processes import Failed
from bench.report import Bar, Result, Table
from bench.ways import BY_KEY

_WAYS = ("plain", "sublet-command", "sublet-call", "fork", "forkserver")
_ROUNDS = 5


def measure(quick: bool) -> Result:
    """Each way alone, one program after another; in rounds: a slow minute meets them all."""
    samples: dict[str, tuple[float, ...]] = {}
    failures = []
    for _ in range(1 if quick else _ROUNDS):
        for key in _WAYS:
            count = 1 if key == "plain" else 5
            try:
                # The first is not counted: it may find files that are not in memory yet.
                first_ops = drive(key, "first_op", count + 1, width=1).first_ops[1:]
                samples[key] = samples.get(key, ()) + first_ops
            except Failed as trouble:
                failures.append(f"{BY_KEY[key].title}: {trouble}")
    return result(samples, tuple(failures))


def result(samples: dict[str, tuple[float, ...]], failures: tuple[str, ...] = ()) -> Result:
    """The table and the bars for these samples."""
    cold = figures.median(samples["plain"]) if "plain" in samples else None
    rows = []
    for key, values in samples.items():
        middle = figures.median(values)
        rows.append(
            (
                BY_KEY[key].title,
                str(len(values)),
                figures.seconds(min(values)),
                figures.seconds(middle),
                figures.seconds(max(values)),
                figures.times(cold / middle) if cold else "–",
            )
        )
    table = Table(
        "start → first TensorFlow operation",
        ("way", "runs", "least", "median", "most", "sooner"),
        tuple(rows),
        (
            "The nursery, the forked process and the fork server are warm. sublet.run() asks"
            " through the socket from a Python process that runs already; `sublet run` starts its"
            " own interpreter first.",
        ),
    )
    bars = []
    for key, limit in (("sublet-command", 20.0), ("sublet-call", 50.0)):
        if cold and key in samples:
            sooner = cold / figures.median(samples[key])
            bars.append(Bar(f"{BY_KEY[key].title}, sooner than cold", sooner, limit, "at least"))
    return Result("startup", (table,), tuple(bars), samples, failures)
