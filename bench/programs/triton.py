"""The best peer: PyTriton, which puts NVIDIA's server before a Python function.

`triton.py HTTP_PORT GRPC_PORT NAME=PATH…`, run by the interpreter of its own environment, so it
imports nothing of this repository.
"""

import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

_LARGEST = 32


def main(http: int, grpc: int, *models: str) -> None:
    """Serve until SIGTERM."""
    kept = []
    with Triton(config=TritonConfig(http_port=http, grpc_port=grpc, allow_metrics=False)) as triton:
        for one in models:
            name, _, path = one.partition("=")
            loaded = tf.saved_model.load(path)
            kept.append(loaded)
            triton.bind(
                model_name=name,
                infer_func=batch(_function(loaded.signatures["serving_default"])),
                inputs=[Tensor(name="x", dtype=np.float32, shape=(784,))],
                outputs=[Tensor(name="y", dtype=np.float32, shape=(10,))],
                config=ModelConfig(
                    batching=True,
                    max_batch_size=_LARGEST,
                    batcher=DynamicBatcher(max_queue_delay_microseconds=0),
                ),
                strict=False,
            )
        triton.run()
        signal.pause()


def _function(signature: Any) -> Callable[[Any], dict[str, Any]]:
    (name,) = signature.structured_input_signature[1]
    (output,) = signature.structured_outputs

    def infer(x: Any) -> dict[str, Any]:
        return {"y": signature(**{name: tf.constant(x)})[output].numpy()}

    return infer


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
