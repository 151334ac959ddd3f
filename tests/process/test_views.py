"""What a program sees of the process it runs in, and of its end."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.likeness import assert_started, both, shell, tidy
from support.sandbox import Sandbox

STACK = """
import faulthandler, inspect, sys, traceback
def look():
    print([(frame.filename, frame.function) for frame in inspect.stack()])
    traceback.print_stack(file=sys.stdout)
    sys.stdout.flush()
    faulthandler.dump_traceback(all_threads=False, file=sys.stdout)
look()
"""


@pytest.mark.every_python
@pytest.mark.parametrize("words", ["stack.py", '-c "$(cat stack.py)"', "package", "-m package"])
def test_the_program_is_at_the_bottom_of_its_stack(sandbox: Sandbox, words: str) -> None:
    """For `inspect`, `traceback` and `faulthandler`. Modules have Python's own frames below."""
    sandbox.write("stack.py", STACK)
    (sandbox.work / "package").mkdir()
    (sandbox.work / "package" / "__main__.py").write_text(STACK)
    plain = shell(sandbox, f"$PLAIN {words} | grep -v thread").stdout
    ours = shell(sandbox, f"$SUBLET -- $PLAIN {words} | grep -v thread")
    assert_started("warm", ours)
    if "package" in words:
        # One frame more among those of runpy, and none that names us.
        assert "sublet" not in ours.stdout
    else:
        assert ours.stdout == plain


@pytest.mark.every_python
@pytest.mark.parametrize("words", ["depth.py", "-c 'import depth'"])
def test_a_program_can_recurse_as_deep_as_without_us(sandbox: Sandbox, words: str) -> None:
    """Through Python's functions, and through C's, which count in Python 3.11."""
    sandbox.write(
        "depth.py",
        "import functools, sys\n"
        "depth = 0\n"
        "def deeper(again):\n"
        "    global depth\n"
        "    depth += 1\n"
        "    again()\n"
        "def measure(again):\n"
        "    global depth\n"
        "    depth = 0\n"
        "    try: again()\n"
        "    except RecursionError: print(depth, sys.getrecursionlimit())\n"
        "plain = lambda: deeper(plain)\n"
        "measure(plain)\n"
        "through_c = functools.partial(lambda: deeper(through_c))\n"
        "measure(through_c)\n"
        "sys.setrecursionlimit(2000)\n"
        "measure(plain)\n",
    )
    plain = shell(sandbox, f"$PLAIN {words}")
    ours = shell(sandbox, f"$SUBLET -- $PLAIN {words}")
    assert "started warm" in ours.stderr
    assert ours.stdout == plain.stdout


@pytest.mark.every_python
def test_the_debugger_shows_the_program_and_nothing_below_it(sandbox: Sandbox) -> None:
    """`w` in pdb."""
    sandbox.write("train.py", "def f():\n    breakpoint()\nf()\n")
    plain, ours = both(sandbox, "printf 'w\\nw\\nc\\n' | RUN train.py")
    assert ours == plain
    assert "train.py(3)<module>()" in ours


@pytest.mark.every_python
def test_the_graph_errors_of_tensorflow_name_the_program_only(sandbox: Sandbox) -> None:
    """They tell where each operation was defined, down to the bottom of the stack."""
    sandbox.write(
        "train.py",
        "import tensorflow as tf\n"
        "@tf.function\n"
        "def f(x):\n"
        "    return tf.debugging.check_numerics(x / 0.0, 'broken')\n"
        "try:\n"
        "    f(tf.constant(1.0))\n"
        "except tf.errors.InvalidArgumentError as error:\n"
        "    print('train.py' in str(error), 'sublet' in str(error), 'runpy' in str(error))\n",
    )
    _, ours = both(sandbox, "RUN train.py")
    assert ours == "True False False\n"


@pytest.mark.every_python
def test_a_program_finds_no_package_that_it_has_not_imported(sandbox: Sandbox) -> None:
    """And gets with each what it brings along."""
    names = ("absl", "google", "h5py", "keras", "matplotlib", "numpy", "requests", "tensorflow")
    sandbox.write(
        "train.py",
        "import importlib.util, sys\n"
        f"names = {names}\n"
        "def show(): print([name for name in names if name in sys.modules])\n"
        "show()\n"
        "print(importlib.util.find_spec('tensorflow').origin)\n"
        "show()\n"
        "import numpy; show()\n"
        "import tensorflow; show()\n"
        "print(tensorflow.__spec__.loader is tensorflow.__loader__, tensorflow.__file__)\n"
        "from keras.layers import Dense; show()\n"
        "del sys.modules['numpy']\n"
        "print('numpy' in sys.modules)\n",
    )
    plain, ours = both(sandbox, "RUN train.py")
    assert ours == plain


@pytest.mark.every_python
def test_a_program_finds_no_part_of_a_package_that_it_has_not_imported(sandbox: Sandbox) -> None:
    """Nor any that was imported after the package itself."""
    parts = ("absl.flags", "google.protobuf", "matplotlib.pyplot", "numpy.random", "scipy.stats")
    sandbox.write(
        "train.py",
        "import sys\n"
        f"parts = {parts}\n"
        "print([part for part in parts if part in sys.modules])\n"
        "import numpy.random\n"
        "print('numpy' in sys.modules, numpy.random.rand.__module__)\n"
        "from google.protobuf import descriptor_pb2\n"
        "print([name for name in ('google', 'google.protobuf') if name in sys.modules])\n",
    )
    plain, ours = both(sandbox, "RUN train.py")
    assert ours == plain


def test_logging_is_set_up_as_if_tensorflow_came_when_it_is_imported(sandbox: Sandbox) -> None:
    """Its logger has a handler of its own only if the root had none by then."""
    sandbox.write(
        "train.py",
        "import logging, sys\n"
        "if sys.argv[1:]: logging.basicConfig(format='mine: %(message)s')\n"
        "import tensorflow as tf\n"
        "tf.get_logger().warning('once')\n"
        "sys.stderr = sys.stdout\n"
        "tf.get_logger().warning('to the stream of the import')\n"
        "from absl import logging\n"
        "logging.warning('of absl')\n",
    )
    for words in ("", "configured"):
        plain = shell(sandbox, f"$PLAIN train.py {words} 2>&1")
        ours = shell(sandbox, f"$SUBLET train.py {words} 2>&1")
        assert tidy(ours.stdout) == tidy(plain.stdout)


@pytest.mark.every_python
def test_logging_that_is_set_up_before_tensorflow_comes_silences_nothing(sandbox: Sandbox) -> None:
    """`dictConfig` disables the loggers that there are: those of imports to come are not."""
    sandbox.write(
        "train.py",
        "import logging.config, sys\n"
        "mine = logging.StreamHandler(sys.stdout)\n"
        "logging.getLogger('tensorflow').addHandler(mine)\n"
        "root = {'handlers': ['out'], 'level': 'INFO'}\n"
        "out = {'class': 'logging.StreamHandler', 'stream': 'ext://sys.stdout'}\n"
        "logging.getLogger('keras').setLevel('ERROR')\n"
        "logging.config.dictConfig({'version': 1, 'handlers': {'out': out}, 'root': root})\n"
        "import matplotlib, tensorflow as tf\n"
        "for name in ('absl', 'h5py', 'matplotlib', 'matplotlib.font_manager', 'tensorflow'):\n"
        "    logger = logging.getLogger(name)\n"
        "    logger.error('of %s', name)\n"
        "    print(name in logging.root.manager.loggerDict, logger.disabled, logger.handlers)\n",
    )
    plain, ours = both(sandbox, "RUN train.py")
    assert ours == plain


@pytest.mark.every_python
def test_filters_of_warnings_are_as_if_packages_came_when_they_are_imported(
    sandbox: Sandbox,
) -> None:
    """A program's own filter comes before or after those of a package, as it has them in order."""
    sandbox.write(
        "train.py",
        "import warnings\n"
        "warnings.filterwarnings('ignore')\n"
        "def show(): print(*warnings.filters, sep='\\n', end='\\n\\n')\n"
        "show()\n"
        "import numpy; show()\n"
        "warnings.filterwarnings('error')\n"
        "import tensorflow; show()\n",
    )
    plain, ours = both(sandbox, "RUN train.py")
    assert ours == plain


@pytest.mark.every_python
@pytest.mark.parametrize("redirection", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("way", ["", "--cold"])
def test_closed_streams_are_closed_in_the_program(
    sandbox: Sandbox, redirection: str, way: str
) -> None:
    """As Python has them: None, and their numbers free."""
    sandbox.write(
        "train.py",
        "import os, sys\n"
        "def is_open(number):\n"
        "    try: os.fstat(number)\n"
        "    except OSError: return False\n"
        "    return True\n"
        "numbers = [is_open(number) for number in range(3)]\n"
        "with open('seen', 'w') as file:\n"
        "    print(numbers, sys.stdin is None, sys.stdout is None, sys.stderr is None, file=file)\n"
        "print('to nobody or somebody')\n"
        "sys.exit(3)\n",
    )
    seen = sandbox.work / "seen"
    assert shell(sandbox, f"$PLAIN train.py {redirection}").returncode == 3
    plain = seen.read_text()
    seen.unlink()
    ours = shell(sandbox, f"$SUBLET {way} train.py {redirection}")
    assert ours.returncode == 3
    assert seen.read_text() == plain
    assert "sublet" not in ours.stdout


@pytest.mark.every_python
def test_a_users_sitecustomize_runs_once_in_each_program(sandbox: Sandbox) -> None:
    """Not in the nursery, and not twice in one that starts cold."""
    extra = sandbox.work / "extra"
    extra.mkdir()
    (extra / "sitecustomize.py").write_text("import sys; print('began', len(sys.argv))")
    sandbox.write("train.py", "import sys; print(sys.modules['sitecustomize'].__file__)")
    # The command is a Python program of its own, and this one ignores the variable.
    sublet = "PYTHONPATH=extra $PLAIN -E -m sublet run"
    for way in ("", "--cold"):
        plain = shell(sandbox, "PYTHONPATH=extra $PLAIN train.py 1 2").stdout
        ours = shell(sandbox, f"{sublet} {way} train.py 1 2").stdout
        assert ours == plain
        assert ours.count("began") == 1


def test_a_sitecustomize_that_fails_is_reported_as_by_python(sandbox: Sandbox) -> None:
    extra = sandbox.work / "extra"
    extra.mkdir()
    (extra / "sitecustomize.py").write_text("raise ValueError('custom')")
    sandbox.write("train.py", "print('goes on')")
    plain = shell(sandbox, "PYTHONPATH=extra $PLAIN train.py")
    ours = shell(sandbox, "PYTHONPATH=extra $PLAIN -E -m sublet run train.py")
    assert plain.stdout == ours.stdout == "goes on\n"
    assert tidy(ours.stderr) == tidy(plain.stderr)
    assert_started("warm", ours)


@pytest.mark.every_python
@pytest.mark.parametrize("way", ["", "--cold"])
def test_the_command_line_is_the_programs_and_nothing_more(sandbox: Sandbox, way: str) -> None:
    """As /proc, ps and psutil show it."""
    sandbox.write("train.py", "print(repr(open('/proc/self/cmdline').read()))")
    ours = shell(sandbox, f"$SUBLET {way} -- $PLAIN train.py --rate '0.1 or so'").stdout
    assert ours == shell(sandbox, "$PLAIN train.py --rate '0.1 or so'").stdout


@pytest.mark.parametrize("flag", ["-E", "-I", "-S"])
def test_an_isolated_interpreter_is_measured_and_cannot_tell(sandbox: Sandbox, flag: str) -> None:
    """It looks neither at PYTHONPATH nor, with -S, at a sitecustomize."""
    path = ":".join(entry for entry in sys.path if entry.endswith("site-packages"))
    sandbox.write(
        "train.py",
        "import os, sys, inspect\n"
        "print(sys.argv, sys.path, sys.flags, sys.orig_argv, __file__, len(inspect.stack()))\n"
        f"sys.path += {path.split(':')}\n"
        "if sys.argv[1:] == ['compute']:\n"
        "    import tensorflow as tf\n"
        "    tf.zeros([1024, 1024])\n"
        "sys.exit(7)\n",
    )
    plain = shell(sandbox, f"$PLAIN {flag} train.py")
    ours = shell(sandbox, f"$SUBLET --memory 64MiB -- $PLAIN {flag} train.py")
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    assert tidy(ours.stderr) == tidy(plain.stderr)
    computed = shell(sandbox, f"$SUBLET --memory 64MiB -- $PLAIN {flag} train.py compute")
    assert computed.returncode == 7
    assert "peak 4.0 MiB" in computed.stderr


def test_python_and_python3_of_one_environment_share_a_nursery(sandbox: Sandbox) -> None:
    """And each program has the name that was typed."""
    directory = Path(sys.executable).parent
    sandbox.write("train.py", "import sys; print(sys.executable)")
    before = [row["pid"] for row in sandbox.status()["nurseries"]]
    for name in ("python", "python3"):
        ours = sandbox.sublet("run", "--", str(directory / name), "train.py", check=True)
        assert ours.stdout == f"{directory / name}\n"
        assert "started warm" in ours.stderr
    assert [row["pid"] for row in sandbox.status()["nurseries"]] == before


ENDS = [
    # A finaliser that needs other modules and names of the program.
    "import json\nclass A:\n    def __del__(self): print('del', json.dumps({'a': helper()}))\n"
    "def helper(): return 1\na = A()",
    # In a cycle.
    "import os\nclass A:\n    def __del__(self): print('del', os.path.basename('/a/b'), name)\n"
    "name = 'mine'\na = A()\na.own = a",
    # Of a module that the program has imported.
    "import sys\nopen('helper.py', 'w').write('import sys\\nclass B:\\n    def __del__(self): "
    "print(__name__, sys is not None)\\nb = B()\\n')\nimport helper",
    # An import at that time.
    "class A:\n    def __del__(self):\n        try: import colorsys; print('found')\n"
    "        except ImportError as error: print('no import')\na = A()\na.own = a",
    # The order of several.
    "class A:\n    def __init__(self, n): self.n = n\n    def __del__(self): print(self.n)\n"
    "a = A(1)\n_b = A(2)\nc = A(3)",
    "import atexit, threading\natexit.register(print, 'exit')\n"
    "threading.Thread(target=lambda: print('thread')).start()\nraise SystemExit(4)",
    "import logging\nclass A:\n    def __del__(self): logging.warning('late')\na = A()\na.a = a",
    "import sys\nsys.stdout.close()",
    "import sys\nclass A:\n    def __del__(self): print('del')\na = A()\nsys.exit(3)",
    "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, 'finalised')",
    "def f():\n    try: yield 1\n    finally: print('closed')\ng = f(); next(g)",
]  # fmt: skip


@pytest.mark.every_python
@pytest.mark.parametrize("script", ENDS)
def test_a_program_is_taken_apart_in_pythons_order(sandbox: Sandbox, script: str) -> None:
    """Finalisers find what they find in Python, and print what they print there."""
    sandbox.write("train.py", script)
    plain, ours = both(sandbox, "RUN train.py")
    assert ours == plain


def test_a_program_whose_output_nobody_reads_ends_as_with_python(sandbox: Sandbox) -> None:
    """What it could not write is reported, and shows in the exit code."""
    sandbox.write("train.py", "import time\nprint('x' * 100_000)\n")
    run = "RUN train.py | true; exit ${PIPESTATUS[0]}"
    plain = shell(sandbox, run.replace("RUN", "$PLAIN"))
    ours = shell(sandbox, run.replace("RUN", "$SUBLET"))
    assert ours.returncode == plain.returncode
    assert tidy(ours.stderr) == tidy(plain.stderr)


@pytest.mark.every_python
def test_the_checkpoint_of_a_program_that_ends_is_not_a_logging_error(sandbox: Sandbox) -> None:
    """TensorFlow warns of values that were not used when an object is dropped, at the very end."""
    sandbox.write(
        "train.py",
        "import tensorflow as tf\n"
        "path = tf.train.Checkpoint(a=tf.Variable(1.0), b=tf.Variable(2.0)).save('here/point')\n"
        "status = tf.train.Checkpoint(a=tf.Variable(0.0)).restore(path)\n",
    )
    plain = shell(sandbox, "$PLAIN train.py")
    ours = shell(sandbox, "$SUBLET --memory 64MiB train.py")
    assert "--- Logging error ---" not in plain.stderr + ours.stderr
    if "Exception ignored" not in plain.stderr:  # In 3.13 TensorFlow is taken apart before it.
        assert tidy(ours.stderr) == tidy(plain.stderr)


def test_text_of_another_encoding_is_read_by_a_fresh_interpreter(sandbox: Sandbox) -> None:
    """What a file system calls a name is settled when an interpreter starts."""
    known = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False).stdout
    others = [name for name in known.split() if "8859" in name or name.endswith("iso88591")]
    if not others:
        pytest.skip("every locale that is installed here is UTF-8")
    sandbox.write("train.py", "import sys; print(sys.stdout.encoding, sys.getfilesystemencoding())")
    plain, ours = both(sandbox, f"LC_ALL={others[0]} RUN train.py", "cold")
    assert ours == plain
