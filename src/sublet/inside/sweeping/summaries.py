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
        # As `tf.summary.scalar` does, which needs TensorBoard to be installed.
        kind = tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
        metadata = tf.compat.v1.SummaryMetadata(plugin_data=kind)
        with self._writers[number].as_default():
            for name, value in logs.items():
                tensor = tf.constant(value, tf.float32)
                tf.summary.write(name, tensor, epoch - 1, metadata)
        self._writers[number].flush()
