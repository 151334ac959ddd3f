"""Functions for pools, in a module that workers can import."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn


class Odd(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} and {other}")


def double(number: int) -> int:
    return 2 * number


def add(one: Any, other: Any) -> Any:
    return one + other


def pid(*_: object) -> int:
    return os.getpid()


def total(array: Any) -> float:
    return float(array.sum())


def same(value: Any) -> Any:
    return value


def fail(text: str) -> NoReturn:
    raise ValueError(text)


def fail_oddly() -> NoReturn:
    raise Odd("this", "that")


def kill_itself(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def exit_hard(code: int) -> None:
    os._exit(code)


def exit_softly(code: int) -> None:
    sys.exit(code)


def crash() -> None:
    import ctypes

    ctypes.string_at(0)


def leave_a_thread() -> str:
    threading.Thread(target=threading.Event().wait).start()
    return "done"


def fork(note: str) -> str:
    """Both come back; only one has a call to answer."""
    if os.fork() == 0:
        Path(note).write_text(str(os.getpid()))
        return "child"
    return "parent"


def leave_a_child(note: str) -> str:
    child = os.fork()
    if child == 0:
        time.sleep(600)
    Path(note).write_text(str(child))
    return "done"


def wait_for_file(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.01)
    return path


def note_and_wait(directory: str) -> None:
    """Say that it runs, and then run for ever."""
    Path(directory, str(os.getpid())).touch()
    time.sleep(600)


def write_to_channel(data: bytes) -> None:
    """Write where only Sublet writes, and wait to be ended for it."""
    os.write(3, data)
    time.sleep(600)


def print_bytes() -> None:
    os.write(1, b"\xff\x00\xfe raw\n")
    sys.stdout.write("text\n")


def make_tensor(megabytes: int) -> float:
    """TensorFlow holds so much for a moment. How many numbers that are, on a card as well on which
    kernels do nothing."""
    import tensorflow as tf

    return float(tf.size(tf.ones((megabytes, 1 << 18))))


def lease() -> dict[str, Any]:
    """The lease of the worker."""
    from sublet.inside.current_lease import current

    held = current()
    assert held is not None
    return {"ceiling": held.ceiling, "device": held.device, "job": held.job}


def train(seed: int) -> list[float]:
    """A short Keras training; the same seed gives the same losses."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    data = np.random.default_rng(seed)
    x, y = data.random((64, 8), "float32"), data.random((64, 1), "float32")
    history = model.fit(x, y, epochs=2, batch_size=16, shuffle=False, verbose=0)
    return [float(loss) for loss in history.history["loss"]]


def home() -> str:
    """Whose broker has given the lease."""
    return os.environ["SUBLET_HOME"]


def meet(place: str, count: int) -> str:
    """Wait until so many calls are there at the same time."""
    Path(place, str(os.getpid())).touch()
    while len(os.listdir(place)) < count:
        time.sleep(0.01)
    return home()
