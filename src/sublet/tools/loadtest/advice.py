"""What limits a model, and what to try next, from the figures of its steps. Pure."""

from collections.abc import Sequence

from sublet.tools.loadtest.figures import Figures
from sublet.tools.loadtest.tables import span

_GROWS = 1.1
_FLAT = 0.9
_WHOLE = 0.99
"""The share of a call's rows that its batch has at least, if it is not split."""


def advice(figures: Sequence[Figures]) -> list[str]:
    """A few lines for whoever looks at the table; nothing of a single step but its split."""
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
    at = f"at {last.concurrency} at once"
    if limit == "queue":
        lines += [
            f"Queue: {at}, {share} of a call is waiting for batches that take "
            f"{span(last.computed)} each.",
            "Try other batches (sublet tune), or fewer calls at once for a lower latency.",
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
            f"Throughput still grows at {last.concurrency} at once: try --concurrency "
            f"{last.concurrency}:{further * 4}."
        )
    most = max(one.rate for one in figures)
    knee = next(one for one in figures if one.rate >= _FLAT * most)
    return f"From {knee.concurrency} at once on, throughput is within 10 % of its most."
