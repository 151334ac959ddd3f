"""Libraries and packages that bring operations, and models that lack one."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sublet.channel.codes import Code
from sublet.engine import failures, op_libraries
from sublet.engine.model_store import ModelStore
from sublet.errors import ServingError
from support.leased import SAVED_MODELS, Leased

HALF = SAVED_MODELS / "saved_model_half_plus_two_cpu" / "00000123"
HALVE = SAVED_MODELS.parent / "models" / "halve" / "1"
SOURCE = Path(__file__).with_name("halve.c")
"""The operation of that model."""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_what_a_model_needs_is_loaded_before_it_and_what_it_lacks_is_named(
    real_processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "brings_operations.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    (tmp_path / "broken.so").write_bytes(b"no library")
    monkeypatch.syspath_prepend(tmp_path)

    library = tmp_path / "halve.so"
    subprocess.run(["cc", "-O1", "-fPIC", "-shared", "-o", library, SOURCE], check=True)

    def call(path: Path, *libraries: str) -> list[float]:
        store = ModelStore(lambda *_: False, lambda *_: None)
        store.add("m", 1, str(path), {"libraries": list(libraries)})
        bound = store.load("m", 1).signatures["serving_default"]
        y = bound.call({"x": np.array([1, 5], np.float32)})["y"]
        store.close()
        return [float(one) for one in y]

    child = Leased(tmp_path / "records", 64)
    try:
        with pytest.raises(ServingError, match=r"operation Halve, .*--load_library") as wrong:
            child.run(call, HALVE)
        assert wrong.value.code == Code.UNIMPLEMENTED
        assert child.run(call, HALVE, str(library)) == [0.5, 2.5]
        assert child.run(call, HALF, "brings_operations") == [2.5, 4.5]
        assert (tmp_path / "mark").exists()
        for name in (str(tmp_path / "broken.so"), "no_such_package"):
            with pytest.raises(ServingError, match=f"--load_library {name}: .*Install it for"):
                child.run(call, HALF, name)
    finally:
        child.close()


def test_the_package_of_an_operation_is_named() -> None:
    assert op_libraries.package_of("TFText>ConstrainSequence") == "tensorflow_text"
    assert op_libraries.package_of("MatMul") == ""
    missing = RuntimeError("Op type not registered 'SentencepieceOp' in binary running on a host.")
    assert "--load_library tensorflow_text" in failures.explained(missing, "/m").message
