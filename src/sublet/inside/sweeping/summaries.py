"""The scalars of each trial for TensorBoard, a directory for each."""

from __future__ import annotations

import os
from typing import Any


class Summaries:
    """Writes `DIRECTORY/trial-007/…`. Loads TensorFlow when the first scalar is written."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._writers: dict[int, Any] = {}

    def __call__(self, number: int, epoch: int, logs: dict[str, float]) -> None:
        """Write the metrics of an epoch, counted from 1."""
        import tensorflow as tf

        if number not in self._writers:
            path = os.path.join(self._directory, f"trial-{number:03}")
            self._writers[number] = tf.summary.create_file_writer(path)
        with self._writers[number].as_default(step=epoch - 1):
            for name, value in logs.items():
                tf.summary.scalar(name, value)
        self._writers[number].flush()
