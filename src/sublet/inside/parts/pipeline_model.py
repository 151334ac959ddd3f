"""The model that `sublet.split` returns: Keras' own `fit`, `evaluate` and `predict` around steps
that go through a pipeline."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ..training import batch
from ..training.micro_step import unpack
from . import devices, memory
from .memory import PartMemory
from .needs import Need
from .pipeline import Pipeline, on
from .placement import place_optimizer, updates_in_place


class PipelineModel(keras.Model):  # type: ignore[misc]  # Keras has no types.
    """A model in parts. It has the weights of the model that was split, which is `uncut`; saving
    saves that one."""

    def __init__(self, uncut: Any, pipeline: Pipeline, needs: list[Need], rows: int) -> None:
        super().__init__(name=f"{uncut.name}_in_parts", dtype=uncut.dtype_policy)
        self.uncut = uncut
        self.output_names = getattr(pipeline.graph.model, "output_names", None)
        self.jit_compile = False
        self._pipeline = pipeline
        self._needs = tuple(needs)
        self._rows = rows
        self.built = True

    @property
    def memory(self) -> list[PartMemory]:
        """What each part takes of its device."""
        return [
            PartMemory(
                part.device,
                tuple(layer.name for layer in part.layers) or ("–",),
                need.weights,
                need.gradients,
                need.optimizer,
                need.activations,
                devices.peak(part.device),
                devices.limit(part.device),
            )
            for part, need in zip(self._pipeline.parts, self._needs, strict=True)
        ]

    def __repr__(self) -> str:
        pieces = self._pipeline.pieces
        title = f"{self.uncut.name} in {len(self._needs)} parts: MiB for batches of {self._rows}"
        return memory.table(f"{title} in {pieces} micro-batches", self.memory)

    def compile(self, *args: Any, jit_compile: Any = "auto", **options: Any) -> None:
        """What Keras' `compile` takes, but XLA, which compiles for one device."""
        if jit_compile is True:
            raise ValueError(
                "XLA compiles for one device, and this model has several: leave jit_compile out."
            )
        super().compile(*args, jit_compile=False, **options)
        if self.optimizer is not None:
            place_optimizer(self.optimizer, self.trainable_variables)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self._pipeline.whole(inputs, bool(training))

    @property
    def losses(self) -> list[Any]:
        added = self._pipeline.added
        return super().losses if added is None else added

    def train_step(self, data: Any) -> Any:
        x, y, sample_weight = unpack(data)
        pipeline = self._pipeline
        passed = pipeline.forward(x, training=True)
        ends = pipeline.ends(passed)
        floats = [one for one in ends if one.dtype.is_floating]
        with on(pipeline.parts[-1]):
            with tf.GradientTape() as tape:
                tape.watch(floats)
                y_pred, loss = self._judged(passed, x, y, sample_weight, training=True)
                scaled = self.optimizer.scale_loss(loss)
            found = dict(zip(map(id, floats), tape.gradient(scaled, floats), strict=True))
        gradients = pipeline.backward(passed, [found.get(id(one)) for one in ends])
        weights = self.trainable_weights
        with updates_in_place():
            self.optimizer.apply_gradients([(gradients.of(one), one) for one in weights])
        return self._measured(x, y, y_pred, sample_weight)

    def test_step(self, data: Any) -> Any:
        x, y, sample_weight = unpack(data)
        passed = self._pipeline.forward(x, training=False)
        with on(self._pipeline.parts[-1]):
            y_pred, _ = self._judged(passed, x, y, sample_weight, training=False)
        return self._measured(x, y, y_pred, sample_weight)

    def predict_step(self, data: Any) -> Any:
        passed = self._pipeline.forward(unpack(data)[0], training=False)
        with on(self._pipeline.parts[-1]):
            return self._pipeline.outputs(passed)

    def _judged(
        self, passed: Any, x: Any, y: Any, sample_weight: Any, training: bool
    ) -> tuple[Any, Any]:
        """The outputs of a batch, and their loss."""
        y_pred = self._pipeline.outputs(passed)
        self._pipeline.added = self._pipeline.losses(passed)
        try:
            loss = self._compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
            )
        finally:
            self._pipeline.added = None
        self._loss_tracker.update_state(loss, sample_weight=batch.rows(x))
        return y_pred, loss

    def _measured(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
        with on(self._pipeline.parts[-1]):
            return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def save(self, *args: Any, **options: Any) -> None:
        """Save the model that was split, with what it has learned."""
        self.uncut.save(*args, **options)

    def save_weights(self, *args: Any, **options: Any) -> None:
        """Save the weights as those of the model that was split."""
        self.uncut.save_weights(*args, **options)

    def load_weights(self, *args: Any, **options: Any) -> None:
        """Load weights of the model that was split."""
        self.uncut.load_weights(*args, **options)

    def summary(self, *args: Any, **options: Any) -> None:
        """Keras' summary of the model that was split."""
        self.uncut.summary(*args, **options)
