"""`sublet replay`: a job trace under the admission policy and others, on a virtual clock."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sublet.cli import load_options
from sublet.cli.terminal_text import print_json
from sublet.errors import BadRequest
from sublet.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from sublet.tools.replay.trace import Row

_POLICIES = ("one", "slots2", "slots4", "best", "greedy", "ours")
_CONTENTION = ("none", "drawn", "full")


def _several(allowed: tuple[str, ...]) -> Callable[..., tuple[str, ...]]:
    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
        if value is None:
            return allowed
        names = tuple(name.strip() for name in value.split(","))
        for name in names:
            if name not in allowed:
                raise click.BadParameter(f"{name!r} is none of {', '.join(allowed)}")
        return names

    return read


@click.command("replay")
@click.argument("trace", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--cluster",
    help="Virtual cluster of the trace, or `all`. Default: the largest whose load is at most 2.",
)
@click.option("--nodes", type=click.IntRange(1, 10_000), default=1, show_default=True)
@click.option(
    "--devices", type=click.IntRange(1, 10_000), default=1, show_default=True, help="On each node."
)
@click.option("--capacity", default="16GiB", show_default=True, help="Memory of each device.")
@click.option(
    "--memory-seed",
    type=int,
    default=1,
    show_default=True,
    help="Seed for what the trace does not say: memory, and how busy a job keeps its device.",
)
@click.option("--limit", type=click.IntRange(1), help="Use only the first N jobs.")
@click.option(
    "--compress",
    type=click.FloatRange(0, min_open=True),
    help="Divide the time between submissions by this; durations stay.",
)
@click.option(
    "--load",
    type=click.FloatRange(0, min_open=True),
    help="Scale the times between submissions so that each device has this load.",
)
@click.option(
    "--policies",
    callback=_several(_POLICIES),
    help=f"Default: {','.join(_POLICIES)}.",
)
@click.option(
    "--contention",
    callback=_several(_CONTENTION),
    help=f"How jobs on one device slow each other down. Default: {','.join(_CONTENTION)}.",
)
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a plot to this SVG file."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    trace: Path,
    cluster: str | None,
    nodes: int,
    devices: int,
    capacity: str,
    memory_seed: int,
    limit: int | None,
    compress: float | None,
    load: float | None,
    policies: tuple[str, ...],
    contention: tuple[str, ...],
    plot: Path | None,
    as_json: bool,
) -> int:
    """Simulate a job trace under Sublet's queue policy and under simpler ones.

    TRACE is a CSV file with the columns submit,duration,memory[,gpus,priority] (seconds, seconds,
    an amount such as 6GiB or a share such as 40%), or one of Philly's. Jobs for several GPUs are
    left out. Nothing is started.
    """
    from sublet.policy.admission import Rules
    from sublet.tools.replay import trace as traces
    from sublet.tools.replay.comparison import compare
    from sublet.tools.replay.drawing import draw
    from sublet.tools.replay.tables import render

    if compress is not None and load is not None:
        raise click.UsageError("--compress and --load cannot both be given.")
    size = parse_bytes(capacity)
    each, devices = devices, nodes * devices
    everything = traces.read(trace)
    rows, name = _chosen(everything, cluster, devices)
    left_out = sum(row.gpus > 1 and name in ("all", row.cluster) for row in everything)
    rows = rows[:limit]
    natural = traces.load(rows) / devices
    factor = compress or (load / natural if load else 1.0)
    if not 0 < factor < float("inf"):
        raise BadRequest("All jobs come at once: there is no load to set.", "Leave --load out.")
    jobs = traces.jobs(rows, size, factor, memory_seed)
    progress = load_options.Progress()

    def show(what: str, done: int) -> None:
        if done * 100 // len(jobs) > (done - 1) * 100 // len(jobs):
            progress.show(f"{what}: {done / len(jobs):.0%}")

    figures = compare(jobs, devices, size, policies, contention, Rules(), show)
    progress.clear()
    about = {
        "trace": trace.name,
        "cluster": name,
        "jobs": len(jobs),
        "left_out": left_out,
        "nodes": nodes,
        "devices": devices,
        "capacity": size,
        "memory": "drawn" if rows[0].memory is None else "of the trace",
        "seed": memory_seed,
        "compress": factor,
        "load": natural * factor,
    }
    title = _title(about, each)
    if plot is not None:
        load_options.write(plot, draw(figures, title))
    if as_json:
        print_json({**about, "figures": figures}, indent=2)
        return 0
    click.echo(title)
    click.echo(_rest(about) + "\n")
    click.echo(render(figures))
    return 0


def _chosen(rows: "list[Row]", cluster: str | None, devices: int) -> "tuple[list[Row], str]":
    from sublet.tools.replay import trace as traces

    found = traces.clusters(rows)
    name = traces.usual_cluster(rows, devices) if cluster is None else cluster
    if name == "all":
        return [row for row in rows if row.gpus == 1], name
    if name not in found:
        known = ", ".join([*found][:8])
        raise BadRequest(f"The trace has no cluster {name!r}.", f"It has: all, {known} …")
    return found[name], name


def _title(about: dict[str, object], each: int) -> str:
    nodes, cluster = about["nodes"], about["cluster"]
    where = f", cluster {cluster}" if cluster else ""
    on = "1 device" if each == 1 else f"{each} devices"
    if nodes != 1:
        on = f"{nodes} nodes with {on} each"
    return f"{about['trace']}{where}: {about['jobs']} jobs on {on}, load {about['load']:.2f}"


def _rest(about: dict[str, object]) -> str:
    size = about["capacity"]
    assert isinstance(size, int)
    lines = [f"{format_bytes(size)} each; {about['left_out']} jobs for several GPUs left out."]
    lines.append("Load: the devices' worth of work that comes in, if jobs ran one at a time.")
    if about["memory"] == "drawn":
        lines.append(
            f"Memory is drawn (seed {about['seed']}): p10 23 %, p50 47 %, p90 81 % of a device."
        )
    if about["compress"] != 1:
        lines.append(f"The time between submissions is divided by {about['compress']:.4g}.")
    lines.append("Above 100 % of busy time in all, jobs on a device slow down in proportion.")
    return "\n".join(lines)
