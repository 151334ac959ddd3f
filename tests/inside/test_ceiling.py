"""Real programs against a real ceiling: TensorFlow's own allocator, 64 MiB, no mocks.

An allocation that fails takes TensorFlow ten seconds, so all programs run at the same time.
"""

from __future__ import annotations

import functools
import signal
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

MIB = 1 << 20

PROGRAMS = {
    # Configures devices itself, has two kinds of children, catches one failure and dies of another.
    "eager": """
        import multiprocessing, os, subprocess, sys
        import tensorflow as tf

        def outgrow(name):
            try:
                tf.zeros([25, 1 << 20])
                print(name, "got it", flush=True)
            except tf.errors.ResourceExhaustedError as error:
                print(name, "refused", flush=True)

        if __name__ == "__main__":
            os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = "4096"
            os.environ["CUDA_VISIBLE_DEVICES"] = "0"
            spawned = multiprocessing.get_context("spawn").Process(target=outgrow, args=("spawn",))
            spawned.start()
            code = "import program; program.outgrow('subprocess')"
            child = subprocess.Popen([sys.executable, "-c", code])
            for gpu in tf.config.list_physical_devices("GPU"):
                tf.config.experimental.set_memory_growth(gpu, True)
            cpu = tf.config.list_physical_devices("CPU")[0]
            two = [tf.config.LogicalDeviceConfiguration()] * 2
            tf.config.set_logical_device_configuration(cpu, two)
            tf.config.set_visible_devices([], "GPU")
            many = [tf.zeros([1 << 18]) for _ in range(20)]
            del many
            most = tf.zeros([13, 1 << 20])  # 52 of 64 MiB: fits only where the pool is one region
            del most
            kept = tf.zeros([8, 1 << 20])
            assert len(tf.config.list_logical_devices("CPU")) == 2
            outgrow("parent")
            spawned.join()
            child.wait()
            try:
                tf.zeros([30, 1 << 20])
            except tf.errors.ResourceExhaustedError as error:
                raise RuntimeError("the program's own") from error
        """,
    "keras": """
        import numpy as np
        import keras

        model = keras.Sequential([keras.layers.Dense(4096), keras.layers.Dense(4096)])
        model.compile("sgd", "mse")
        rows = np.zeros([64, 1024], "float32")
        print("fitting", flush=True)
        model.fit(rows, np.zeros([64, 4096], "float32"), verbose=0)
        """,
    "session": """
        import tensorflow.compat.v1 as tf
        from tensorflow.python.client import device_lib

        tf.disable_eager_execution()
        print([d.device_type for d in device_lib.list_local_devices()])
        options = tf.GPUOptions(per_process_gpu_memory_fraction=0.3, visible_device_list="0")
        small = tf.reduce_sum(tf.fill([10, 1 << 20], tf.placeholder_with_default(1.0, [])))
        large = tf.reduce_sum(tf.fill([25, 1 << 20], tf.placeholder_with_default(1.0, [])))
        with tf.Session(config=tf.ConfigProto(gpu_options=options)) as session:
            print(float(session.run(small)))
            try:
                session.run(large)
            except tf.errors.ResourceExhaustedError:
                print("refused")
        from tensorflow.python.eager import context
        print("eager", context.context()._initialized)
        """,
    "feed": """
        import numpy as np
        import tensorflow as tf

        tf.constant(np.zeros(100 << 20, "uint8")[1:])
        """,
    # Has lent 24 MiB to a job that it started itself; the broker has named the rest.
    "lender": """
        import os
        from sublet.formats import attempt_files
        from sublet.inside.current_lease import current

        attempt_files.write_ceiling(current().dir, 40 << 20)
        import tensorflow as tf

        tf.zeros([1])
        print(os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"], os.environ["SUBLET_LEFT"])
        """,
    "late": """
        import os
        import tensorflow as tf

        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        tf.zeros([1])
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        """,
}


Ending = Callable[[str], Any]


@pytest.fixture(scope="module")
def ending(start: Callable[..., Any]) -> Ending:
    """How the program of that name ended; all of them are started before the first is awaited."""
    running = {name: start(textwrap.dedent(script)) for name, script in PROGRAMS.items()}
    return functools.cache(lambda name: running[name].wait())


def test_ceiling_holds_in_a_program_and_in_its_spawned_and_subprocess_children(
    ending: Ending,
) -> None:
    """Each of them asks for 100 MiB and is refused; the children because the parent has it all."""
    assert sorted(ending("eager").out.splitlines()) == [
        "parent refused",
        "spawn refused",
        "subprocess refused",
    ]


def test_settings_that_a_program_makes_after_its_start_are_answered_once(ending: Ending) -> None:
    """The parent and two children, two lines each: children inherit what the parent had set."""
    lines = [
        "sublet: TF_CPU_BFC_MEM_LIMIT_IN_MB=4096 becomes 64: the ceiling of this lease",
        "sublet: CUDA_VISIBLE_DEVICES=0 becomes -1: this lease is on the CPU; "
        "`--device` or `gpu=` chooses another",
    ]
    assert sorted(ending("eager").said) == sorted(lines * 3)


def test_peak_is_what_the_program_used_and_not_the_priming(ending: Ending) -> None:
    """The children never held anything: nothing was left for them."""
    peaks = sorted(usage.peak for usage in ending("eager").usage)
    assert peaks[0] < MIB
    assert peaks[1] < MIB
    assert 52 * MIB <= peaks[2] <= 64 * MIB
    assert sorted(usage.limit for usage in ending("eager").usage) == [0, 0, 64 * MIB]


def test_failures_that_were_caught_are_counted_and_the_one_that_was_not_explains_the_end(
    ending: Ending,
) -> None:
    """Two failures of the parent, one of each child; the last came as a cause of another error."""
    ended = ending("eager")
    assert ended.code == 1
    assert "RuntimeError: the program's own" in ended.err
    evidence = ended.evidence
    assert evidence.failures == 4
    assert evidence.uncaught
    assert not evidence.unheard
    assert evidence.asked == 120 * MIB
    assert evidence.limit == 64 * MIB
    assert "shape[30,1048576]" in evidence.message


def test_fit_that_outgrows_its_lease_dies_of_it_and_says_what_it_asked(ending: Ending) -> None:
    """Keras wraps the error in a trace of the graph; the size is read out of it all the same."""
    ended = ending("keras")
    assert ended.code == 1
    assert "fitting" in ended.out
    assert "ResourceExhaustedError" in ended.err
    assert ended.evidence.uncaught
    assert ended.evidence.asked == 64 * MIB
    assert ended.evidence.peak > 16 * MIB


def test_session_is_held_to_the_lease_without_starting_eager_execution(ending: Ending) -> None:
    """A program of TensorFlow 1 runs unchanged, is refused above 64 MiB, and is measured."""
    ended = ending("session")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == ["['CPU']", "10485760.0", "refused", "eager False"]
    assert ended.said == []
    assert ended.usage[0].peak >= 40 * MIB
    assert ended.evidence.failures == 1
    assert not ended.evidence.uncaught


def test_crash_on_a_feed_that_does_not_fit_is_known_as_want_of_memory(ending: Ending) -> None:
    """TensorFlow copies an unaligned array without a check and dies; its dumps tell the cause."""
    ended = ending("feed")
    assert ended.code == -signal.SIGSEGV
    assert ended.evidence.unheard
    assert ended.evidence.failures == 1
    assert ended.evidence.limit == 64 * MIB


def test_what_is_lent_is_not_there_for_the_program_that_lends_it(ending: Ending) -> None:
    """Its runtime starts with what is left, and that is said."""
    ended = ending("lender")
    assert ended.code == 0, ended.err
    assert ended.out.split() == ["40", "40"]
    assert [usage.limit for usage in ended.usage] == [40 * MIB]
    (line,) = ended.said
    assert line.startswith("sublet: TensorFlow has 40 of this lease's 64 MiB here")


def test_devices_that_are_named_after_the_runtime_has_started_are_said_to_change_nothing(
    ending: Ending,
) -> None:
    """And what to do instead. Hiding all GPUs from a program on the CPU is no mistake."""
    assert ending("late").said == [
        "sublet: CUDA_VISIBLE_DEVICES=1 changes nothing: TensorFlow has started on cpu, the device "
        "of this lease; `--device` or `gpu=` chooses another, before the start"
    ]
