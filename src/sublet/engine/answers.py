"""The answers of a batch, as records for each client.

Owns what is sent to whom. Requests of the same size and route have equal heads, so those are made
once for each batch; all answers for one client go in one packet.
"""

import json
from typing import Any

from sublet.channel import records, tensors
from sublet.channel.codes import Code, invalid_argument
from sublet.channel.packets import Outgoing
from sublet.channel.tensors import Array
from sublet.errors import ServingError

from . import failures
from .client_channels import Client, Route, pack
from .requests import Request

_MICRO = 1e6
_MOST = (1 << 32) - 1


class Answers:
    """Collects the answers of one batch."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._index = {name: index for index, name in enumerate(names)}
        self._clients: dict[Client, list[Outgoing]] = {}
        self._heads: dict[Any, tuple[bytes, int]] = {}

    def put(self, request: Request, outputs: list[Array], computed: float, rows: int) -> None:
        client: Client = request.client
        route: Route = request.route
        if route.named is None or route.named != (route.outputs or self._names):
            self._name(client, route)
        if route.outputs:
            try:
                outputs = [outputs[self._index[name]] for name in route.outputs]
            except KeyError as error:
                self.fail(
                    request,
                    invalid_argument(
                        f"output tensor alias not found in signature: {error.args[0]}"
                    ),
                )
                return
        queued = min(_MOST, int((request.started - request.arrived) * _MICRO))
        times = max(0, queued), min(_MOST, int(computed * _MICRO)), rows
        record = self._small(request, route, outputs, times)
        if record is None:
            nbytes = sum(array.nbytes for array in outputs)
            if nbytes > records.INLINE and not client.owes(request.call, nbytes):
                self.fail(request, _unread())
                return
            try:
                record = _large(request, route, outputs, times)
            except Exception as error:
                # It is of a type that does not travel, or there is no memory for it.
                client.has_taken(request.call)
                self.fail(request, failures.unsent(error))
                return
        self._finish(request).append(record)

    def fail(self, request: Request, error: ServingError) -> None:
        self._finish(request)
        request.client.fail(request.call, error)

    def send(self) -> list[Client]:
        """Send all of them; the clients that are behind."""
        for client, collected in self._clients.items():
            client.outbox.put_all(collected)
        return [client for client in self._clients if not client.flush()]

    def _finish(self, request: Request) -> list[Outgoing]:
        """Mark a request as answered; the list that its record goes to."""
        client: Client = request.client
        request.done = True
        client.calls.pop(request.call, None)
        found = self._clients.get(client)
        if found is None:
            found = self._clients[client] = []
        return found

    def _name(self, client: Client, route: Route) -> None:
        names = route.outputs or self._names
        body = json.dumps(names).encode()
        client.put(records.plain(records.ROUTE, route=route.number, body=body))
        # Only now: another thread that finds it named sends its answers behind the names.
        route.named = names

    def _small(
        self, request: Request, route: Route, outputs: list[Array], times: tuple[int, int, int]
    ) -> Outgoing | None:
        """The way of nearly all answers: one small array of numbers, whose head is known."""
        if len(outputs) != 1:
            return None
        (array,) = outputs
        shape = array.shape
        key = array.dtype, shape
        found = self._heads.get(key)
        if found is None:
            number = tensors.known(array.dtype)
            if number in (None, tensors.DT_STRING, tensors.DT_BFLOAT16):
                return None
            if array.nbytes > records.INLINE:
                return None
            head = tensors.head(number, shape, tensors.INLINE, array.nbytes)
            found = self._heads[key] = head, tensors.pad(array.nbytes)
        if not array.flags.c_contiguous:
            return None
        head, fill = found
        length = records.ANSWER_HEAD.size + len(head) + array.nbytes + fill
        start = records.ANSWER_HEAD.pack(
            length, records.ANSWER, 0, route.number, request.call, len(head), *times
        )
        if fill:
            return Outgoing((start, head, array, bytes(fill)), length)
        return Outgoing((start, head, array), length)


def _unread() -> ServingError:
    return ServingError(
        "The client has not taken the large answers that it was sent before. "
        "Have fewer calls in flight, or read sooner.",
        Code.RESOURCE_EXHAUSTED,
    )


def _large(
    request: Request, route: Route, outputs: list[Array], times: tuple[int, int, int]
) -> Outgoing:
    head, pieces, size, memory = pack(outputs)
    length = records.ANSWER_HEAD.size + size
    start = records.ANSWER_HEAD.pack(
        length, records.ANSWER, 0, route.number, request.call, len(head), *times
    )
    return Outgoing((start, head, *pieces), length, memory)
