"""gRPC as it is usually written in Python: grpc.aio, raw bytes, and TensorFlow in the same process.

`bare_grpc.py PORT NAME=PATH…`: a PredictRequest whose last bytes are its rows; nothing is checked.
"""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import numpy as np

from bench.programs.greedy import Array, Greedy, load

SHAPES = {"images": (224, 224, 3)}
"""Of one row; the others are 784 floats."""
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def _handler(
    models: dict[bytes, tuple[Greedy, tuple[int, ...]]],
) -> Callable[..., Awaitable[bytes]]:
    async def predict(request: bytes, context: Any) -> bytes:
        # A PredictRequest begins with the ModelSpec, and that with the name: two bytes each.
        queue, shape = models[request[4 : 4 + request[3]]]
        size = int(np.prod(shape)) * 4
        rows = np.frombuffer(request, np.float32, offset=len(request) % size)
        answered: asyncio.Future[Array] = asyncio.get_running_loop().create_future()
        queue.put(rows.reshape(-1, *shape), answered.set_result)
        return (await answered).tobytes()

    return predict


async def main(port: int, *named: str) -> None:
    """Serve for ever."""
    busy = threading.Lock()
    models: dict[bytes, tuple[Greedy, tuple[int, ...]]] = {}
    for one in named:
        name, _, path = one.partition("=")
        models[name.encode()] = (Greedy(load(path), busy), SHAPES.get(name, (784,)))
    server = grpc.aio.server(options=_OPTIONS)
    handlers = {"Predict": grpc.unary_unary_rpc_method_handler(_handler(models))}
    service = "tensorflow.serving.PredictionService"
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), *sys.argv[2:]))
