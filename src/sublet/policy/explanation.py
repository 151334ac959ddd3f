"""What the size of a lease rests on, in words. Owns the text of `sublet explain`; pure."""

import textwrap
from collections.abc import Iterator

from sublet.domain.history import Explanation, Forecast, Run
from sublet.policy.learning import Lesson, filled, learn
from sublet.policy.regression import LinearFit
from sublet.policy.sizing import (
    DEFAULT_SHARE,
    FRAGMENTS,
    IDLE_SHARE,
    SMALLEST,
    doubt,
    learned_ceiling,
    spare,
)
from sublet.units import format_bytes

_WIDTH = 78
_SHOWN = 10


def lines(explanation: Explanation) -> list[str]:
    """The explanation, in lines of at most 80 columns."""
    lesson = learn(explanation.history)
    rows: list[tuple[str, str]] = [("lease", _lease(explanation))]
    if explanation.waits:
        rows.append(("waits", explanation.waits))
    if explanation.lease is not None:
        rows.append(("process", _process(explanation, lesson)))
    if explanation.ask == "auto":
        rows += _learned(explanation, lesson)
    else:
        rows.append(("why", f"--memory {explanation.ask}: what was learned has no say"))
        rows.append(("auto", f"would ask for {_would(explanation, lesson)}"))
    if explanation.peak is not None:
        rows.append(("held", f"{format_bytes(explanation.peak)} at most, in its own run"))
    out = [
        f"#{explanation.job} {explanation.name}, attempt {explanation.attempt}, {explanation.state}"
    ]
    for name, text in rows:
        wrapped = textwrap.wrap(text, _WIDTH - 10) or [""]
        out += [f"  {name:<8}{wrapped[0]}", *(f"  {'':<8}{line}" for line in wrapped[1:])]
    if explanation.history.runs:
        out += ["", *_table(explanation.history.runs, lesson)]
    return out


def forecast_lines(explanation: Forecast, name: str) -> list[str]:
    """What a probe has found, as lines of text."""
    out = [
        f"{name} will need about {format_bytes(explanation.expected)}",
        f"  between {format_bytes(explanation.low)} and {format_bytes(explanation.high)}",
    ]
    out += textwrap.wrap(
        f"from {explanation.rests_on}", _WIDTH, initial_indent="  ", subsequent_indent="  "
    )
    for point in explanation.points:
        out.append(f"  {point.batch:>6.0%} of the batch: peak {format_bytes(point.peak)}")
    return out


def gives(explanation: Explanation) -> str:
    """The ceiling that `auto` would ask for."""
    return _would(explanation, learn(explanation.history))


def _lease(explanation: Explanation) -> str:
    if explanation.lease is None:
        return f"none yet; asks for --memory {explanation.ask} on {explanation.device}"
    lease = explanation.lease
    return f"{lease.size_and_place} ({lease.basis})"


def _process(explanation: Explanation, lesson: Lesson) -> str:
    """What is charged beside the ceiling."""
    assert explanation.lease is not None
    beside = format_bytes(explanation.lease.charge - explanation.lease.ceiling)
    start, model = explanation.history.start, explanation.history.model
    where = f"on a {model}" if model else f"after a {start} start"
    if lesson.evidence.outside is None:
        usual = f"as usual {where}" if model else f"as usual for a {start} start"
        return f"{beside} more for the process itself, {usual}"
    held = format_bytes(lesson.evidence.outside)
    return f"{beside} more for the process itself; {held} were seen {where}"


def _learned(explanation: Explanation, lesson: Lesson) -> Iterator[tuple[str, str]]:
    evidence = lesson.evidence
    if evidence.peak is None:
        rate = IDLE_SHARE if evidence.idle else DEFAULT_SHARE
        share = format_bytes(int(explanation.capacity * rate))
        yield "why", f"{_unknown(explanation, lesson)}: {rate:.0%} of {explanation.device}, {share}"
        if evidence.at_least:
            yield "seen", f"{format_bytes(evidence.at_least)}: it needs that at the least"
        if explanation.peak is not None:
            yield "next", "later runs are sized by what this one held"
        elif not explanation.history.runs:
            yield "next", "`sublet probe` finds out from a few steps"
    else:
        yield "peak", f"{format_bytes(evidence.peak)}, {evidence.basis or _counted(lesson)}"
        margin = doubt(evidence.runs) if evidence.margin is None else evidence.margin
        least = spare(explanation.capacity)
        if margin and evidence.peak * max(margin, FRAGMENTS) < least:
            yield "margin", f"{format_bytes(least)}: less is never added"
        elif margin:
            yield "margin", f"{max(margin, FRAGMENTS):.0%}: {_why(lesson, margin)}"
        if evidence.at_least > evidence.peak:
            yield "seen", f"{format_bytes(evidence.at_least)}, in a run that did not end well"
    if lesson.line is not None:
        yield "line", _line(lesson.line)
    if explanation.history.forecast is not None:
        probe = explanation.history.forecast
        yield (
            "probe",
            (
                f"{format_bytes(probe.low)} to {format_bytes(probe.high)}, from {probe.rests_on}"
                + (", of another text of the script" if probe.edited else "")
                + ("" if probe.complete else ": not believed")
            ),
        )
    if evidence.enough:
        yield (
            "enough",
            f"{format_bytes(evidence.enough)} or more: that was just enough",
        )
    if evidence.failed_at:
        yield "failed", f"{format_bytes(evidence.failed_at)} was too little: twice that, or more"
    if explanation.least:
        yield "retry", f"at least {format_bytes(explanation.least)}, after the attempt before"
    if _wanted(explanation, lesson) == SMALLEST:
        yield "least", f"{format_bytes(SMALLEST)}: less is never given"
    yield "gives", _would(explanation, lesson)


def _would(explanation: Explanation, lesson: Lesson) -> str:
    wanted = _wanted(explanation, lesson)
    if wanted > explanation.ever:
        most = format_bytes(max(explanation.ever, 0))
        return f"{format_bytes(wanted)}, of which {explanation.device} can give {most}"
    return format_bytes(wanted)


def _unknown(explanation: Explanation, lesson: Lesson) -> str:
    runs = explanation.history.runs
    if lesson.evidence.idle or (runs and all(run.peak is None for run in runs)):
        return "no run of it has started TensorFlow"
    return "no run says what it needs" if runs else "no run of it was measured"


def _wanted(explanation: Explanation, lesson: Lesson) -> int:
    return max(learned_ceiling(lesson.evidence, explanation.capacity), explanation.least)


def _counted(lesson: Lesson) -> str:
    number = lesson.evidence.runs
    words = "of the one run that counts" if number == 1 else f"the largest of {number} runs"
    return words if lesson.evidence.same_arguments else f"{words} with other arguments"


def _why(lesson: Lesson, margin: float) -> str:
    if margin <= FRAGMENTS:
        return "what the allocator needs around its pieces"
    reasons = [f"{lesson.evidence.runs} run{'s' * (lesson.evidence.runs != 1)} seen"]
    if lesson.counted and not lesson.evidence.same_arguments and lesson.line is None:
        reasons.append("not with these arguments")
    return ", ".join(reasons)


def _line(line: LinearFit) -> str:
    return (
        f"{format_bytes(line.base)} + {format_bytes(int(line.slope))} for each item of the batch; "
        f"runs lie {line.spread:.0%} from it; batches {line.smallest:g} to {line.largest:g} seen"
    )


def _table(runs: tuple[Run, ...], lesson: Lesson) -> Iterator[str]:
    yield "  run       batch    ceiling       peak  counted"
    for run in runs[:_SHOWN]:
        peak = "-" if run.peak is None else format_bytes(run.peak)
        ceiling = format_bytes(run.ceiling)
        number = f"#{run.job}" if run.job else "old"
        role = _role(run, lesson)
        yield f"  {number:<9}{run.batch or '-':>6}  {ceiling:>9}  {peak:>9}  {role}"
    if len(runs) > _SHOWN:
        yield f"  and {len(runs) - _SHOWN} earlier ones"


def _role(run: Run, lesson: Lesson) -> str:
    notes = []
    if run.exceeded:
        notes.append("out of memory")
    elif run.peak is None:
        notes.append("no TensorFlow")
    elif run in lesson.counted:
        notes.append("yes, filled" if filled(run) else "yes")
    elif not run.good:
        notes.append("no, unfinished")
    else:
        notes.append("no")
    if run.likeness == "other":
        notes.append("other args")
    if run.edited:
        notes.append("edited")
    return ", ".join(notes)
