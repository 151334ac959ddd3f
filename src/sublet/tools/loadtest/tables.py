"""Measurements as text of at most 80 columns, and as CSV."""

import csv
import io
import textwrap
from collections.abc import Sequence

from sublet.tools.loadtest.figures import Figures

_HEAD = ("concurrency", "req/s", "rows/s", "p50", "p95", "p99", "queue", "compute", "batch")
_WIDTHS = (8, 9, 9, 8, 8, 8, 8, 8, 7)
_BAR = 40
_CSV = (
    "concurrency,requests_per_second,rows_per_second,mean_ms,p50_ms,p95_ms,p99_ms,queue_ms,"
    "compute_ms,batch_rows,requests,failed,seconds,stable\n"
)


def head() -> str:
    line = _line(_HEAD)
    return f"{line}\n{'─' * len(line)}"


def row(one: Figures) -> str:
    return _line(
        (
            f"{one.concurrency}{'' if one.stable else '~'}",
            number(one.rate),
            number(one.rows),
            span(one.p50),
            span(one.p95),
            span(one.p99),
            "-" if one.queued is None else span(one.queued),
            "-" if one.computed is None else span(one.computed),
            "-" if one.batch is None else f"{one.batch:.1f}",
        )
    )


def bars(figures: Sequence[Figures]) -> str:
    """Throughput, and where the time of a call goes."""
    most = max(one.rate for one in figures)
    lines = ["requests per second"]
    for one in figures:
        bar = "█" * max(1, round(_BAR * one.rate / most))
        lines.append(f"{one.concurrency:>6} {bar} {number(one.rate)}")
    if any(one.queued is None for one in figures):
        return "\n".join(lines)
    longest = max(one.mean for one in figures)
    lines += ["", "mean time of a call: ▒ queue, █ compute, · the way there and back"]
    for one in figures:
        lines.append(f"{one.concurrency:>6} {_split(one, longest)} {span(one.mean)}")
    return "\n".join(lines)


def legend(figures: Sequence[Figures]) -> list[str]:
    """What the words mean, and what has to be said of these figures."""
    lines = []
    if figures[0].queued is not None:
        lines.append("queue, compute: means. batch: mean rows of a batch.")
    if any(not one.stable for one in figures):
        lines.append("~ not stable within its time: give it more --time, or a quieter machine.")
    failed = sum(one.failed for one in figures)
    if failed:
        last = next(one.error for one in reversed(figures) if one.failed)
        lines += textwrap.wrap(f"{failed} calls failed, and count only here: {last}", 80)
    return lines


def sheet(figures: Sequence[Figures]) -> str:
    """All figures as CSV; times in milliseconds."""
    file = io.StringIO()
    file.write(_CSV)
    writer = csv.writer(file, lineterminator="\n")
    for one in figures:
        times = (one.mean, one.p50, one.p95, one.p99, one.queued, one.computed)
        writer.writerow(
            (
                one.concurrency,
                f"{one.rate:.2f}",
                f"{one.rows:.2f}",
                *("" if time is None else f"{time * 1000:.4f}" for time in times),
                "" if one.batch is None else f"{one.batch:.2f}",
                one.requests,
                one.failed,
                f"{one.seconds:.3f}",
                str(one.stable).lower(),
            )
        )
    return file.getvalue()


def span(seconds: float) -> str:
    """A time in at most seven characters and three digits."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= 0.9995 * unit:
            return f"{_three(seconds / unit)} {name}"
    return f"{seconds * 1e6:.0f} µs"


def number(value: float) -> str:
    """A rate: three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 99.95 else _three(value)


def _three(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _split(one: Figures, longest: float) -> str:
    whole = max(1, round(_BAR * one.mean / longest))
    queue = min(whole, round(whole * (one.queued or 0) / one.mean))
    compute = min(whole - queue, round(whole * (one.computed or 0) / one.mean))
    return "▒" * queue + "█" * compute + "·" * (whole - queue - compute)


def _line(cells: Sequence[str]) -> str:
    first = cells[0].rjust(_WIDTHS[0])
    return first + "".join(
        cell.rjust(width) for cell, width in zip(cells[1:], _WIDTHS[1:], strict=True)
    )


_GROWS = 1.1
_FLAT = 0.9
_WHOLE = 0.99
"""The share of a call's rows that its batch has at least, if it is not split."""


def advice(figures: Sequence[Figures]) -> list[str]:
    """A few lines of advice for whoever looks at the table."""
    last = figures[-1]
    lines = [_growth(figures)] if len(figures) > 1 else []
    if last.queued is None or last.computed is None or last.rest is None:
        lines.append(
            "This way does not tell queue and compute apart; the channel does: sublet bench NAME."
        )
        return lines
    if last.batch is not None and last.batch < _WHOLE * last.rows / last.rate:
        lines.append(
            f"Calls are split into batches of {last.batch:.0f} rows on average; queue and compute "
            "are\nthose of the last one."
        )
        return lines
    parts = {"queue": last.queued, "compute": last.computed, "way": last.rest}
    limit = max(parts, key=lambda name: parts[name])
    share = f"{parts[limit] / last.mean:.0%}" if last.mean else "all"
    at = f"at concurrency {last.concurrency}"
    if limit == "queue":
        lines += [
            f"Queue: {at}, {share} of a call is waiting for batches that take "
            f"{span(last.computed)} each.",
            "Try other batches (sublet tune), or less concurrency for a lower latency.",
        ]
    elif limit == "compute":
        lines += [
            f"Compute: {at}, {share} of a call is the model at work.",
            "Try a smaller model, or larger batches if the device is not full: sublet tune.",
        ]
    else:
        lines += [
            f"The way: {at}, {share} of a call is neither queue nor compute:",
            "the model is so quick that sending costs more. Try more rows: --rows 16.",
        ]
    return lines


def _growth(figures: Sequence[Figures]) -> str:
    before, last = figures[-2:]
    if last.rate >= _GROWS * before.rate:
        further = 2 * last.concurrency
        return (
            f"Throughput still grows at concurrency {last.concurrency}: try --concurrency "
            f"{last.concurrency}:{further * 4}."
        )
    most = max(one.rate for one in figures)
    knee = next(one for one in figures if one.rate >= _FLAT * most)
    return f"From concurrency {knee.concurrency} on, throughput is within 10 % of its maximum."
