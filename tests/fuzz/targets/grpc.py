"""A connection of the gRPC front end, in front of models without engines."""

from typing import Any, cast

import numpy as np

from fuzz.driver import Random, Target
from fuzz.pipes import Pipe, Stage, pieces, settle
from sublet.serving.frontend.grpc import frames, hpack
from sublet.serving.frontend.grpc.connection import Connection
from sublet.serving.frontend.grpc.frames import Setting
from sublet.serving.frontend.grpc.server import GrpcServer
from sublet.serving.frontend.limits import Limits
from sublet.serving.frontend.peer import Peer
from sublet.serving.frontend.proto import serving, tensors
from support.grpc_backend import StandInBackend
from support.h2client import POST

_KINDS = range(12)
_MODELS = ("half", "echo", "slow", "none")
_PATHS = (
    b"/tensorflow.serving.PredictionService/Predict",
    b"/tensorflow.serving.PredictionService/Classify",
    b"/tensorflow.serving.ModelService/GetModelStatus",
    b"/tensorflow.serving.ModelService/HandleReloadConfigRequest",
    b"/inference.GRPCInferenceService/ModelInfer",
    b"/inference.GRPCInferenceService/ModelStreamInfer",
    b"/grpc.health.v1.Health/Watch",
    b"/nothing",
)


def _predict(model: str, rows: int) -> bytes:
    asked = serving("PredictRequest")()
    asked.model_spec.name = model
    asked.inputs["x"].ParseFromString(tensors.write(np.ones((rows, 1), np.float32)))
    data: bytes = asked.SerializeToString()
    return b"\0" + len(data).to_bytes(4, "big") + data


def _call(stream: int, path: bytes, body: bytes, *more: tuple[bytes, bytes]) -> bytes:
    heads = tuple((name, path if name == b":path" else value) for name, value in POST)
    block = hpack.encode((*heads, *more))
    head = frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block)
    return head + frames.frame(frames.DATA, frames.END_STREAM, stream, body)


_HALF = _call(1, _PATHS[0], _predict("half", 9))
GREETING = frames.PREFACE + frames.settings({})
SEEDS = (
    GREETING + _call(1, _PATHS[0], _predict("half", 3)),
    GREETING + _call(1, _PATHS[0], _predict("echo", 2)) + _call(3, _PATHS[2], b"\0\0\0\0\0"),
    GREETING + _call(1, _PATHS[0], _predict("slow", 1), (b"grpc-timeout", b"99999999H")),
    GREETING + _call(1, _PATHS[5], _predict("half", 1)) + frames.reset(1, frames.Fault.CANCEL),
    GREETING + _call(1, _PATHS[6], b"\0\0\0\0\0") + frames.window_update(1, 1000),
    GREETING + frames.settings({Setting.INITIAL_WINDOW_SIZE: 3}) + _HALF,
    GREETING + frames.frame(frames.PING, 0, 0, bytes(8)) + frames.goaway(1, frames.Fault.NO_ERROR),
    b"GET / HTTP/1.1\r\n\r\n",
)  # fmt: skip


def target() -> Target:
    stage = Stage()

    async def rest_server() -> GrpcServer:
        return GrpcServer(StandInBackend(), 1 << 20, 1 << 22, Limits())

    server = stage.run(rest_server)

    async def feed(data: bytes) -> None:
        pipe = Pipe()
        connection = Connection(server, Peer())
        connection.connection_made(cast(Any, pipe))
        for piece in pieces(data):
            while piece:
                buffer = connection.get_buffer(len(piece))
                size = min(len(buffer), len(piece))
                buffer[:size] = piece[:size]
                connection.buffer_updated(size)
                piece = piece[size:]
            await settle()
        for now in (1e9, 2e9, 3e9):
            connection.sweep(now)
            await settle()
        connection.connection_lost(None)
        await settle()
        assert not server.connections
        assert server.streams == 0
        assert server.budget.taken == 0
        _check(bytes(pipe.written))

    return Target(lambda data: stage.run(lambda: feed(data)), SEEDS, make, stage.close)


def make(chance: Random) -> bytes:
    """Frames of all kinds, most of them in streams that are there."""
    said = [GREETING]
    stream = 1
    for _ in range(chance.randrange(1, 12)):
        match chance.randrange(4):
            case 0:
                body = _predict(
                    chance.choice(("half", "echo", "slow", "none")), chance.randrange(9)
                )
                body = body[: chance.randrange(len(body) + 1)] if chance.random() < 0.3 else body
                timeout = (b"grpc-timeout", chance.choice((b"1n", b"1H", b"99999999H", b"x")))
                said.append(_call(stream, chance.choice(_PATHS), body, timeout))
                stream += 2
            case 1:
                kind, flags = chance.choice(_KINDS), chance.choice((0, 1, 4, 5, 8, 9, 0x20, 0x2D))
                number = chance.choice((0, 1, 2, stream, max(1, stream - 2), 2**31 - 1))
                size = chance.choice((0, 1, 4, 5, 6, 8, 40))
                said.append(frames.frame(kind, flags, number, chance.randbytes(size)))
            case 2:
                options = {
                    chance.choice(list(Setting)): chance.choice((0, 1, 16384, 2**31 - 1, 2**32 - 1))
                }
                said.append(frames.settings(options))
            case _:
                number = chance.choice((0, 1, stream))
                said.append(frames.window_update(number, chance.choice((0, 1, 65535, 2**31 - 1))))
    return b"".join(said)


def _check(written: bytes) -> None:
    """Whatever was answered is frames, or a word to who speaks something else."""
    if written.startswith(b"HTTP/1.1 400"):
        return
    at = 0
    while at < len(written):
        high, low, kind, _, _ = frames.HEAD.unpack_from(written, at)
        assert kind <= frames.CONTINUATION
        at += frames.HEAD_SIZE + (high << 8 | low)
    assert at == len(written)
