"""What is wrong with a machine, by facts that were gathered; and that they are gathered."""

from pathlib import Path
from typing import Any

import pytest

from sublet.doctor.gathering import this_machine
from sublet.doctor.machine import Machine
from sublet.doctor.reading import check_machine, check_script

CARDS = ("GPU-aaaa", "GPU-bbbb")


def rules(**facts: Any) -> list[str]:
    return [one.rule for one in check_machine(Machine(**facts))]


@pytest.mark.parametrize(
    ("rule", "facts"),
    [
        ("no-driver", {"card": True, "driver": "no NVIDIA driver"}),
        ("cuda-libraries-missing", {"gpus": CARDS, "missing": ("libcudnn.so.9",)}),
        ("cuda-libraries-missing", {"gpus": CARDS, "built": {"is_cuda_build": False}}),
        ("driver-too-old", {"gpus": CARDS, "too_old": "it knows CUDA 11.4"}),
        ("gpus-hidden", {"gpus": CARDS, "environ": {"CUDA_VISIBLE_DEVICES": ""}}),
        ("gpus-hidden", {"gpus": CARDS, "environ": {"CUDA_VISIBLE_DEVICES": "-1"}}),
        ("gpus-unknown", {"gpus": CARDS, "environ": {"CUDA_VISIBLE_DEVICES": "0,2"}}),
        ("gpus-unknown", {"gpus": CARDS, "environ": {"CUDA_VISIBLE_DEVICES": "GPU-cc"}}),
        ("stub-driver", {"stubs": ("/usr/local/cuda/lib64/stubs",)}),
        ("legacy-keras-missing", {"tf_keras": False, "environ": {"TF_USE_LEGACY_KERAS": "1"}}),
        ("cpu-pool-unlimited", {"environ": {"TF_CPU_ALLOCATOR_USE_BFC": "true"}}),
        ("tensorflow-missing", {"tensorflow": "", "interpreter": "/venv/bin/python"}),
        ("async-allocator", {"environ": {"TF_GPU_ALLOCATOR": "cuda_malloc_async"}}),
        ("growth-not-parsed", {"environ": {"TF_FORCE_GPU_ALLOW_GROWTH": "1"}}),
        ("xla-flags-unknown", {"environ": {"XLA_FLAGS": "--tf_xla_auto_jit=2"}}),
        ("tf-config-contradicts", {"environ": {"TF_CONFIG": "{"}}),
    ],
)
def test_a_fault_of_a_machine_is_found(rule: str, facts: dict[str, Any]) -> None:
    assert rules(**facts) == [rule]


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"card": False, "driver": "no NVIDIA driver", "gpus": ()},
        {"gpus": CARDS, "driver": "", "environ": {"CUDA_VISIBLE_DEVICES": "1,0"}},
        {"gpus": CARDS, "driver": "", "environ": {"CUDA_VISIBLE_DEVICES": "GPU-bb"}},
        {"gpus": (), "missing": ("libcudnn.so.9",), "environ": {"CUDA_VISIBLE_DEVICES": ""}},
        {"tf_keras": True, "environ": {"TF_USE_LEGACY_KERAS": "1"}},
        {"tensorflow": "2.21.0"},
        {"tensorflow": None},
        {"environ": {"XLA_FLAGS": "--xla_dump_to=/tmp/x --xla_dump_hlo_as_text"}},
        {"environ": {"XLA_FLAGS": "/etc/flags"}},
        {"environ": {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "TF_GPU_ALLOCATOR": "cuda_malloc"}},
        {"environ": {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "512"}},
        {"environ": {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}'}},
    ],
)
def test_a_machine_that_is_as_it_should_be_is_told_nothing(facts: dict[str, Any]) -> None:
    assert rules(**facts) == []


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker"}}', "a:1 twice"),
        ('{"cluster": {"boss": ["a:1"]}, "task": {"type": "boss"}}', "'boss'"),
        ('{"cluster": {"worker": ["a:1"]}}', "which task this is"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}}', "'x'"),
        ('{"cluster": [], "task": 3}', "no object"),
    ],
)
def test_a_cluster_that_contradicts_itself_is_told_how(config: str, said: str) -> None:
    (found,) = check_machine(Machine(environ={"TF_CONFIG": config}))
    assert said in found.sentence


def test_growth_on_the_first_of_two_cards_is_wrong_only_where_there_are_two() -> None:
    text = (
        "import tensorflow as tf\n"
        "gpus = tf.config.list_physical_devices('GPU')\n"
        "tf.config.experimental.set_memory_growth(gpus[0], True)\n"
    )
    two = Machine(gpus=CARDS)
    assert [one.rule for one in check_script("x.py", text, two)] == ["growth-differs"]
    for one in (Machine(), Machine(gpus=CARDS[:1])):
        assert check_script("x.py", text, one) == []
    hidden = Machine(gpus=CARDS, environ={"CUDA_VISIBLE_DEVICES": "1"})
    assert check_script("x.py", text, hidden) == []


def test_forks_are_not_minded_where_children_are_not_forked() -> None:
    path = Path(__file__).parent / "corpus" / "sick" / "fork_process.py"
    assert check_script(str(path), path.read_text(), Machine(python=(3, 14))) == []


def test_this_machine_is_seen_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow is found without being imported, and a directory of stubs is one."""
    import importlib.metadata
    import sys

    stubs = tmp_path / "stubs"
    stubs.mkdir()
    (stubs / "libcuda.so").touch()
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    seen = this_machine({"LD_LIBRARY_PATH": f"/usr/lib:{stubs}"})
    assert seen.interpreter == sys.executable
    assert seen.python == sys.version_info[:2]
    assert seen.tensorflow == importlib.metadata.version("tensorflow")
    assert seen.keras == importlib.metadata.version("keras")
    assert "is_cuda_build" in seen.built
    assert seen.stubs == (str(stubs),)


def test_an_environment_without_tensorflow_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "pyvenv.cfg").touch()
    python = tmp_path / "bin" / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    seen = this_machine({})
    assert (seen.tensorflow, seen.python, seen.interpreter) == ("", (3, 12), str(python))
