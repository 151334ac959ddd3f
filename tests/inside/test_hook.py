"""The way in: every Python of a leased program, and the patches where TensorFlow starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sublet.formats.lease import MIB, LeaseTerms
from sublet.formats.lease_environment import SITE, leased_environment


def python(code: str, environ: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        env={"PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "3", **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_copies_of_the_hook_in_one_process_both_act_and_do_not_ask_each_other() -> None:
    """A worker of a cold pool has one of its own, and that of every Python child."""
    code = """
        from _sublet.inside import hook as first
        from sublet.inside import hook as second
        for hook in (first, second):
            hook.when_imported("colorsys", lambda: print("seen"))
        import colorsys
        print(colorsys.rgb_to_hsv(0, 0, 0))
    """
    ended = python(
        code, {"PYTHONPATH": os.pathsep.join([SITE, str(Path(__file__).parents[2] / "src")])}
    )
    assert (ended.stdout, ended.stderr) == ("seen\nseen\n(0.0, 0.0, 0)\n", "")


def test_a_child_that_never_needs_tensorflow_imports_next_to_nothing_for_us() -> None:
    """Our site directory adds the hook; not TensorFlow, not Sublet, and no path to it."""
    code = "import sys; print(*sorted(sys.modules), *(f'path={p}' for p in sys.path), sep='\\n')"
    plain = set(python(code, {}).stdout.splitlines())
    ended = python(code, {"PYTHONPATH": SITE})
    assert ended.stderr == ""
    added = set(ended.stdout.splitlines()) - plain
    assert "_sublet.inside.hook" in added
    assert added <= {
        f"path={SITE}",
        "__future__",
        "_sublet",
        "_sublet.inside",
        "_sublet.inside.hook",
        "atexit",  # Part of the interpreter.
        "importlib",
        "importlib._bootstrap",
        "importlib._bootstrap_external",
        "importlib.machinery",
        "sitecustomize",
        "warnings",
    }


def test_the_next_sitecustomize_has_its_turn(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; place = __file__; sys.was_run = True")
    code = "import sys, sitecustomize; print(sys.was_run, sitecustomize.place)"
    ended = python(code, {"PYTHONPATH": f"{SITE}{os.pathsep}{tmp_path}"})
    assert ended.stdout.split() == ["True", str(tmp_path / "sitecustomize.py")]
    assert ended.stderr == ""


def test_a_hook_that_cannot_be_loaded_costs_one_line_and_not_the_program(tmp_path: Path) -> None:
    """The site directory alone, without the package around it."""
    (tmp_path / "site").mkdir()
    source = Path(SITE, "sitecustomize.py").read_text()
    (tmp_path / "site" / "sitecustomize.py").write_text(source)
    ended = python("print('ran')", {"PYTHONPATH": str(tmp_path / "site")})
    assert ended.stdout == "ran\n"
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("sublet: ")


def test_an_import_that_fails_has_the_traceback_it_would_have_without_us(tmp_path: Path) -> None:
    """Such as that of a TensorFlow that finds a module of the program's in place of its own."""
    (tmp_path / "tensorflow.py").write_text("import json\njson.loads('{')\n")
    environ = {"PYTHONPATH": os.pathsep.join([SITE, str(tmp_path)])}
    plain = python("import tensorflow", {"PYTHONPATH": str(tmp_path)}).stderr
    assert "JSONDecodeError" in plain
    assert python("import tensorflow", environ).stderr == plain


@pytest.mark.slow
def test_without_a_lease_the_patches_do_nothing() -> None:
    """The same ConfigProto, no usage file, no thread, nothing primed, nothing said."""
    code = """
        import os, threading
        import tensorflow as tf
        from tensorflow.python.eager import context
        assert context.Context._sublet
        before = dict(os.environ)
        tf.zeros([3])
        assert dict(os.environ) == before
        here = context.context()
        assert here.config == context.Context.config.fget.__wrapped__(here)
        tf.compat.v1.Session(graph=tf.Graph()).close()
        print([t.name for t in threading.enumerate()])
        """
    ended = python(code, {"PYTHONPATH": SITE, "CUDA_VISIBLE_DEVICES": ""})
    assert ended.stdout == "['MainThread']\n", ended.stderr
    assert "sublet" not in ended.stderr


@pytest.mark.slow
def test_a_programs_own_gpu_settings_are_answered_within_its_lease(
    tmp_path: Path, on_gpu: Callable[..., LeaseTerms]
) -> None:
    """Up to the ConfigProto, with a GPU that is only listed: no call raises, no limit is passed."""
    code = """
        import json, os
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        os.environ["TF_GPU_ALLOCATOR"] = "cuda_malloc_async"
        import tensorflow as tf
        from tensorflow.python import pywrap_tfe
        from tensorflow.python.client import device_lib, session
        from tensorflow.python.eager import context
        from tensorflow.python.training import server_lib
        v1 = tf.compat.v1
        pywrap_tfe.TF_ListPhysicalDevices = lambda: [
            b"/physical_device:CPU:0", b"/physical_device:GPU:0"]

        def fresh(config=None):
            context._context = None
            context._set_context(context.Context(config=config))

        def limits(config):
            options = config.gpu_options
            assert options.per_process_gpu_memory_fraction == 0
            assert options.visible_device_list in ("", "0")
            return [options.allow_growth,
                    *(list(d.memory_limit_mb) for d in options.experimental.virtual_devices)]

        found = {}
        gpu = tf.config.list_physical_devices("GPU")[0]
        found["environ"] = [os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("TF_GPU_ALLOCATOR")]
        found["plain"] = limits(context.context().config)
        tf.config.experimental.set_memory_growth(gpu, True)
        found["growth"] = limits(context.context().config)
        Limit = tf.config.LogicalDeviceConfiguration
        tf.config.set_logical_device_configuration(gpu, [Limit(256), Limit(512)])
        found["logical"] = limits(context.context().config)
        fresh()
        tf.config.experimental.set_virtual_device_configuration(gpu, [Limit(4096)])
        found["too much"] = limits(context.context().config)
        fresh()
        tf.config.set_visible_devices([], "GPU")
        found["hidden"] = limits(context.context().config)
        fresh(v1.ConfigProto(gpu_options=v1.GPUOptions(visible_device_list="1")))
        found["index"] = limits(context.context().config)

        asked = v1.ConfigProto(gpu_options=v1.GPUOptions(per_process_gpu_memory_fraction=0.05))
        with v1.Session(graph=tf.Graph(), config=asked) as one:
            found["session"] = limits(one._config)
        found["untouched"] = round(asked.gpu_options.per_process_gpu_memory_fraction, 3)
        definition = server_lib._make_server_def({"worker": ["localhost:0"]}, "worker", 0, "grpc",
                                                 asked)
        found["server"] = limits(definition.default_session_config)
        device_lib._pywrap_device_lib = type("Spy", (), {"list_devices": staticmethod(
            lambda text: found.update(listed=limits(v1.ConfigProto.FromString(text))) or [])})
        device_lib.list_local_devices()
        print(json.dumps(found))
        """
    lease = on_gpu(tmp_path, mib=1024, of=8192)
    ended = python(code, leased_environment(lease, {})[0])
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found == {
        "environ": ["GPU-aa", None],
        "plain": [True, [1024]],
        "growth": [True, [1024]],
        "logical": [True, [256, 512]],
        "too much": [True, [1024]],
        "hidden": [False],
        "index": [True, [1024]],
        "session": [True, [409]],
        "untouched": 0.05,
        "server": [True, [409]],
        "listed": [True, [1024]],
    }
    assert [line for line in ended.stderr.splitlines() if line.startswith("sublet: ")] == [
        "sublet: CUDA_VISIBLE_DEVICES=1 becomes GPU-aa: the device of this lease;"
        " `--device` or `gpu=` chooses another",
        "sublet: TF_GPU_ALLOCATOR=cuda_malloc_async is dropped: no lease can be enforced under it",
        "sublet: logical GPUs of 4096 MiB become 1024 MiB:"
        " together they fit the ceiling of this lease",
        "sublet: visible_device_list=1 becomes 0: a lease is on one GPU, here gpu0",
    ]


@pytest.mark.slow
def test_a_lease_given_after_the_fork_holds_in_the_child(
    tmp_path: Path, on_cpu: Callable[..., LeaseTerms]
) -> None:
    """As a nursery does it: TensorFlow imported and patched before there is any lease."""
    code = """
        import json, os, sys
        import tensorflow as tf
        from sublet.inside import hook, measure
        hook.install()
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os.environ.update(json.loads(sys.stdin.read()))
        measure.mark_main_started()
        tf.reduce_sum(tf.ones([4, 1 << 20]))
        try:
            tf.ones([25, 1 << 20])
        except tf.errors.ResourceExhaustedError:
            measure.mark_exit(3)
            sys.exit(3)
        """
    from sublet.formats.oom_evidence import read_evidence
    from sublet.formats.usage_file import read_usage

    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={"PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "3"},
        input=json.dumps(leased_environment(on_cpu(tmp_path), {})[0]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 3, ended.stderr
    (usage,) = read_usage(str(tmp_path))
    assert usage.exit_code == 3
    assert 0 < usage.main_started_ns < usage.runtime_started_ns < usage.updated_ns
    assert 16 * MIB <= usage.peak < 56 * MIB
    assert read_evidence(str(tmp_path)).failures == 1
