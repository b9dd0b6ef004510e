"""A reverse proxy in front of a real engine that adds one fault: what a broken server does, at the wire.

with FaultyProxy(engine_url, refuse_every(2)) as url: ...
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import requests

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Takes the number of the chat request (from 1), its handler, and a function that fetches the engine's
    #: reply; sends a reply, or none.
    Fault = Callable[[int, "Handler", Callable[[], requests.Response]], None]

CHAT = "/v1/chat/completions"


class Handler(BaseHTTPRequestHandler):
    """Passes everything on; chat requests go through the fault."""

    protocol_version = "HTTP/1.1"
    server: Server
    asked = ""

    def do_GET(self) -> None:  # the base class's name
        """Pass a GET on."""
        self.pass_on(self.ask_engine(b""))

    def do_POST(self) -> None:  # the base class's name
        """Pass a POST on, or spoil it."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked = body.decode()
        if self.path != CHAT:
            self.pass_on(self.ask_engine(body))
            return
        self.server.fault(self.server.next_number(), self, lambda: self.ask_engine(body))

    def ask_engine(self, body: bytes) -> requests.Response:
        """The engine's own reply, whole."""
        headers = {"Content-Type": "application/json", "Connection": "close"}
        return requests.request(
            self.command, self.server.engine + self.path, data=body, headers=headers, timeout=60
        )

    def pass_on(self, response: requests.Response, body: bytes | None = None) -> None:
        """Send a reply of the engine, perhaps with another body."""
        body = response.content if body is None else body
        self.send_response(response.status_code)
        self.send_header("Content-Type", response.headers.get("Content-Type", "application/json"))
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def reset(self) -> None:
        """End the connection with a reset, as a listener that refuses does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()
        self.wfile = self.rfile = _Nowhere()  # type: ignore[assignment]  # the base class flushes and closes them

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class _Nowhere:
    """A file whose connection is gone."""

    closed = True

    def flush(self) -> None:
        """Nothing is left to flush."""

    def close(self) -> None:
        """Nothing is left to close."""


class Server(ThreadingHTTPServer):
    """The listening side."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, engine: str, fault: Fault) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.engine = engine
        self.fault = fault
        self._count = 0
        self._lock = threading.Lock()

    def next_number(self) -> int:
        """How many chat requests there were, this one included."""
        with self._lock:
            self._count += 1
            return self._count


class FaultyProxy:
    """Runs the proxy in a thread while the block runs."""

    def __init__(self, engine: str, fault: Fault) -> None:
        self._server = Server(engine, fault)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def refuse_every(n: int) -> Fault:
    """Every n-th chat request gets a reset connection."""

    def fault(number: int, handler: Handler, fetch: Callable[[], requests.Response]) -> None:
        if number % n == 0:
            handler.reset()
        else:
            handler.pass_on(fetch())

    return fault


def freeze_once(at: int, seconds: float) -> Fault:
    """One chat request is answered late."""

    def fault(number: int, handler: Handler, fetch: Callable[[], requests.Response]) -> None:
        if number == at:
            time.sleep(seconds)
        handler.pass_on(fetch())

    return fault


def silent_after(n: int, released: threading.Event) -> Fault:
    """After n chat requests the server accepts connections and never answers, until the test is over."""

    def fault(number: int, handler: Handler, fetch: Callable[[], requests.Response]) -> None:
        if number > n:
            released.wait(30)
            handler.reset()
        else:
            handler.pass_on(fetch())

    return fault


def change_answer(change: Callable[[dict[str, Any]], None]) -> Fault:
    """Every answer in one piece is changed in place."""

    def fault(_: int, handler: Handler, fetch: Callable[[], requests.Response]) -> None:
        response = fetch()
        if response.status_code != requests.codes.ok or "json" not in response.headers.get("Content-Type", ""):
            handler.pass_on(response)
            return
        body = response.json()
        change(body)
        handler.pass_on(response, json.dumps(body).encode())

    return fault


def answer_from_request(find: Callable[[str], str]) -> Fault:
    """The text of every answer is made from the last message of its request: a model that can do one thing."""

    def fault(_: int, handler: Handler, fetch: Callable[[], requests.Response]) -> None:
        response = fetch()
        if "json" not in response.headers.get("Content-Type", ""):
            handler.pass_on(response)
            return
        body = response.json()
        body["choices"][0]["message"]["content"] = find(json.loads(handler.asked)["messages"][-1]["content"])
        handler.pass_on(response, json.dumps(body).encode())

    return fault


def change_stream(change: Callable[[bytes], bytes]) -> Fault:
    """Every stream is changed; answers in one piece are not."""

    def fault(_: int, handler: Handler, fetch: Callable[[], requests.Response]) -> None:
        response = fetch()
        streamed = "event-stream" in response.headers.get("Content-Type", "")
        handler.pass_on(response, change(response.content) if streamed else None)

    return fault
