"""A training that is interrupted and resumed ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import sublet
from sublet.errors import BadRequest
from sublet.formats.probe import ProbeOrder
from sublet.inside.training import micro_batches

pytestmark = [
    pytest.mark.slow,
    # Keras' own, when NumPy reads a learning rate.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

ROWS, EPOCHS = 40, 5
X = np.random.default_rng(1).normal(size=(ROWS, 8)).astype("float32")
Y = np.random.default_rng(2).normal(size=(ROWS, 1)).astype("float32")
HOLD = """
import sys
from sublet.inside.training.resume.directory import Directory

with Directory(sys.argv[1]):
    print("holds it", flush=True)
    sys.stdin.read()
"""
Build = Callable[[], tuple[Any, dict[str, Any]]]
Ended = tuple[list[Any], dict[str, Any]]


def model(width: int = 6, **compiled: Any) -> Any:
    """With layers that draw random numbers and keep statistics, and that is not built yet."""
    hidden = [layers.Dense(width, "relu"), layers.BatchNormalization(), layers.Dropout(0.3)]
    made = keras.Sequential([*hidden, layers.GaussianNoise(0.1), layers.Dense(1)])
    settings = {"optimizer": "adam", "loss": "mse", "metrics": ["mae"], **compiled}
    made.compile(**settings)
    return made


def arrays() -> tuple[Any, dict[str, Any]]:
    """Shuffled, with a last short batch, validation, and callbacks that remember something."""
    callbacks = [
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=10.0),
        keras.callbacks.EarlyStopping("val_loss", patience=3, min_delta=10.0),
    ]
    data = {"x": X, "y": Y, "batch_size": 12, "validation_split": 0.25}
    return model(), {**data, "callbacks": callbacks}


def set_of_tensors() -> tuple[Any, dict[str, Any]]:
    """Shuffled anew in each epoch, cached, mapped and read ahead."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).cache().shuffle(16, seed=3)
    data = data.map(lambda x, y: (2 * x, y), tf.data.AUTOTUNE).batch(8).prefetch(2)
    return model(optimizer="nadam"), {"x": data, "validation_data": (X, Y), "shuffle": False}


def steps_of_a_set() -> tuple[Any, dict[str, Any]]:
    """Epochs that are no passes, and several steps in one execution."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(40, seed=3).batch(8).repeat()
    return model(steps_per_execution=2), {"x": data, "steps_per_epoch": 4, "shuffle": False}


def set_without_a_length() -> tuple[Any, dict[str, Any]]:
    """Shuffled anew in each epoch, whose end is known when it has come."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: x[0] > -1.0)
    data = data.shuffle(16, seed=3).batch(8)
    return model(), {"x": data, "validation_data": (X, Y), "shuffle": False}


class Draws(keras.callbacks.Callback):  # type: ignore[misc]
    """Uses the program's random numbers, and remembers something of them; sends SIGTERM once."""

    def __init__(self, when: tuple[str, int, int] | None) -> None:
        super().__init__()
        self.when = when
        self.drawn: list[Any] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def _at(self, where: str, step: int) -> None:
        if self.when == (where, self.epoch, step):
            os.kill(os.getpid(), signal.SIGTERM)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.drawn.append((random.random(), np.random.normal(), float(tf.random.normal([]))))
        self._at("train", batch)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._at("test", batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._at("epoch", 0)


def train(build: Build, path: Path, when: Any = None, **more: Any) -> Ended:
    """What a program does that is started, and started again."""
    keras.utils.set_random_seed(7)
    made, options = build()
    draws = Draws(when)
    options["callbacks"] = [*options.get("callbacks", ()), draws]
    history = sublet.fit(made, **options, epochs=EPOCHS, verbose=0, checkpoint=path, **more)
    state = [*made.variables, *made.optimizer.variables]
    return [one.value.numpy() for one in state], {**history.history, "drawn": draws.drawn}


def interrupted(build: Build, path: Path, when: Any, **more: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        train(build, path, when, **more)
    assert ended.value.code == 42
    assert signal.getsignal(signal.SIGTERM) is before


def assert_equal(one: Ended, other: Ended) -> None:
    for known, found in zip(one[0], other[0], strict=True):
        assert known.tobytes() == found.tobytes()
    assert one[1] == other[1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    """What an uninterrupted training ends with, and its directory."""
    path = tmp_path_factory.mktemp("trained")
    return train(arrays, path), path


@pytest.fixture
def known(trained: tuple[Ended, Path]) -> Ended:
    return trained[0]


@pytest.fixture
def finished(trained: tuple[Ended, Path], tmp_path: Path) -> Path:
    """A directory with the checkpoints of a training that has ended."""
    return Path(shutil.copytree(trained[1], tmp_path / "finished"))


def test_an_interrupted_training_ends_like_one_that_was_not(known: Ended, tmp_path: Path) -> None:
    """Weights, optimizer, random numbers, history and callbacks, wherever SIGTERM arrives: between
    steps, in the validation, at the end of an epoch, in the last step."""
    for when in (("train", 0, 1), ("test", 1, 0), ("epoch", 2, 0), ("train", 3, 2)):
        interrupted(arrays, tmp_path, when)
    assert_equal(known, train(arrays, tmp_path))
    assert len(known[1]["loss"]) == 4  # EarlyStopping has counted on.
    assert len(list(tmp_path.glob("*.zip"))) == 2


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.parametrize(
    ("build", "when"),
    [
        (set_of_tensors, ("train", 1, 4)),
        (steps_of_a_set, ("train", 2, 1)),
        (set_without_a_length, ("test", 0, 1)),
    ],
)
def test_a_training_from_a_set_goes_on_with_the_next_batch(
    build: Build, when: Any, tmp_path: Path
) -> None:
    interrupted(build, tmp_path / "parts", when)
    assert_equal(train(build, tmp_path / "whole"), train(build, tmp_path / "parts"))


def test_a_training_that_was_killed_goes_on_from_its_last_checkpoint(
    known: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was killed while it saved."""

    class Killed(BaseException):
        pass

    saves = iter([False, False, True])
    replace = os.replace

    def kill(*paths: Any) -> None:
        if next(saves):
            raise Killed
        replace(*paths)

    monkeypatch.setattr(os, "replace", kill)
    with pytest.raises(Killed):
        train(arrays, tmp_path, checkpoint_every=2)
    monkeypatch.undo()
    assert_equal(known, train(arrays, tmp_path, checkpoint_every=2))


def test_a_finished_training_has_nothing_left_to_do(
    known: Ended, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {path: path.read_bytes() for path in finished.glob("*.zip")}
    assert_equal(known, train(arrays, finished))
    assert {path: path.read_bytes() for path in finished.glob("*.zip")} == files
    assert "nothing is left to do" in capsys.readouterr().err


def test_a_probe_neither_reads_nor_writes_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = ProbeOrder(share=1.0, seconds=60.0, directory=str(tmp_path))
    monkeypatch.setenv("SUBLET_PROBE", order.to_json())
    made = keras.Sequential([layers.Input((8,)), layers.Dense(1)])
    made.compile("sgd", "mse")
    history = sublet.fit(made, X, Y, verbose=0, checkpoint=tmp_path / "run1")
    assert len(history.epoch) == 1
    assert not (tmp_path / "run1").exists()


def test_micro_batches_stay_as_large_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if more would fit by now: sums of other parts are rounded differently."""

    def build() -> tuple[Any, dict[str, Any]]:
        made = keras.Sequential([layers.Input((8,)), layers.Dense(1)])
        made.compile("sgd", "mse")
        return made, {"x": X, "y": Y, "batch_size": 20}

    monkeypatch.setattr(micro_batches.MicroBatches, "most", _chosen_or(7))
    known = train(build, tmp_path / "whole")
    interrupted(build, tmp_path / "parts", ("train", 1, 0))
    monkeypatch.setattr(micro_batches.MicroBatches, "most", _chosen_or(10))
    assert_equal(known, train(build, tmp_path / "parts"))


def _chosen_or(most: int) -> Callable[..., int]:
    def choose(self: Any, data: Any, *_: Any) -> int:
        self._choices = self._choices or [micro_batches.Choice(99, 99, most)]
        return int(self._choices[0].most)

    return choose


def forbidden(build: Build, path: Any, **more: Any) -> str:
    """The error, which has changed no file."""
    before = {one: one.read_bytes() for one in path.glob("*.zip")} if path.is_dir() else {}
    with pytest.raises(BadRequest) as refused:
        train(build, path, **more)
    assert {one: one.read_bytes() for one in before} == before
    return str(refused.value)


def test_checkpoints_that_do_not_belong_to_a_training_are_refused(finished: Path) -> None:
    """Of another model, another optimizer, other data, another format; by name."""
    wide = lambda: (model(7), arrays()[1])  # noqa: E731
    assert "kernel' is (8, 6) there and (8, 7) here" in forbidden(wide, finished)
    descent = lambda: (model(optimizer="sgd"), arrays()[1])  # noqa: E731
    assert "'adam/" in forbidden(descent, finished)
    halves = lambda: (model(), {**arrays()[1], "batch_size": 6})  # noqa: E731
    assert "batch_size was 12, and is 6" in forbidden(halves, finished)


def test_damaged_checkpoints_are_named(
    known: Ended, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one of them, the one before is used; with all, nothing is trained."""
    _, newer = sorted(finished.glob("*.zip"))
    newer.write_bytes(newer.read_bytes()[:-200])
    assert_equal(known, train(arrays, finished))
    assert f"{newer} is damaged" in capsys.readouterr().err
    for path in finished.glob("*.zip"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 255
        path.write_bytes(content)
    assert "is damaged" in forbidden(arrays, finished)
    for path in finished.glob("*.zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("photo.jpg", b"")
    assert "it is no checkpoint" in forbidden(arrays, finished)


def test_what_cannot_be_resumed_is_refused_before_a_step(tmp_path: Path) -> None:
    """Directories, data, callbacks."""
    file = tmp_path / "file"
    file.write_text("")
    assert f"{file} cannot be written to" in forbidden(arrays, file)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "taken"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        told = forbidden(arrays, tmp_path / "taken")
        assert f"Another process trains in {tmp_path / 'taken'} (pid {holder.pid})" in told
        holder.communicate()

    def batches() -> Iterator[Any]:
        while True:
            yield X[:8], Y[:8]

    steps = {"steps_per_epoch": 2, "shuffle": False}
    generator = lambda: (model(), {"x": batches(), **steps})  # noqa: E731
    assert "in generator data" in forbidden(generator, tmp_path / "new")
    of_python = tf.data.Dataset.from_generator(
        batches, output_signature=(tf.TensorSpec([8, 8]), tf.TensorSpec([8, 1]))
    )
    stateful = lambda: (model(), {"x": of_python, **steps})  # noqa: E731
    assert "the state of this tf.data set" in forbidden(stateful, tmp_path / "new")
    keeps = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    both = lambda: (model(), {"x": X, "y": Y, "callbacks": [keeps]})  # noqa: E731
    assert "BackupAndRestore" in forbidden(both, tmp_path / "new")
    with pytest.raises(BadRequest, match="checkpoint_every"):
        sublet.fit(model(), X, Y, checkpoint_every=3)
    assert not list((tmp_path / "new").glob("*.zip"))
