"""The generators of random numbers that a program has without making them: those of Python, NumPy,
TensorFlow and Keras. Layers have their own, which are among a model's variables."""

from __future__ import annotations

import random
from typing import Any

from .values import Packer


def states() -> dict[str, Any]:
    """Where the generators stand; those that nobody has used are left out."""
    import numpy as np

    found: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
    }
    eager = _eager()
    if eager is not None:
        found["eager"] = eager.getstate()
    generator = _global_generator()
    if generator is not None:
        found["tensorflow"] = (int(generator.algorithm), generator.state.numpy())
    seeds = _keras_seeds()
    if seeds is not None:
        found["keras"] = seeds.state.value.numpy()
    return found


def packed(packer: Packer) -> Any:
    """The same, to be written down."""
    return packer.pack(states())


def put_back(found: dict[str, Any]) -> None:
    """Have the generators go on from there."""
    import numpy as np
    import tensorflow as tf

    random.setstate(found["python"])
    np.random.set_state(found["numpy"])
    eager = _eager()
    if eager is not None and "eager" in found:
        eager.setstate(found["eager"])
    if "tensorflow" in found:
        algorithm, state = found["tensorflow"]
        generator = _global_generator()
        if generator is not None and int(generator.algorithm) == algorithm:
            generator.state.assign(state)
        else:
            tf.random.set_global_generator(tf.random.Generator.from_state(state, algorithm))
    if "keras" in found:
        from keras.src.random.seed_generator import global_seed_generator

        global_seed_generator().state.assign(found["keras"])


def _eager() -> random.Random | None:
    """What TensorFlow draws the seeds of eager operations from, after `tf.random.set_seed`."""
    from tensorflow.python.eager import context

    found = getattr(context.context(), "_rng", None)
    return found if isinstance(found, random.Random) else None


def _global_generator() -> Any:
    from tensorflow.python.ops import stateful_random_ops

    return getattr(stateful_random_ops, "global_generator", None)


def _keras_seeds() -> Any:
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute("global_seed_generator")
