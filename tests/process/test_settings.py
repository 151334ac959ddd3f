"""Variables and files that are read while packages are imported: they are the program's own."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sublet
from sublet.formats import import_variables
from support.sandbox import Sandbox

SHOW = """
import json, os, sys, time
import keras, numpy, tensorflow as tf
from google.protobuf.internal import api_implementation
import matplotlib, matplotlib.pyplot, tempfile
print(json.dumps({
    "epochs": keras.config.max_epochs(),
    "steps": keras.config.max_steps_per_epoch(),
    "floatx": keras.config.floatx(),
    "format": keras.config.image_data_format(),
    "nnx": keras.config.is_nnx_enabled() if hasattr(keras.config, "is_nnx_enabled") else None,
    "backend": keras.config.backend(),
    "hour": time.localtime(0).tm_hour,
    "zone": time.tzname,
    "plots": matplotlib.get_backend(),
    "lines": matplotlib.rcParams["lines.linewidth"],
    "temporary": tempfile.gettempdir(),
    "protobuf": api_implementation.Type(),
    "behaviour": os.environ.get("TF2_BEHAVIOR"),
}))
"""


def shown(sandbox: Sandbox, *words: str, **environ: str) -> dict[str, object]:
    """What a program sees, in Sublet and in plain Python, which is the same; and is warm."""
    plain = sandbox.python("show.py", check=True, env={**sandbox.environ, **environ})
    ours = sandbox.sublet(
        "run",
        "--memory",
        "128MiB",
        *words,
        "show.py",
        check=True,
        env={**sandbox.environ, **environ},
    )
    assert json.loads(ours.stdout) == json.loads(plain.stdout)
    assert "started warm" in ours.stderr, ours.stderr
    return json.loads(ours.stdout)  # type: ignore[no-any-return]


@pytest.fixture
def script(sandbox: Sandbox) -> Sandbox:
    sandbox.write("show.py", SHOW)
    return sandbox


@pytest.mark.every_python
def test_what_one_program_sets_the_next_one_does_not_have(script: Sandbox) -> None:
    """Not even if it was the one that brought the nursery."""
    assert shown(script, KERAS_MAX_EPOCHS="2", TZ="Asia/Tokyo")["epochs"] == 2
    assert shown(script)["epochs"] is None


def test_variables_count_though_their_packages_are_loaded(script: Sandbox) -> None:
    """They are read again, or set as the import sets them; the nursery is the one that is there."""
    before = [row["pid"] for row in script.status()["nurseries"]]
    shown(
        script,
        KERAS_MAX_EPOCHS="2",
        KERAS_MAX_STEPS_PER_EPOCH="3",
        KERAS_BACKEND="tensorflow",
        TF_CPP_MIN_LOG_LEVEL="2",
        TF2_BEHAVIOR="0",
        MPLBACKEND="svg",
        TMPDIR="/var/tmp",
        TZ="Asia/Tokyo",
    )
    assert [row["pid"] for row in script.status()["nurseries"]] == before


@pytest.mark.every_python
def test_a_variable_that_the_program_sets_counts_for_what_it_imports(script: Sandbox) -> None:
    """`os.environ` before the import, as in every guide."""
    sets = {"KERAS_MAX_EPOCHS": "4", "MPLBACKEND": "pdf", "KERAS_BACKEND": "tensorflow"}
    script.write("show.py", f"import os; os.environ.update({sets})\n" + SHOW)
    assert shown(script)["epochs"] == 4


def settings() -> tuple[object, ...]:
    """As a function in a worker finds them."""
    import time

    import keras
    import matplotlib as mpl

    return keras.config.max_epochs(), time.tzname, mpl.rcParams["backend"]


@pytest.mark.parametrize(
    "options",
    [{}, {"reuse": True}, {"isolation": "thread"}, {"isolation": "session"}],
    ids=["process", "reuse", "thread", "session"],
)
def test_workers_of_a_pool_have_the_settings_of_their_client(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """And not those of the pool before."""
    monkeypatch.setenv("SUBLET_HOME", str(sandbox.home))
    for epochs, zone, backend in (("2", "JST-9", "pdf"), ("3", "EST+5EDT", "svg")):
        monkeypatch.setenv("KERAS_MAX_EPOCHS", epochs)
        monkeypatch.setenv("TZ", zone)
        monkeypatch.setenv("MPLBACKEND", backend)
        names = {"JST-9": ("JST", "JST"), "EST+5EDT": ("EST", "EDT")}[zone]
        with sublet.Pool(1, memory="128MiB", **options) as pool:
            assert pool.submit(settings).result() == (int(epochs), names, backend)


def test_settings_in_files_are_those_of_the_program(
    new_sandbox: Callable[..., Sandbox], tmp_path: Path
) -> None:
    """Of its home and of its directory, and as they are now."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="4GiB", HOME=str(tmp_path))
    sandbox.write("show.py", SHOW)
    assert shown(sandbox)["floatx"] == "float32"
    settings = tmp_path / ".keras" / "keras.json"
    settings.write_text(json.dumps({"floatx": "float16", "image_data_format": "channels_first"}))
    sandbox.write("matplotlibrc", "lines.linewidth: 7")
    seen = shown(sandbox)
    assert (seen["floatx"], seen["format"], seen["lines"]) == ("float16", "channels_first", 7)


def test_a_variable_that_cannot_be_read_again_brings_a_nursery_of_its_own(
    new_sandbox: Callable[..., Sandbox],
) -> None:
    """Warm all the same, and the other programs keep theirs."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="4GiB")
    sandbox.write("show.py", SHOW)
    assert shown(sandbox, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python")["protobuf"] == "python"
    assert shown(sandbox)["protobuf"] == "upb"
    assert len(sandbox.status()["nurseries"]) == 2


def test_a_script_that_sets_such_a_variable_starts_cold_and_is_told_why(sandbox: Sandbox) -> None:
    sandbox.write(
        "train.py",
        "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n"
        "import tensorflow as tf\nprint(tf.keras.Sequential.__module__.split('.')[0])",
    )
    ran = sandbox.sublet("run", "train.py", check=True)
    assert ran.stdout == "tf_keras\n"
    assert "started cold: the program sets TF_USE_LEGACY_KERAS" in ran.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KERAS_BACKEND", "jax"),
        ("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python"),
        ("TF_ENABLE_ONEDNN_OPTS", "0"),
        ("TF_FORWARD_COMPATIBILITY_DELTA_DAYS", "7"),
    ],
)
def test_what_nobody_could_foresee_is_said(sandbox: Sandbox, name: str, value: str) -> None:
    """A name that is put together: the package is loaded by then."""
    sandbox.write(
        "train.py",
        f"import os\nos.environ['{name[:5]}' + '{name[5:]}'] = {value!r}\n"
        "import keras\nprint(keras.backend.backend())",
    )
    ran = sandbox.sublet("run", "train.py", check=True)
    assert ran.stdout == "tensorflow\n"
    assert ran.stderr.count(f"{name}={value} changes nothing") == 1
    assert "--cold" in ran.stderr


TRACE = """
import json
from sublet.inside.warm_start import import_reads
from sublet.nursery import preload
with import_reads.traced() as read:
    preload.preload()
print(json.dumps(sorted(read.variables)))
"""


@pytest.mark.every_python
def test_no_package_reads_a_variable_of_which_we_do_not_know(sandbox: Sandbox) -> None:
    """A script that sets it is seen to do so before its start. (If the shell sets it, what the
    nursery has traced is enough.)"""
    names = set(json.loads(sandbox.python("-c", TRACE, check=True).stdout.splitlines()[-1]))
    assert "TF_USE_LEGACY_KERAS" in names
    known = import_variables.AGAIN | import_variables.HARMLESS
    assert {
        name
        for name in names
        if not (import_variables.counts_when_loaded(name) or name in known)
        and not name.startswith(("PYTHON", "_PYTHON"))
    } == set()


GETENV = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void note(const char *name) {
  const char *path = "READS";
  int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  char line[256];
  int size = snprintf(line, sizeof line, "%d %s\\n", getpid(), name);
  if (write(file, line, size) < 0) abort();
  close(file);
}
char *getenv(const char *name) {
  static char *(*real)(const char *);
  if (!real) real = (char *(*)(const char *))dlsym(RTLD_NEXT, "getenv");
  note(name); return real(name);
}
char *secure_getenv(const char *name) {
  static char *(*real)(const char *);
  if (!real) real = (char *(*)(const char *))dlsym(RTLD_NEXT, "secure_getenv");
  note(name); return real(name);
}
"""
PYTHONS_OWN = ("PYTHON", "__PYVENV", "LC_", "LANG")


@pytest.mark.every_python
def test_no_library_reads_a_variable_of_which_we_do_not_know(tmp_path: Path) -> None:
    """What C code reads while the nursery imports is in the nursery's key, or is read again."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler to build the tracer with")
    reads = tmp_path / "reads"
    (tmp_path / "getenv.c").write_text(GETENV.replace("READS", str(reads)))
    tracer = tmp_path / "getenv.so"
    build = ["cc", "-shared", "-fPIC", "-o", str(tracer), str(tmp_path / "getenv.c"), "-ldl"]
    subprocess.run(build, check=True, capture_output=True)
    preload = "from sublet.nursery import preload; preload.preload()"
    environ = {"LD_PRELOAD": str(tracer), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", preload], env=environ) as nursery:
        assert nursery.wait() == 0
    lines = [line.split() for line in reads.read_text().splitlines()]
    names = {name for pid, name in lines if pid == str(nursery.pid)}
    assert "TF_ENABLE_ONEDNN_OPTS" in names
    known = import_variables.AGAIN | import_variables.HARMLESS
    assert {
        name
        for name in names
        if not (
            import_variables.counts_when_loaded(name)
            or name in known
            or name.startswith(PYTHONS_OWN)
        )
    } == set()


def test_what_an_import_sets_itself_brings_no_other_nursery(script: Sandbox) -> None:
    """A program that has imported TensorFlow starts others, and hands its environment on."""
    before = [row["pid"] for row in script.status()["nurseries"]]
    script.write("outer.py", "import os, tensorflow; print(dict(os.environ))")
    printed = script.python("outer.py", check=True).stdout
    environ = {**eval(printed), **script.environ}
    assert "TF2_BEHAVIOR" in environ
    shown(script, **environ)
    assert [row["pid"] for row in script.status()["nurseries"]] == before
