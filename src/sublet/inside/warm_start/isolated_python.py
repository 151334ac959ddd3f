"""Starts programs whose interpreter ignores PYTHONPATH or sitecustomize: `python -E`, `-I`, `-S`.

The hook usually enters a program by these. Here the interpreter is started with a few lines of
ours, which install the hook and then run the program, so that its lease holds and it is measured,
too.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...formats.worker_spec import ProgramSpec, WorkerSpec

FLAGS = frozenset({"-E", "-I", "-S"})

_PACKAGE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
_BOOT = """\
import sys
package = type(sys)("_sublet")
package.__path__ = [sys.argv[1]]
sys.modules[package.__name__] = package
from _sublet.inside.warm_start import isolated_python
isolated_python.main(sys.argv[2:])
"""


def command(spec: WorkerSpec) -> list[str]:
    """The command line that starts this program with the hook."""
    place = len(spec["argv"]) - len(spec["args"]) - 1
    words = [spec["kind"], str(place), *spec["argv"]]
    return [spec["argv"][0], *spec["flags"], "-c", _BOOT, _PACKAGE, *words]


def main(words: list[str]) -> None:
    """In the new interpreter: become the program."""
    from ...formats import lease_environment
    from .. import hook, measure
    from . import ending, proctitle, program, trampoline

    kind, place, *argv = words
    target, args = argv[int(place)], argv[int(place) + 1 :]
    spec: ProgramSpec = {"kind": kind, "target": target, "args": args, "argv": argv}
    hook.install()
    sys.argv[:] = ["-c" if kind == "code" else target, *args]
    sys.orig_argv[:] = argv
    if sys.path[:1] == [""]:
        # Set by `-c`, unless a flag forbids it.
        sys.path[0] = program.own_place(spec)
    sys.path[:] = [entry for entry in sys.path if entry != lease_environment.SITE]
    proctitle.show(argv)
    run = program.prepare(spec)
    measure.mark_main_started()
    trampoline.leave_to(run, ending.exit_code)
