"""The `sublet` command: one file per verb, loaded when it is used."""

# The C part of `signal`, of which no checker knows: that one loads enum and functools first, and
# for these 20 ms Ctrl-C would be a traceback.
import _signal  # type: ignore[import-not-found]
import io
import os
import sys

from sublet.errors import SubletError
from sublet.text import in_ascii, plain

closed: tuple[int, ...] = ()
"""The descriptors among 0 to 2 that were closed when the command began, as after `>&-`."""

TYPE_CHECKING = False  # Known to type checkers by its name; typing itself is not free.
if TYPE_CHECKING:
    from typing import TextIO


def main() -> int:
    """Run the command; an error becomes two lines on stderr, never a traceback."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        # Until a verb is at work, Ctrl-C just ends the command.
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    _occupy_closed_streams()
    write_signs_as_ascii()
    try:
        return _run(sys.argv[1:])
    except SubletError as error:
        complain(error, sys.stderr)
        return 2
    except BrokenPipeError:
        return pipe_closed()


def _occupy_closed_streams() -> None:
    """Open closed streams on /dev/null, so that none of our sockets gets their numbers."""
    global closed
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            closed += (number,)
            # The lowest number that is free, which is this one.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "w" if number else "r"))


def is_utf8(stream: "TextIO") -> bool:
    """Whether this stream takes every sign."""
    return stream.encoding.lower() in ("utf-8", "utf8")


def write_signs_as_ascii() -> None:
    """Never fail over a character that the encoding of stdout or stderr lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not is_utf8(stream):
            import codecs

            codecs.register_error("sublet", _in_ascii)
            stream.reconfigure(errors="sublet")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return in_ascii(error.object[error.start : error.end]), error.end


def complain(error: SubletError, stream: "TextIO") -> None:
    """Print what is wrong and what to do next; wrapped on a terminal only, so that `grep` works."""
    indents = ["sublet: ", *["        "] * len(error.hint.splitlines())]
    for indent, text in zip(indents, [error.message, *error.hint.splitlines()], strict=True):
        line = indent + "\n".join(map(plain, text.split("\n")))
        if stream.isatty():
            import textwrap

            line = textwrap.fill(
                line,
                80,
                subsequent_indent="        ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        print(line, file=stream)


def pipe_closed() -> int:
    """End quietly when nobody reads the output any more, as after `| head`; the exit code."""
    # Nothing may be flushed into the broken pipe again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 141


def end_by(number: int) -> int:
    """End by a signal, as the program did: after a mere exit code 130 a shell's loop goes on."""
    import resource
    import signal

    # Only the program itself may leave a core.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    os.kill(os.getpid(), number)
    return 128 + number  # Reached only if the signal is blocked.


def _run(words: list[str]) -> int:
    """The usual `sublet run` directly; everything else through click, which takes a while."""
    if words[:1] == ["run"] and "_SUBLET_COMPLETE" not in os.environ:
        from sublet.cli import quick

        if (options := quick.read(words[1:])) is not None:
            from sublet.cli.foreground import run
            from sublet.cli.settings import values

            # The names and kinds are those that click gives, as a test shows.
            return run(**values("run") | options)  # type: ignore[arg-type]
    from sublet.cli.verbs import through_click

    return through_click()
