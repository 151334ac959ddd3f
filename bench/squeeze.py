"""`python -m bench.squeeze`: public programs in less memory than they need, and how they fail then.

Each program runs once with all the memory that it wants, then under ceilings from half of its peak
to more than it. Listed are the names under which TensorFlow fails for want of memory, and the ends
that Sublet does not call so.
"""

import argparse
import re
import signal
import sys
import sysconfig
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import machine, processes
from bench.corpus import LIST, Program, data, programs, sources
from bench.likeness import Bench, Run, templates
from bench.outputs import Line
from bench.sandbox import SUBLET, sandbox
from demo.devices import StandInCard

_MiB = 2**20
_SMALLEST = 16
"""MiB; no lease is smaller, so a program that needs less cannot be squeezed."""
_SHARES = (0.5, 0.7, 0.85, 1.0, 1.2)
_SHOWN = 12
"""Lines that a program wrote last, shown if it failed."""
_NAME = re.compile(r"(?:^|[.\s])([A-Za-z]\w*(?:Error|Exception|bad_alloc)\b[^\n]{0,90})")


@dataclass(frozen=True)
class Squeezed:
    """One run in too little memory."""

    name: str
    share: float
    code: int | None
    cause: str
    words: str
    """The last error that the program wrote."""
    said: tuple[str, ...] = ()
    """What was said of its batches."""


def squeeze(
    bench: Bench,
    program: Program,
    shares: Sequence[float] = _SHARES,
    on_oom: str = "fail",
    device: str = "cpu",
) -> list[Squeezed]:
    """The ends of one program; none if it needs too little to be squeezed."""
    script = bench.bring(program)
    command: list[str | Path] = [SUBLET, "run", "--quiet", "--device", device]
    whole = bench.run(program, command, script)
    peak = (whole.report.get("peak") or 0) / _MiB
    if whole.code != 0 or peak * min(shares) < _SMALLEST:
        ended = "was cut off" if whole.code is None else f"ended with {whole.code}"
        print(f"{program.name} is left out: it {ended}, with a peak of {peak:.0f} MiB", flush=True)
        for line in whole.err[-_SHOWN:] if whole.code else ():
            print(f"    {_text(line)}", file=sys.stderr, flush=True)
        return []
    found = []
    for share in shares:
        asked = f"{int(peak * share) + 1}MiB"
        run = bench.run(program, [*command, "--memory", asked, "--on-oom", on_oom], script)
        cause = str(run.report.get("cause", ""))
        said = tuple(_text(line) for line in run.err if "batches" in _text(line))
        found.append(Squeezed(program.name, share, run.code, cause, _last_error(run), said))
        print(f"  {found[-1]}", file=sys.stderr, flush=True)
        for line in run.err[-_SHOWN:] if run.code else ():
            print(f"    {_text(line)}", file=sys.stderr, flush=True)
    return found


def _last_error(run: Run) -> str:
    for line in reversed(run.err):
        if match := _NAME.search(_text(line)):
            return match.group(1)
    return ""


def _text(line: Line) -> str:
    return str(line)


def main() -> int:
    """Squeeze the corpus; 1 if a program failed for want of memory and was told something else."""
    parser = argparse.ArgumentParser(prog="python -m bench.squeeze", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="git directories, owner+name")
    parser.add_argument("--list", type=Path, default=LIST, help="the programs; default: ours")
    parser.add_argument("--only", default="", help="a regular expression in the name")
    parser.add_argument("--longest", type=float, default=180, help="seconds that a run may take")
    parser.add_argument("--shares", type=float, nargs="+", default=_SHARES, help="of the peak")
    parser.add_argument("--on-oom", default="fail", help="as for `sublet run`")
    parser.add_argument(
        "--card",
        action="store_true",
        help="on a stand-in card of 8 GiB, on which data sets are not, and no kernel is computed",
    )
    asked = parser.parse_args()
    processes.adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    data.trust(Path(sysconfig.get_path("purelib")))
    chosen = [one for one in programs(asked.list) if re.search(asked.only, one.name)]
    print(f"== squeeze == {machine.line(machine.facts())}\n", flush=True)
    found: list[Squeezed] = []
    with sandbox() as store, sandbox() as home:
        made = templates(store.directory, {program.full for program in chosen})
        bench = Bench(home, made, asked.corpus, frozenset(), asked.longest)
        device = "cpu"
        if asked.card:
            card = StandInCard(store.directory / "card")
            bench.env |= {**card.environ, "STANDIN_COMPUTES": "0"}
            device = card.id
        for program in chosen:
            try:
                found += squeeze(bench, program, asked.shares, asked.on_oom, device)
            except (sources.Missing, OSError) as trouble:
                print(f"  {program.name}: {trouble}", file=sys.stderr)
    return _report(found)


def _report(found: list[Squeezed]) -> int:
    names = Counter(
        one.words.partition(":")[0] or f"exit code {one.code}"
        for one in found
        if one.cause == "lease exceeded"
    )
    for name, count in names.most_common():
        print(f"{count:4} out of memory as {name}")
    unknown = [one for one in found if one.code != 0 and one.cause != "lease exceeded"]
    for one in unknown:
        print(f"     not recognised: {one}")
    good = sum(one.code == 0 for one in found)
    print(f"{len(found)} runs of {len({one.name for one in found})} programs, {good} ended well")
    return int(bool(unknown))


if __name__ == "__main__":
    sys.exit(main())
