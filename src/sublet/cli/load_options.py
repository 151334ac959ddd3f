"""What `bench`, `tune` and `replay` share: words about calls, a line of progress, an engine."""

import contextlib
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sublet.errors import BadRequest, WorldError
from sublet.text import plain
from sublet.units import MiB, parse_seconds

if TYPE_CHECKING:
    from sublet.serving.client.engine import Engine
    from sublet.tools.loadtest.figures import Figures
    from sublet.tools.loadtest.subject import LocalModel, Wanted

_T = TypeVar("_T")
_MOST_STEPS = 64
_MOST_AT_ONCE = 4096
_LEAST = 512 * MiB
_FILE = click.Path(dir_okay=False, path_type=Path)
_OPTIONS = (
    click.option("--rows", type=click.IntRange(1, 1 << 20), help="Rows per call. Default: 1."),
    click.option(
        "--shape",
        multiple=True,
        metavar="INPUT=N,N,…",
        help="The shape of an input, with its rows first. Default: 1 for what is not fixed.",
    ),
    click.option(
        "--pause",
        metavar="SPAN",
        help="Average pause of a caller between an answer and its next call.",
    ),
    click.option("--data", type=_FILE, help="Real inputs: an .npz file with one array per input."),
    click.option("--signature", metavar="NAME", help="Default: serving_default, or the only one."),
    click.option("--version", type=click.IntRange(0), metavar="N", help="Default: the newest."),
    click.option(
        "--memory",
        metavar="SIZE",
        help="Size of the engine's lease, if MODEL gets its own engine.",
    ),
    click.option(
        "--device", metavar="NAME", help="Device of that engine: cpu, gpu, gpu0 or a UUID."
    ),
)


def about_calls(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what is called, and with what."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def wanted(
    rows: int | None, shape: tuple[str, ...], data: Path | None, signature: str | None
) -> "Wanted":
    from sublet.tools.loadtest.subject import Wanted

    return Wanted(signature, dict(map(_shape, shape)), rows, data)


def steps(text: str) -> tuple[int, ...]:
    """Calls at once: `8`, `1:32` (doubling), `1:32:4` (every fourth), `1,5,20`."""
    try:
        found = sorted({one for part in text.split(",") for one in _steps(part)})
    except ValueError:
        raise BadRequest(
            f"--concurrency {text!r} cannot be read.",
            "Write 8, 1:32 (1, 2, 4 … 32), 1:32:4 (1, 5, 9 …) or 1,5,20.",
        ) from None
    if found[0] < 1 or found[-1] > _MOST_AT_ONCE or len(found) > _MOST_STEPS:
        raise BadRequest(
            f"--concurrency {text} asks for too much or too little.",
            f"From 1 to {_MOST_AT_ONCE} concurrent calls, in at most {_MOST_STEPS} steps.",
        )
    return tuple(found)


def seconds(option: str, text: str, least: float, most: float) -> float:
    found = parse_seconds(text)
    if not least <= found <= most:
        raise BadRequest(f"{option} {text} is out of bounds.", f"From {least:g}s to {most:g}s.")
    return found


def pause(text: str | None) -> float | None:
    return None if text is None else seconds("--pause", text, 0, 60)


def writable(*files: Path | None) -> None:
    """Refuse what could not be written later, before anything is measured."""
    for path in files:
        if path is not None and not path.absolute().parent.is_dir():
            raise BadRequest(f"{path}: there is no such directory.", "Make it first.")


def write(path: Path, text: str) -> None:
    """Write a result to a file; WorldError if that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WorldError(
            f"{path} cannot be written: {error.strerror}.", "Name another place."
        ) from None


def engine(
    local: "LocalModel", memory: str | None, device: str | None, options: dict[str, Any]
) -> "Engine":
    """An engine with this model and nothing else in it; the caller closes it."""
    from sublet.serving.client.engine import Engine
    from sublet.serving.control import model_directories
    from sublet.tools.loadtest.subject import NAME

    if memory is None:
        # Twice its files, for variables are also read in; and what it computes with.
        memory = f"{(_LEAST + 2 * model_directories.size(str(local.path))) // MiB}MiB"
    made = Engine(memory, device, name=f"bench {local.name}")
    try:
        made.load(NAME, local.path, local.version, **options)
    except BaseException:
        made.close()
        raise
    return made


def run(work: Coroutine[Any, Any, _T], exact: bool = False) -> _T:
    """Run it in uvloop, which leaves the processors to the model, or in asyncio's loop if timers
    must be `exact`: uvloop's are whole milliseconds."""
    import asyncio

    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if not exact:
        with contextlib.suppress(ImportError):
            import uvloop

            factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


class Progress:
    """One line on a terminal, rewritten; nothing elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self.title = ""

    def window(self, figures: "Figures") -> None:
        """Show the figures of a part of a step."""
        from sublet.tools.loadtest.tables import number, span

        self.show(f"{self.title}: {number(figures.rate)} req/s, p95 {span(figures.p95)}")

    def show(self, text: str) -> None:
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{plain(text)[:79]}")
            sys.stderr.flush()

    def clear(self) -> None:
        self.show("")


def _steps(part: str) -> list[int]:
    numbers = [int(word) if word.isdecimal() and len(word) < 9 else -1 for word in part.split(":")]
    if -1 in numbers or len(numbers) > 3 or (len(numbers) > 1 and numbers[1] < numbers[0]):
        raise ValueError(part)
    match numbers:
        case [first]:
            return [first]
        case [first, last]:
            found = [first]
            while first and found[-1] * 2 < last:
                found.append(found[-1] * 2)
            return [*found, last]
        case [first, last, stride] if stride and (last - first) // stride < 100_000:
            return list(range(first, last + 1, stride))
    raise ValueError(part)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, sizes = text.rpartition("=")
    words = sizes.split(",") if sizes else []
    if not equals or not name or not all(word.isdecimal() and len(word) < 12 for word in words):
        raise BadRequest(
            f"--shape {text!r} cannot be read.", "Write INPUT=N,N,… such as --shape x=1,784."
        )
    return name, tuple(map(int, words))
