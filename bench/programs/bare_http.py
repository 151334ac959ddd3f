"""The limit for REST: httptools, orjson and TensorFlow in one process.

`bare_http.py PORT NAME=PATH…`: the same requests as TensorFlow Serving's `:predict`, believed.
"""

import asyncio
import functools
import sys
import threading
from typing import Any

import httptools
import numpy as np
import orjson

from bench.programs.greedy import Array, Greedy, load

try:
    import uvloop
except ImportError:
    uvloop = None


class _Connection(asyncio.Protocol):
    def __init__(self, models: dict[bytes, Greedy]) -> None:
        self._models = models
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._parts: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self._write = transport.write

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url
        self._parts = []

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":
            self._write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            return
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        rows = np.array(orjson.loads(body)["instances"], np.float32)
        self._models[self._url].put(rows, self._answer)

    def _answer(self, outputs: Array) -> None:
        body = orjson.dumps({"predictions": outputs}, option=orjson.OPT_SERIALIZE_NUMPY)
        self._write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )


async def main(port: int, *models: str) -> None:
    """Serve for ever."""
    busy = threading.Lock()
    queues = {}
    for one in models:
        name, _, path = one.partition("=")
        queues[f"/v1/models/{name}:predict".encode()] = Greedy(load(path), busy)
    make = functools.partial(_Connection, queues)
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    (uvloop or asyncio).run(main(int(sys.argv[1]), *sys.argv[2:]))
