"""tensorflow.ProfilerService: what TensorFlow does in the engines, for TensorBoard and
`tf.profiler.experimental.client`.

The server writes nothing where a client says. The profile is in the answer, and the client saves
it: it does so with whatever files an answer holds.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from sublet.channel.codes import Code, invalid_argument
from sublet.errors import ServingError
from sublet.serving.access import Right
from sublet.serving.frontend.grpc.calls import Data, Method, Methods
from sublet.serving.frontend.grpc.requests import parse, serialized
from sublet.serving.frontend.model_backend import ModelBackend
from sublet.serving.frontend.proto import message
from sublet.serving.metrics import Counts, Inferences

_FILE = "xplane.pb"
"""How TensorBoard knows a profile."""
_LONGEST = 60.0  # Seconds until a profile begins, and of a look.
_HOST_LEVEL, _DEVICE_LEVEL = 2, 1
"""TensorFlow's own, for requests that say nothing of them."""


class ProfilerService:
    """tensorflow.ProfilerService."""

    def __init__(self, backend: ModelBackend) -> None:
        self._backend = backend

    def methods(self) -> Methods:
        path = b"/tensorflow.ProfilerService/"
        return {
            path + b"Profile": Method(self.profile, right=Right.PROFILE),
            path + b"Terminate": Method(self.terminate, right=Right.PROFILE),
            path + b"Monitor": Method(self.monitor, right=Right.PROFILE),
        }

    async def profile(self, data: Data, deadline: float | None) -> bytes:
        """A profile of each engine, as files for the client to save."""
        request = parse(message("tensorflow.ProfileRequest"), data)
        options = request.opts
        begins = options.start_timestamp_ns / 1e9 - time.time()
        if begins > _LONGEST:
            raise invalid_argument(f"A profile begins within {_LONGEST:g} seconds.")
        await asyncio.sleep(max(0.0, begins))
        session = request.session_id
        question = {
            "ask": "profile",
            "session": session,
            "seconds": (options.duration_ms or request.duration_ms) / 1000,
            "host_level": options.host_tracer_level if options.version else _HOST_LEVEL,
            "device_level": options.device_tracer_level if options.version else _DEVICE_LEVEL,
        }
        try:
            answers = await self._backend.ask_engines(question)
        except asyncio.CancelledError:
            await self._backend.ask_engines({"ask": "end profile", "session": session})
            raise
        response = message("tensorflow.ProfileResponse")()
        for number, path in enumerate(answers):
            if not path:
                continue  # Nothing happened there.
            # Of several engines each is a host of its own to TensorBoard.
            name = f"engine{number + 1}.{_FILE}" if len(answers) > 1 else _FILE
            try:
                contents = await asyncio.to_thread(Path(path).read_bytes)
            except OSError:
                raise ServingError(
                    "The profile is gone: an engine has ended, or others were faster. Try again.",
                    Code.UNAVAILABLE,
                ) from None
            response.tool_data.add(name=name, data=contents)
        response.empty_trace = not response.tool_data
        return serialized(response)

    async def terminate(self, data: Data, deadline: float | None) -> bytes:
        """End a profile now; who asked for it gets what there is."""
        session = parse(message("tensorflow.TerminateRequest"), data).session_id
        await self._backend.ask_engines({"ask": "end profile", "session": session})
        return serialized(message("tensorflow.TerminateResponse")())

    async def monitor(self, data: Data, deadline: float | None) -> bytes:
        """What became of the calls of each model for a while, in words."""
        request = parse(message("tensorflow.MonitorRequest"), data)
        seconds = request.duration_ms / 1000
        if not 0 < seconds <= _LONGEST:
            raise invalid_argument(f"A look takes more than 0 and at most {_LONGEST:g} seconds.")
        before = await self._backend.statistics()
        await asyncio.sleep(seconds)
        lines = list(_changes(before, await self._backend.statistics(), seconds))
        if request.timestamp:
            lines.insert(0, f"Timestamp: {time.strftime('%H:%M:%S')}")
        return serialized(message("tensorflow.MonitorResponse")(data="\n".join(lines) + "\n"))


def _changes(before: Counts, after: Counts, seconds: float) -> Iterator[str]:
    """A line for each version that was called between the two."""
    quiet = True
    for (model, version), now in sorted(after.items()):
        then = before.get((model, version), Inferences())
        answered = now.answered - then.answered
        failed = now.failed - then.failed
        if not answered and not failed:
            continue
        quiet = False
        rows = now.rows - then.rows
        waited = (now.queued_seconds - then.queued_seconds) / max(1, answered)
        took = (now.answered_seconds - then.answered_seconds) / max(1, answered)
        yield (
            f"{model} version {version}: {answered / seconds:.1f} calls/s, {failed} failed, "
            f"{rows / max(1e-9, now.batches - then.batches):.1f} rows per batch, "
            f"{took * 1e3:.1f} ms per call ({waited * 1e3:.1f} ms in the queue)"
        )
    if quiet:
        yield "No model was called."
