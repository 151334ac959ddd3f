"""`sublet run --dry-run`: where and when a program would start. It is not started."""

import msgspec

from sublet.cli.terminal_text import say
from sublet.client.connection import ask
from sublet.domain.job import JobSpec
from sublet.domain.job_fields import JobFields
from sublet.policy.explanation import lines
from sublet.text import plain
from sublet.units import format_seconds
from sublet.wire.messages import AskStart, WouldStart


def dry_run(spec: JobFields) -> int:
    """Print what would become of this job; returns 0."""
    found = ask(AskStart(msgspec.convert(spec, JobSpec)), WouldStart)
    say(_answer(plain(str(spec["name"])), found))
    if found.stops:
        say(f"  stops   {', '.join(f'#{job}' for job in found.stops)} (opportunistic) for it")
    explanation = found.explanation
    if found.leases:
        explanation = msgspec.structs.replace(explanation, lease=found.leases[0])
    for line in lines(explanation)[1:]:
        say(plain(line))
    return 0


def _answer(name: str, found: WouldStart) -> str:
    if found.leases:
        return f"{name} would start now, on {' and '.join(one.device for one in found.leases)}"
    when = "" if found.start is None else f", for about {format_seconds(found.start)}"
    return f"{name} would wait{when}: {found.reason}"
