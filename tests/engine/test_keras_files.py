"""Keras files that are none."""

from pathlib import Path

import pytest

from sublet.channel.codes import Code
from sublet.engine.keras_files import converted
from sublet.errors import ServingError


@pytest.mark.parametrize("content", [b"", b"nonsense"])
def test_a_file_that_keras_did_not_write_is_said_to_be_damaged(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "m.keras"
    path.write_bytes(content)
    with pytest.raises(ServingError, match="damaged or no Keras file") as caught:
        converted(str(path), str(tmp_path))
    assert caught.value.code == Code.DATA_LOSS
