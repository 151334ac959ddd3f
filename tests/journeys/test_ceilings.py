"""The ceiling holds for unmodified programs of every kind, and running into it is explained."""

import json
from typing import Any, NamedTuple

import pytest

from support.sandbox import Sandbox

KERAS = """
import numpy as np, keras
layers = [keras.layers.Input([256]), keras.layers.Dense(SIZE), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile("adam", "mse")
model.fit(np.ones([64, 256], "float32"), np.ones([64]), epochs=2, verbose=0)
print("trained")
"""
TF1 = """
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
config = tf.ConfigProto(gpu_options=tf.GPUOptions(per_process_gpu_memory_fraction=0.9))
x = tf.placeholder(tf.float32, [])
y = tf.reduce_sum(tf.random.uniform([256, SIZE]) + x)
with tf.Session(config=config) as session:
    session.run(y, {x: 1.0})
print("trained")
"""
GROWTH = """
import tensorflow as tf
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
x = tf.ones([256, SIZE])
print("trained", float(x[0, 0]))
"""
NUMPY = """
import numpy as np, tensorflow as tf
x = tf.zeros([1024])
big = np.ones([(SIZE << 9) + 1], np.uint8)[1:]
tf.constant(big)
"""
PROGRAMS = {"keras": KERAS, "tf1": TF1, "growth": GROWTH}


class Ran(NamedTuple):
    """A program that wanted more than its lease."""

    code: int
    said: str
    report: dict[str, Any]


@pytest.fixture(scope="module")
def too_large(shared_home: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """All at once: TensorFlow waits for ten seconds before it says that there is no memory."""
    half = GROWTH.replace("256", "128")
    started = {}
    for name, text in {**PROGRAMS, "numpy": NUMPY, "grow": half}.items():
        sandbox = shared_home.with_work(tmp_path_factory.mktemp(name))
        sandbox.write("train.py", text.replace("SIZE", "400000"))
        options = ["--on-oom", "grow"] if name == "grow" else []
        words = ["--memory", "128MiB", *options, "--report", "report.json", "train.py"]
        started[name] = sandbox, sandbox.start("run", *words)
    ran = {}
    for name, (sandbox, process) in started.items():
        _, said = process.communicate(timeout=120)
        report = json.loads((sandbox.work / "report.json").read_text())
        ran[name] = Ran(process.returncode, said, report)
    return ran


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_program_that_fits_its_ceiling_runs_unmodified(
    either_sandbox: Sandbox, kind: str
) -> None:
    """And its peak is measured, below the ceiling."""
    sandbox = either_sandbox
    sandbox.write("train.py", PROGRAMS[kind].replace("SIZE", "4000"))
    answer = sandbox.sublet("run", "--memory", "128MiB", "--report", "report.json", "train.py")
    assert answer.returncode == 0, answer.stderr
    assert "trained" in answer.stdout
    report = json.loads((sandbox.work / "report.json").read_text())
    assert 3 << 20 < report["peak"] <= 128 << 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_program_that_wants_more_is_stopped_by_tensorflow_itself(
    too_large: dict[str, Ran], shared_home: Sandbox, kind: str
) -> None:
    """Out of memory, explained: lease, peak, neighbours, and the command to try."""
    code, said, report = too_large[kind]
    assert code != 0
    assert report["cause"] == "lease exceeded", said
    assert report["peak"] is None or report["peak"] <= 128 << 20
    assert "the program needed more memory than its lease" in said
    assert f"lease  128 MiB on {shared_home.device} (as asked)" in said
    assert "others" in said
    # Where TensorFlow has not said how much it asked for, nobody knows how much is enough.
    memory = f"{report['suggest'] >> 20}MiB" if "\n  asked  " in said else "grow"
    assert f"sublet run --memory {memory} train.py" in said
    assert report["suggest"] > 128 << 20
    assert bool(report["asked"]) == ("\n  asked  " in said)


@pytest.mark.slow
def test_on_oom_grow_tries_again_with_more(too_large: dict[str, Ran]) -> None:
    """The program is started again until it fits."""
    code, said, report = too_large["grow"]
    assert code == 0, said
    assert "out of memory within 128 MiB; starting again with" in said
    assert report["attempts"] == 2
    assert report["lease"] > 128 << 20


@pytest.mark.slow
def test_a_numpy_array_that_is_too_large_counts_as_the_lease_exceeded(
    too_large: dict[str, Ran],
) -> None:
    """TensorFlow crashes there instead of raising; the crash is told apart from others."""
    code, said, report = too_large["numpy"]
    assert code != 0
    assert report["cause"] == "lease exceeded", said


def test_children_are_held_to_the_lease(sandbox: Sandbox) -> None:
    """Those of multiprocessing and of subprocess."""
    sandbox.write(
        "child.py",
        "import os\nimport tensorflow as tf\n"
        "tf.zeros([8])\nprint(tf.config.experimental.get_memory_info('CPU:0')['peak'] < 1 << 20,"
        " os.environ['TF_CPU_BFC_MEM_LIMIT_IN_MB'], flush=True)\n",
    )
    sandbox.write(
        "parent.py",
        "import multiprocessing, runpy, subprocess, sys\n"
        "def work(): runpy.run_path('child.py')\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    child.start(); child.join()\n"
        "    subprocess.run([sys.executable, 'child.py'], check=True)\n",
    )
    answer = sandbox.sublet("run", "-q", "--memory", "128MiB", "parent.py", check=True)
    assert answer.stdout == "True 128\nTrue 128\n"


def test_idle_threads_of_a_leased_program_do_not_spin(sandbox: Sandbox) -> None:
    """Neighbours need the processors."""
    sandbox.write(
        "config.py",
        "from tensorflow.python.eager import context\n"
        "print(context.context().config.experimental.disable_thread_spinning)\n",
    )
    assert sandbox.sublet("run", "-q", "config.py", check=True).stdout == "True\n"
