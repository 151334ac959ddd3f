"""Libraries and packages that bring operations, and models that lack one."""

import shutil
from pathlib import Path

import pytest

from sublet.channel.codes import Code
from sublet.engine import failures, op_libraries
from sublet.engine.model_store import ModelStore
from sublet.errors import ServingError
from support.leased import SAVED_MODELS, Leased

HALF = SAVED_MODELS / "saved_model_half_plus_two_cpu" / "00000123"
LIBRARY = "tensorflow/lite/experimental/microfrontend/python/ops/_audio_microfrontend_op.so"
"""One that comes with TensorFlow."""


@pytest.mark.slow
def test_what_a_model_needs_is_loaded_before_it_and_what_it_lacks_is_named(
    real_processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = Path(shutil.copytree(HALF, tmp_path / "strange"))
    graph = (strange / "saved_model.pb").read_bytes()
    assert b"\x12\x03Mul" in graph
    (strange / "saved_model.pb").write_bytes(graph.replace(b"\x12\x03Mul", b"\x12\x03IO>"))
    (tmp_path / "brings_operations.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    (tmp_path / "broken.so").write_bytes(b"no library")
    monkeypatch.syspath_prepend(tmp_path)

    def load(path: Path, *libraries: str) -> list[str]:
        store = ModelStore(lambda *_: False, lambda *_: None)
        store.add("m", 1, str(path), {"libraries": list(libraries)})
        found = list(store.load("m", 1).signatures)
        store.close()
        return found

    def with_library(path: Path) -> list[str]:
        import tensorflow as tf

        return load(path, f"{tf.sysconfig.get_lib().removesuffix('tensorflow')}{LIBRARY}")

    child = Leased(tmp_path / "records", 64)
    try:
        with pytest.raises(ServingError, match=r"operation IO>.* tensorflow_io") as wrong:
            child.run(load, strange)
        assert wrong.value.code == Code.UNIMPLEMENTED
        assert "serving_default" in child.run(with_library, HALF)
        assert "serving_default" in child.run(load, HALF, "brings_operations")
        assert (tmp_path / "mark").exists()
        for name in (str(tmp_path / "broken.so"), "no_such_package"):
            with pytest.raises(ServingError, match=f"--load_library {name}: .*Install it for"):
                child.run(load, HALF, name)
    finally:
        child.close()


def test_the_package_of_an_operation_is_named() -> None:
    assert op_libraries.package_of("TFText>ConstrainSequence") == "tensorflow_text"
    assert op_libraries.package_of("MatMul") == ""
    missing = RuntimeError("Op type not registered 'SentencepieceOp' in binary running on a host.")
    assert "--load_library tensorflow_text" in failures.explained(missing, "/m").message
