"""The mock server's HTTP/1.1: parsing by httptools, answers written straight to the transport.

A web framework would cost more per request than a client does; with a thousand requests at once the mock would
measure itself.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import httptools

if TYPE_CHECKING:
    from collections.abc import Callable

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


class Request(NamedTuple):
    """One request and when its last byte came, in loop time."""

    method: str
    path: str
    body: bytes
    received: float


def frame(data: bytes) -> bytes:
    """A piece of a body in chunked transfer coding (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


#: What ends a chunked body.
LAST_FRAME = b"0\r\n\r\n"
#: The head of a streamed answer.
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def whole_response(status: int, content: Any) -> bytes:
    """A complete answer; text as it is, anything else as JSON."""
    is_text = isinstance(content, str)
    body = content.encode() if is_text else json.dumps(content).encode()
    kind = "text/plain" if is_text else "application/json"
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    """One connection of a client: requests one after the other, no pipelining.

    Args:
        loop: The event loop.
        handle: Called once a request is complete; it answers through `transport` and calls `answered`.
    """

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop, handle: Callable[[Connection, Request], None]) -> None:
        self._loop = loop
        self._handle = handle
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body: list[bytes] = []
        self._received = 0.0
        self._keep_alive = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        if isinstance(transport, asyncio.Transport):
            self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Note the time and parse; the work waits until every socket that is ready was read.

        Otherwise the last of many requests that came together would seem to have come late.
        """
        self._received = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.write(whole_response(400, {"error": "not HTTP/1.1"}))
            self.transport.close()

    def on_url(self, url: bytes) -> None:
        """See httptools."""
        self._path += url

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        self._keep_alive = self._parser.should_keep_alive()
        request = Request(
            self._parser.get_method().decode(), self._path.decode(), b"".join(self._body), self._received
        )
        self._path, self._body = b"", []
        self._loop.call_soon(self._handle, self, request)

    def answered(self) -> None:
        """The answer was written to its end."""
        if not self._keep_alive:
            self.transport.close()
