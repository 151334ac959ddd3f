"""The demo, from its first program to its last."""

import argparse
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from demo import by_hand, picture, verdict
from demo.catalogue import PROGRAMS
from demo.leased import Landlord
from demo.mark import Mark
from demo.race import Race
from demo.screen import Screen
from sublet.cli import write_signs_as_ascii
from sublet.units import GiB, MiB, format_bytes

CAPACITY = 2 * GiB
_FRACTION, _GROWTH = "a fixed fraction", "growth"
_TITLE = f"Memory of {len(PROGRAMS)} TensorFlow programs on a device of {format_bytes(CAPACITY)}"
_OURS = ("SUBLET_", "TF_", "CUDA_", "KERAS_", "PYTHON")


def main() -> int:
    """0 only if with Sublet no program died and all stayed within the device."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--sublet-only", action="store_true", help="leave out the ways by hand")
    parser.add_argument("--svg", type=Path, default="build/demo.svg", help="where the picture goes")
    arguments = parser.parse_args()
    write_signs_as_ascii()
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sublet-demo-")))
        mark = Mark()
        stack.callback(mark.end)
        try:
            return _tell(folder, mark, stack, arguments.sublet_only, arguments.svg)
        except KeyboardInterrupt:
            return 130
        finally:
            # From here on nothing may keep the demo from ending what it has started.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)


def _tell(folder: Path, mark: Mark, stack: ExitStack, sublet_only: bool, svg_path: Path) -> int:
    screen = Screen(CAPACITY)
    environ = _environment()
    ways: dict[str, Race] = {}
    count = len(PROGRAMS)
    screen.say(f"{count} TensorFlow programs, one CPU device of {format_bytes(CAPACITY)}.", "bold")
    screen.say("Memory is what all their processes hold together (PSS), seen from outside.")
    if not sublet_only:
        share = CAPACITY // count // MiB
        with screen.phase(f"1 of 3. By hand, a fixed fraction: a limit of {share} MiB for each"):
            ways[_FRACTION] = by_hand.fixed_fraction(
                CAPACITY, environ, mark, _made(folder / "fraction"), screen.look
            )
        screen.died(ways[_FRACTION])
        with screen.phase("2 of 3. By hand, growth: no ceiling, all at once"):
            ways[_GROWTH] = by_hand.growth(environ, mark, _made(folder / "growth"), screen.look)
        screen.died(ways[_GROWTH])
    landlord = Landlord(folder / "home", CAPACITY, environ, mark)
    stack.callback(landlord.close)
    turn = "" if sublet_only else "3 of 3. "
    with screen.phase(f"{turn}With Sublet: all at once, each under its lease"):
        race, reports = landlord.run(_made(folder / "leased"), screen.look)
    ways[verdict.SUBLET] = race
    screen.closing(race, reports)
    cannot = cannot_run(ways)
    for finish in race.deaths:
        if finish.name in cannot:
            screen.say(
                f"\n{finish.name} cannot run on this machine and is not counted: TensorFlow uses "
                "an instruction that its processor refuses, by hand as well.",
                "yellow",
            )
        else:
            screen.say(f"\n{finish.name} died:\n{finish.errors[-2000:]}", "red")
    counted = {name: one.without(cannot) for name, one in ways.items()}
    screen.totals(counted)
    screen.say(
        f"\nSublet charged at most {format_bytes(landlord.most_charged)}. Its memory is that of "
        f"broker, nursery, keepers, programs and {count} clients; its time begins before there "
        "is a broker.",
        "dim",
    )
    screen.picture(counted)
    holds = verdict.holds(counted[verdict.SUBLET], landlord.most_charged, CAPACITY)
    sentence = verdict.sentence(counted, landlord.most_charged, CAPACITY)
    svg_path.parent.mkdir(parents=True, exist_ok=True)
    svg_path.write_text(picture.draw(counted, CAPACITY, _TITLE))
    screen.say(f"\nThe same picture: {svg_path}\n", "dim")
    screen.say(sentence, "bold green" if holds else "bold red")
    return 0 if holds else 1


def cannot_run(ways: dict[str, Race]) -> set[str]:
    """The programs whose instructions the processor refuses even where nothing limits them."""
    unlimited = ways.get(_GROWTH)
    deaths = () if unlimited is None else unlimited.deaths
    return {finish.name for finish in deaths if finish.code == -signal.SIGILL}


def _environment() -> dict[str, str]:
    """The user's, less what would steer TensorFlow or Sublet; the CPU is the device."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**kept, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONUNBUFFERED": "1"}


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
