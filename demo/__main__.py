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
from demo.devices import Cpu, Device, StandInCard
from demo.leased import Landlord
from demo.mark import Mark
from demo.race import Race
from demo.screen import Screen
from sublet.cli import write_signs_as_ascii
from sublet.units import format_bytes

_OURS = ("SUBLET_", "TF_", "CUDA_", "KERAS_", "PYTHON", "XLA_")


def main() -> int:
    """0 only if with Sublet no program died and all stayed within the device."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "standin"), default="cpu")
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
            device = Cpu() if arguments.device == "cpu" else StandInCard(folder / "machine")
            return _tell(device, folder, mark, stack, arguments.sublet_only, arguments.svg)
        except KeyboardInterrupt:
            return 130
        finally:
            # From here on nothing may keep the demo from ending what it has started.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)


def _tell(
    device: Device, folder: Path, mark: Mark, stack: ExitStack, sublet_only: bool, svg_path: Path
) -> int:
    screen = Screen(device)
    environ = {**_environment(), **device.environ}
    ways: dict[str, Race] = {}
    count = len(PROGRAMS)
    screen.say(f"{count} TensorFlow programs, {device.words}.", "bold")
    screen.say(device.note)
    by_hands = () if sublet_only else device.ways
    turns = len(by_hands) + 1
    for number, way in enumerate(by_hands, 1):
        with screen.phase(f"{number} of {turns}. By hand, {way.words}"):
            ways[way.name] = by_hand.run(
                way, device, environ, mark, _made(folder / f"way{number}"), screen.look
            )
        screen.died(ways[way.name])
    landlord = Landlord(folder / "home", device, environ, mark)
    stack.callback(landlord.close)
    turn = "" if sublet_only else f"{turns} of {turns}. "
    with screen.phase(f"{turn}With Sublet: all at once, each under its lease"):
        race, reports = landlord.run(_made(folder / "leased"), screen.look)
    ways[verdict.SUBLET] = race
    screen.closing(race, reports)
    cannot = cannot_run([ways[way.name] for way in by_hands if way.unlimited])
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
    holds = verdict.holds(counted[verdict.SUBLET], landlord.most_charged, device.capacity)
    sentence = verdict.sentence(counted, landlord.most_charged, device.capacity)
    title = f"Memory of {count} TensorFlow programs on a device of {format_bytes(device.capacity)}"
    svg_path.parent.mkdir(parents=True, exist_ok=True)
    svg_path.write_text(picture.draw(counted, device.capacity, title))
    screen.say(f"\nThe same picture: {svg_path}\n", "dim")
    screen.say(sentence, "bold green" if holds else "bold red")
    return 0 if holds else 1


def cannot_run(unlimited: list[Race]) -> set[str]:
    """The programs whose instructions the processor refuses even where nothing limits them."""
    deaths = [finish for race in unlimited for finish in race.deaths]
    return {finish.name for finish in deaths if finish.code == -signal.SIGILL}


def _environment() -> dict[str, str]:
    """The user's, less what would steer TensorFlow or Sublet."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**kept, "PYTHONUNBUFFERED": "1"}


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
