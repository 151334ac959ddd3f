"""The `sublet` command: one file per verb, loaded when it is used."""

import os
import signal
import sys

from sublet.errors import SubletError


def main() -> int:
    """Run the command; an error becomes two lines on stderr, never a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until a verb is at work, Ctrl-C only ends the command: there is nothing to tell.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return _run(sys.argv[1:])
    except SubletError as error:
        print(f"sublet: {error.message}", file=sys.stderr)
        for line in error.hint.splitlines():
            print(f"        {line}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return pipe_closed()


def pipe_closed() -> int:
    """Nobody reads any more, as after `| head`: end quietly, with the code that others end with."""
    # So that nothing is flushed into the broken pipe again on the way out.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 141


def end_by(number: int) -> int:
    """End by a signal, as a program does: a shell's loop goes on after a mere exit code 130."""
    import resource

    # The core, if there is to be one, is the program's.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    os.kill(os.getpid(), number)
    return 128 + number  # It comes to this only if the signal is blocked.


def _run(words: list[str]) -> int:
    """The usual `sublet run` directly; everything else through click, which takes a while."""
    if words[:1] == ["run"] and "_SUBLET_COMPLETE" not in os.environ:
        from sublet.cli import quick

        if (options := quick.read(words[1:])) is not None:
            from sublet.cli.foreground import run

            # The names and kinds are those that click gives, as a test shows.
            return run(**options)  # type: ignore[arg-type]
    from sublet.cli.verbs import through_click

    return through_click()
