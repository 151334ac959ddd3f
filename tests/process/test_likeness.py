"""A program under `sublet run` cannot tell that it is not under `python`."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.likeness import assert_started, both, shell, tidy
from support.sandbox import Sandbox, wait_for

PROBE = """
import json, os, resource, signal, sys, threading, locale
value = {
    "argv": sys.argv,
    "name": __name__,
    "file": __file__,
    "first_path": sys.path[0],
    "has_site": any(p.endswith("site-packages") for p in sys.path),
    "cwd": os.getcwd(),
    "umask": oct(os.umask(0)),
    "environ": {k: v for k, v in os.environ.items() if k.startswith(("MINE", "HOME", "PATH"))},
    "spec": repr(__spec__),
    "package": __package__,
    "builtins": type(__builtins__).__name__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "executable": sys.executable,
    "prefix": sys.prefix,
    "encodings": [sys.stdin.encoding, sys.stdout.encoding, sys.stderr.encoding],
    "errors": [sys.stdin.errors, sys.stdout.errors, sys.stderr.errors],
    "modes": [sys.stdin.mode, sys.stdout.mode, sys.stderr.mode],
    "names": [sys.stdin.name, sys.stdout.name, sys.stderr.name],
    "buffering": [sys.stdout.line_buffering, sys.stderr.line_buffering,
                  sys.stdout.write_through],
    "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:3],
    "more_descriptors": len(os.listdir("/proc/self/fd")),
    "signals": {s.name: str(signal.getsignal(s)).partition(" at ")[0]
                for s in signal.Signals},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "limits": [resource.getrlimit(resource.RLIMIT_NOFILE),
               resource.getrlimit(resource.RLIMIT_CORE)],
    "nice": os.nice(0),
    "affinity": sorted(os.sched_getaffinity(0)),
    "thread": threading.current_thread() is threading.main_thread(),
    "stdin": sys.stdin.read(),
    "flags": sys.flags.dont_write_bytecode,
    "recursion": sys.getrecursionlimit(),
    "excepthook": sys.excepthook is sys.__excepthook__,
}
print(json.dumps(value, sort_keys=True))
"""


@pytest.mark.every_python
@pytest.mark.parametrize("way", ["warm", "cold"])
def test_a_program_finds_the_surroundings_it_would_find_without_us(
    sandbox: Sandbox, way: str
) -> None:
    """argv, streams, environment, directory, mask, limits, signals: all as in a plain shell."""
    sandbox.write("probe.py", PROBE)
    command = (
        "umask 027; ulimit -S -n 777; export MINE='a b'; mkdir -p sub; cd sub; "
        "echo typed | nice -n 3 RUN ../probe.py --flag 'two words' ''"
    )
    option = {"warm": "", "cold": " --cold"}[way]
    plain = shell(sandbox, command.replace("RUN", "$PLAIN"))
    ours = shell(sandbox, command.replace("RUN", "$SUBLET" + option))
    assert json.loads(ours.stdout) == json.loads(plain.stdout)
    assert_started(way, ours)


@pytest.mark.parametrize("setting", ["LANG=", "LC_ALL=C", "LC_ALL=C.UTF-8", "LC_ALL=missing"])
def test_text_is_read_and_written_as_the_locale_says(sandbox: Sandbox, setting: str) -> None:
    """Also where the nursery was started under another one."""
    sandbox.write(
        "train.py",
        "import sys\n"
        "with open('text', 'w+') as file:\n"
        "    print(file.encoding.lower(), [s.errors for s in (sys.stdin, sys.stdout)])\n"
        "print(ascii(sys.stdin.read()), ascii(sys.argv[1]))\n",
    )
    plain, ours = both(sandbox, f"printf 'gr\\xfcn' | {setting} RUN train.py grün")
    assert ours == plain


def test_signals_ignored_by_the_shell_stay_ignored(sandbox: Sandbox) -> None:
    """`nohup` keeps its meaning."""
    sandbox.write("probe.py", PROBE)
    plain, ours = both(sandbox, "trap '' HUP INT; RUN probe.py < /dev/null")
    assert json.loads(ours)["signals"] == json.loads(plain)["signals"]
    assert json.loads(ours)["signals"]["SIGHUP"] == str(json.loads(plain)["signals"]["SIGHUP"])


@pytest.mark.every_python
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('sorry')", 1),
        ("import sys; sys.exit(300)", 44),
        ("raise SystemExit", 0),
        ("def f():\n    raise ValueError('no')\nf()", 1),
        ("def f(:", 1),
        ("import nothing_of_that_name", 1),
        ("raise KeyboardInterrupt", 130),
        ("import os; os._exit(3)", 3),
        ("import os; os.abort()", 134),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143),
        ("import atexit, sys; atexit.register(print, 'last'); print('first'); sys.exit(2)", 2),
        ("import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), "
         "print('thread'))).start()\nprint('main')", 0),
        ("class A:\n    def __del__(self): print('del')\na = A()", 0),
        ("open('kept.txt', 'w').write('x'); f = open('open.txt', 'w'); f.write('unflushed')", 0),
        ("import sys; sys.stdout.write('no newline')", 0),
        ("import sys; sys.stdout.buffer.write(bytes(range(256)).replace(b'\\x80', b''))", 0),
        ("import warnings; warnings.warn('careful')", 0),
        ("import os; print(os.path.basename(__file__)); exec(open(__file__).read().split(';')[0])",
         0),
    ],
)  # fmt: skip
def test_a_program_ends_as_it_would_without_us(sandbox: Sandbox, script: str, code: int) -> None:
    """The exit code, what it prints on both streams, and what it leaves in its files."""
    sandbox.write("train.py", script)
    # Read as Latin-1, so that any bytes can be compared.
    options = {"encoding": "latin-1"}
    plain = shell(sandbox, "$PLAIN train.py; code=$?; cat open.txt 2>&-; exit $code", **options)
    (sandbox.work / "open.txt").unlink(missing_ok=True)
    ours = shell(sandbox, "$SUBLET train.py; code=$?; cat open.txt 2>&-; exit $code", **options)
    assert (plain.returncode, ours.returncode) == (code, code)
    assert ours.stdout == plain.stdout
    assert tidy(ours.stderr) == tidy(plain.stderr)
    assert_started("warm", ours)


def test_a_fault_of_ours_at_the_end_changes_no_exit_code(sandbox: Sandbox) -> None:
    """What runs after a program is called by C code, which would make an exit code of 1 of it."""
    broken = "from sublet.inside import measure\nmeasure.mark_exit = lambda code: 1 / 0\n"
    sandbox.write("ends.py", f"{broken}print('all done')")
    ran = sandbox.sublet("run", "ends.py")
    assert (ran.returncode, ran.stdout) == (0, "all done\n"), ran.stderr
    assert "the end of the program was not noted: ZeroDivisionError" in ran.stderr
    sandbox.write("fails.py", f"{broken}raise SystemError")
    assert sandbox.sublet("run", "fails.py").returncode == 1
    leaves = "from sublet.inside.warm_start.trampoline import leave_to"
    ran = sandbox.python("-c", f"{leaves}; leave_to(lambda: 0, lambda result: 1 / 0)")
    assert (ran.returncode, "a fault of ours has ended the program" in ran.stderr) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_program_that_a_signal_ends_takes_the_command_with_it(
    sandbox: Sandbox, number: int
) -> None:
    """So that a loop in a shell ends at Ctrl-C, and a parent finds what it would have found."""
    sandbox.write("train.py", f"import os\nos.kill(os.getpid(), {number:d})")
    assert sandbox.sublet("run", "train.py").returncode == -number


@pytest.mark.every_python
@pytest.mark.parametrize(
    "words",
    [
        "-m pkg.train 1 2",
        "-m pkg",
        "-m pkg.broken",
        "-m pkg.missing",
        "-c 'import sys; print(sys.argv, sys.path[0])' x",
        "-c 'raise ValueError'",
        "pkg x",
        "../work/pkg",
        "app.pyz x",
    ],
)
def test_modules_code_and_directories_run_as_with_python(sandbox: Sandbox, words: str) -> None:
    """`-m`, `-c`, a directory and an archive with a __main__, and relative imports."""
    package = sandbox.work / "pkg"
    package.mkdir()
    main = "import sys\nprint(__package__, __spec__.name, __file__, sys.argv, sys.path[0])\n"
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("VALUE = 5")
    (package / "__main__.py").write_text(main)
    (package / "broken.py").write_text("def f():\n    raise ValueError('no')\nf()")
    (package / "train.py").write_text(
        "import sys\nfrom .helper import VALUE\nprint(VALUE, __name__, __package__, sys.argv[1:])"
    )
    with zipfile.ZipFile(sandbox.work / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", main)
    plain = shell(sandbox, f"$PLAIN {words}")
    ours = shell(sandbox, f"$SUBLET -- $PLAIN {words}")
    assert ours.stdout == plain.stdout
    assert tidy(ours.stderr) == tidy(plain.stderr)
    assert ours.returncode == plain.returncode
    assert_started("warm", ours)


def test_a_file_that_hides_a_library_is_found_first_as_with_python(sandbox: Sandbox) -> None:
    """The nursery has imported `requests`; the program's own `requests.py` wins all the same. It
    takes a fresh interpreter, and that is not called warm."""
    sandbox.write("requests.py", "NAME = 'mine'")
    sandbox.write("train.py", "import requests; print(getattr(requests, 'NAME', 'library'))")
    plain, ours = both(sandbox, "RUN train.py", "cold")
    assert plain == ours == "mine\n"


def test_a_file_that_an_import_looks_for_in_vain_elsewhere_is_found_as_with_python(
    sandbox: Sandbox,
) -> None:
    """TensorFlow's imports try `import python`, which is there for no program but this one."""
    sandbox.write("python.py", "print('mine')")
    sandbox.write("train.py", "import tensorflow; print('done')")
    plain, ours = both(sandbox, "RUN train.py", "cold")
    assert plain == ours


def test_pythonpath_is_searched_before_the_libraries(sandbox: Sandbox) -> None:
    """Also when it hides something that the nursery has."""
    extra = sandbox.work / "extra"
    extra.mkdir()
    (extra / "only_here.py").write_text("WHERE = 'extra'")
    (extra / "sitecustomize.py").write_text("import builtins; builtins.CUSTOM = 'ran'")
    sandbox.write("train.py", "import builtins, only_here; print(only_here.WHERE, builtins.CUSTOM)")
    plain, ours = both(sandbox, "PYTHONPATH=extra RUN train.py")
    assert plain == ours == "extra ran\n"


def test_ps_shows_the_programs_own_command_line(sandbox: Sandbox) -> None:
    """So that `pkill -f train.py` finds it."""
    sandbox.write("train.py", "print(open('/proc/self/cmdline').read().replace(chr(0), '|'))")
    _, ours = both(sandbox, "RUN train.py --rate 0.1")
    assert ours.strip().rstrip("|").endswith("train.py|--rate|0.1")


@pytest.mark.every_python
def test_numpy_has_its_threads_back(sandbox: Sandbox) -> None:
    """The nursery imports NumPy single-threaded; a program gets what it would have had."""
    sandbox.write(
        "train.py",
        "import numpy as np, os\n"
        "a = np.ones((600, 600)); a @ a\n"
        "print(len(os.listdir('/proc/self/task')) > 1 or len(os.sched_getaffinity(0)) == 1)\n",
    )
    _, ours = both(sandbox, "RUN train.py")
    assert ours == "True\n"


def test_an_interpreter_without_tensorflow_runs_and_is_told(sandbox: Sandbox) -> None:
    """It is leased as far as that goes."""
    venv = sandbox.work / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    sandbox.write("train.py", "import sys, os; print(sys.prefix, 'SUBLET_LEASE' in os.environ)")
    answer = sandbox.sublet("run", "--python", str(venv / "bin/python"), "train.py")
    assert answer.stdout == f"{venv} True\n"
    python = venv / "bin/python"
    assert f"no TensorFlow there; install it: {python} -m pip install tensorflow" in answer.stderr
    assert "TensorFlow was not used" in answer.stderr


def test_the_closing_line_says_lease_peak_time_and_start_up(sandbox: Sandbox) -> None:
    """One line on stderr, within 80 columns."""
    sandbox.write("train.py", "import tensorflow as tf; tf.zeros([1024, 1024])")
    answer = sandbox.sublet("run", "--memory", "64MiB", "train.py", check=True)
    line = answer.stderr.strip().splitlines()[-1]
    assert line.startswith("sublet: lease 64.0 MiB · peak 4.0 MiB · ran ")
    assert "started warm in" in line
    assert len(line) <= 80
    assert os.path.isdir(sandbox.work)


def test_another_environment_gets_a_nursery_of_its_own(sandbox: Sandbox) -> None:
    """Sublet itself is not installed there, and it is warm all the same."""
    venv = sandbox.work / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    for name in _libraries():
        (site / name.name).symlink_to(name)
    sandbox.write(
        "train.py",
        "import sys, importlib.util, tensorflow as tf\n"
        "print(sys.prefix, float(tf.reduce_sum(tf.ones([4]))))\n",
    )
    python = str(venv / "bin/python")
    first = sandbox.sublet("run", "--python", python, "--memory", "64MiB", "train.py", check=True)
    assert first.stdout == f"{venv} 4.0\n"
    assert "started warm" in first.stderr
    answer = subprocess.run(
        [python, "-c", "import sublet"], capture_output=True, env=sandbox.environ, check=False
    )
    assert answer.returncode != 0
    assert python in [row["python"] for row in sandbox.status()["nurseries"]]


def _libraries() -> list[Path]:
    """What is installed beside TensorFlow, less Sublet."""
    found = importlib.util.find_spec("tensorflow")
    assert found is not None
    assert found.origin is not None
    site = Path(found.origin).parents[1]
    return [entry for entry in site.iterdir() if "sublet" not in entry.name]


def test_settings_of_the_shell_are_answered_in_one_line(sandbox: Sandbox) -> None:
    """A limit above the lease is lowered, and that is said."""
    sandbox.write("train.py", "import os; print(os.environ['TF_CPU_BFC_MEM_LIMIT_IN_MB'])")
    sandbox.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = "9999"
    sandbox.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
    answer = sandbox.sublet("run", "--memory", "64MiB", "train.py", check=True)
    assert answer.stdout == "64\n"
    assert "TF_CPU_BFC_MEM_LIMIT_IN_MB=9999 becomes 64" in answer.stderr


def test_a_script_that_quietens_tensorflow_starts_warm_and_is_quiet(sandbox: Sandbox) -> None:
    """The most common first line of all, which counts only before the import elsewhere."""
    loud = "import tensorflow as tf\ntf.zeros([1])\n"
    sandbox.write("loud.py", loud)
    sandbox.write("quiet.py", "import os\nos.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\n" + loud)
    if "0000 00:00" not in sandbox.sublet("run", "-q", "loud.py", check=True).stderr:
        pytest.skip("what this TensorFlow's log says is settled when it is loaded")
    quiet = sandbox.sublet("run", "quiet.py", check=True).stderr
    assert "0000 00:00" not in quiet
    assert "started warm" in quiet


def test_what_is_installed_meanwhile_is_found_as_with_python(sandbox: Sandbox) -> None:
    """The nursery has imported what was there; the next program has what is there now."""
    venv = sandbox.work / "growing"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    sandbox.write("train.py", "import tensorflow; print(tensorflow.__version__)")

    def said() -> tuple[str, bool]:
        ended = sandbox.sublet("run", "--python", str(venv / "bin/python"), "train.py")
        errors = [line for line in ended.stderr.splitlines() if "Error: " in line]
        return ended.stdout or errors[-1], "started warm" in ended.stderr

    assert said() == ("ModuleNotFoundError: No module named 'tensorflow'", False)
    for name in _libraries():
        (site / name.name).symlink_to(name)
    wait_for(lambda: said()[1], "it starts warm", seconds=120)
    (site / "tensorflow").unlink()
    (site / "tensorflow.py").write_text("__version__ = 'another'")
    wait_for(lambda: said()[0] == "another\n", "the new package is found", seconds=120)
