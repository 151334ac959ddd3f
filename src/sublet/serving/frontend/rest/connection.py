"""One client's connection: what is a request, in which order replies go out, and who is too slow.

A client that ends its side still gets its answers. Whether it has gone altogether shows when
something is written to it: then its calls are cancelled.

States: reading a head → reading a body → (again) … → closing (what comes is dropped) → gone.
Requests may be pipelined; they run side by side, and their replies leave in the order of arrival.
No task and no timer is made per request: a reply is written from the callback of the future that
the answer is, and one sweep of the server looks at all clocks.
"""

import asyncio
import re
import time
from collections import deque
from typing import TYPE_CHECKING, cast

from sublet.channel.codes import Code
from sublet.serving.frontend.limits import Pace
from sublet.serving.frontend.peer import Peer
from sublet.serving.frontend.protocol_server import ClientConnection
from sublet.serving.frontend.request_traces import incoming
from sublet.serving.frontend.rest import messages
from sublet.serving.frontend.rest.bodies import Chunks, unpack
from sublet.serving.frontend.rest.exchange import Exchange, Pending, server_error
from sublet.serving.frontend.rest.heads import check_beginning
from sublet.serving.frontend.rest.messages import Body, Head, Refused, Reply, Request
from sublet.serving.frontend.rest.oip import CHANGES

if TYPE_CHECKING:
    from sublet.serving.frontend.rest.server import Server

_LARGE = 64 * 1024
"""From here a reply's body is not copied behind its first lines."""
_BARE_LINE_END = re.compile(rb"(?<!\r)\n")


class Connection(ClientConnection, asyncio.Protocol):
    """Owned by the server; ends itself when the client goes, or is closed by a sweep."""

    def __init__(self, context: "Server", peer: Peer) -> None:
        super().__init__()
        self._context = context
        self._peer = peer
        self._limits = context.limits
        self._exchanges: deque[Exchange] = deque()
        self._head: Head | None = None  # Of the request whose body is being read.
        self._data = b""
        """Came, and was not looked at: the beginning of a head, or requests too many."""
        self._begun = False  # A part of a head is there.
        self._body = bytearray()
        self._pace: Pace  # Of the body that is being read.
        self._chunks: Chunks | None = None
        self._owes_continue = False
        """Whether the client waits for leave to send a body, behind replies that are not out."""
        self._heard_all = False  # Whether the client has ended its side.
        self._closing = False
        """Nothing more is read; the connection ends when all replies are out."""
        self._ended = False
        """Our side is shut: the client may still be sending, and is not listened to."""

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it.
        self._context.connections.add(self)
        if len(self._context.connections) > self._limits.connections:
            self._refuse(Refused(503, "There are too many connections; try again later."))

    def connection_lost(self, exc: Exception | None) -> None:
        self._context.connections.discard(self)
        self._closing = self._ended = True
        for exchange in self._exchanges:
            exchange.give_up()
        self._exchanges.clear()
        self._forget()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._data:
            data = self._data + data
            self._data = b""
        self._read(data)

    def eof_received(self) -> bool:
        """The client sends no more. TLS knows no such half of an end."""
        self._heard_all = True
        self._forget()  # What is not complete never will be.
        if self._ended or not self._exchanges or not self._transport.can_write_eof():
            return False
        if self._exchanges[0].head.minor:
            # Who only listens passes over it; where nobody does, the connection is reset.
            self._transport.write(messages.CONTINUE)
        return True

    def resume_writing(self) -> None:
        self._clogged = False
        self._since = time.monotonic()
        self._listen()

    # Reading

    def _read(self, data: bytes) -> None:
        try:
            while data and not self._closing:
                if self._head is not None:
                    data = self._read_body(self._head, data)
                elif self._clogged or len(self._exchanges) >= self._limits.pipelined:
                    self._data = data
                    self._transport.pause_reading()
                    return
                else:
                    data = self._read_head(data)
        except Refused as refused:
            self._refuse(refused)

    def _read_head(self, data: bytes) -> bytes:
        end = data.find(b"\r\n\r\n") + 4
        if end == 3:
            self._wait_for_head(data)
            return b""
        if data.startswith(b"\r\n"):
            return data.lstrip(b"\r\n")  # Empty lines before a request are ignored.
        if end > self._limits.head:
            raise Refused(431, f"The headers are larger than {self._limits.head} bytes.")
        self._begun = False
        head = self._context.heads.read(data[:end])
        asks = self._context.access.callers and not self._peer.owner
        if asks or head.path.startswith(CHANGES):
            self._check(head)
        length = head.length
        if length > self._limits.body:
            raise Refused(413, f"The body is larger than {self._limits.body} bytes.")
        stop = end + length
        if length >= 0 and stop <= len(data):
            self._take(head, data[end:stop] if length else b"")
            return data[stop:]
        self._head = head
        self._pace = Pace(time.monotonic())
        if length < 0:
            self._chunks = Chunks(self._limits)
        if head.expects and len(data) == end:
            self._owes_continue = True
            self._send_continue()
        return data[end:]

    def _send_continue(self) -> None:
        if self._owes_continue and not self._exchanges:
            self._owes_continue = False
            self._pace = Pace(time.monotonic())  # Only now the client begins.
            self._transport.write(messages.CONTINUE)

    def _check(self, head: Head) -> None:
        """Refuse who has no token, before anything of its body is taken in."""
        if head.method == "OPTIONS" and self._context.lines:
            return  # A browser asks this before it is told the token.
        right = self._context.router.right(head)
        refused = self._context.access.refusal(right, self._peer.owner, head.authorization)
        if refused is not None:
            denied = refused.code == Code.PERMISSION_DENIED
            raise Refused(403 if denied else 401, refused.message)

    def _wait_for_head(self, data: bytes) -> None:
        if len(data) > self._limits.head:
            raise Refused(431, f"The headers are larger than {self._limits.head} bytes.")
        if _BARE_LINE_END.search(data):
            raise Refused(400, "Malformed HTTP request: a line does not end in CR LF.")
        if not self._begun:
            check_beginning(data)
            self._begun = True
            self._since = time.monotonic()
        self._data = data

    def _read_body(self, head: Head, data: bytes) -> bytes:
        if self._context.coming > self._limits.bodies:
            raise Refused(503, "Too many large requests are coming in; try again later.")
        if self._chunks is not None:
            before = len(self._chunks.body)
            try:
                data = self._chunks.feed(data)
            finally:
                self._context.coming += len(self._chunks.body) - before
            if self._chunks.done:
                body = self._chunks.body
                self._forget()
                self._take(head, body)
            return data
        missing = head.length - len(self._body)
        self._context.coming += min(len(data), missing)
        self._body += data if len(data) <= missing else memoryview(data)[:missing]
        if len(self._body) == head.length:
            body = self._body
            self._forget()
            self._take(head, body)
        return data[missing:]

    def _forget(self) -> None:
        self._context.coming -= len(self._body)
        if self._chunks is not None:
            self._context.coming -= len(self._chunks.body)
        self._head = self._chunks = None
        self._owes_continue = False
        self._body = bytearray()

    def _take(self, head: Head, body: Body) -> None:
        """Handle a request that is complete."""
        if head.gzip:
            body = unpack(body, self._limits.body)
        now = time.monotonic()
        self._since = now
        exchange = Exchange(self.send, head, now + self._limits.call + 1.0)
        self._exchanges.append(exchange)
        if not head.keep_alive:
            self._closing = True
        try:
            if head.method == "OPTIONS" and self._context.lines:
                # What a browser asks before it sends JSON: the lines are the answer.
                reply: Reply | Pending = Reply(200, b"")
            else:
                if head.trace or incoming.get():
                    incoming.set(head.trace)
                reply = self._context.router.handle(Request(head, body, now, self._peer))
        except Exception as failed:
            reply = server_error(failed)
        if isinstance(reply, Pending):
            exchange.wait(reply)
        else:
            exchange.reply = reply
            self.send()

    def _refuse(self, refused: Refused) -> None:
        self._closing = True
        self._forget()
        self._data = b""
        exchange = Exchange(self.send, Head("POST", "", keep_alive=False), float("inf"))
        exchange.reply = messages.error(refused.status, refused.text)
        self._exchanges.append(exchange)
        self.send()

    # Writing

    def send(self) -> None:
        """Write all replies whose turn it is."""
        exchanges = self._exchanges
        while exchanges and (reply := exchanges[0].reply) is not None:
            head = exchanges.popleft().head
            ending = self._context.draining or self._heard_all
            last = not exchanges and (self._closing or (ending and self._at_rest()))
            first = messages.first_lines(reply, not last, head.minor, self._context.lines)
            if head.method == "HEAD":
                self._transport.write(first)
            elif len(reply.body) < _LARGE:
                self._transport.write(first + reply.body)
            else:
                self._transport.writelines((first, reply.body))
            if last:
                self._end()
                return
        self._send_continue()
        if self._data:
            self._listen()

    def _listen(self) -> None:
        """Go on reading what waits, unless the client has enough running or to read."""
        if self._closing or self._clogged or len(self._exchanges) >= self._limits.pipelined:
            return
        if not self._heard_all:
            self._transport.resume_reading()
        data, self._data = self._data, b""
        if data:
            self._read(data)

    def _end(self) -> None:
        """All is said. The client may still be sending: it hears us only if we do not hang up."""
        self._closing = self._ended = True
        self._data = b""
        self._since = time.monotonic()
        self._unread = self._transport.get_write_buffer_size()
        if self._transport.can_write_eof() and not self._heard_all:
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()

    # What the server calls

    def sweep(self, now: float) -> None:
        limits = self._limits
        waited = now - self._since
        if self._ended or self._clogged:
            said_all = self._ended and not self._transport.get_write_buffer_size()
            if self._reads_nothing(now, limits.linger if said_all else limits.slow):
                self._transport.abort()
        elif self._exchanges:
            for exchange in self._exchanges:
                if exchange.reply is None and exchange.until < now:
                    exchange.expire()
            self.send()
        elif self._head is not None:
            got = len(self._body if self._chunks is None else self._chunks.body)
            if self._pace.too_slow(got, now, limits):
                self._refuse(Refused(408, "The body came too slowly."))
        elif self._begun:
            if waited > limits.slow:
                self._refuse(Refused(408, "The headers came too slowly."))
        elif waited > (limits.linger if self._context.draining else self._silence()):
            self._transport.close()

    def _silence(self) -> float:
        return self._limits.silence(len(self._context.connections))

    def drain(self) -> None:
        """End after what runs, or soon if nothing does: a request may be on its way."""
        self._since = max(self._since, time.monotonic())

    def _at_rest(self) -> bool:
        return self._head is None and not self._data
