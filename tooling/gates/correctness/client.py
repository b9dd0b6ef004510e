"""The HTTP edge of the gate: one place that asks, times, and keeps every word of what was said."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Self

import requests

from tooling.errors import InputError
from tooling.gates.correctness.answers import (
    OK,
    Answer,
    Fault,
    Finding,
    NotAnAnswerError,
    judge_answer,
    judge_failure,
    parse_answer,
)
from tooling.gates.correctness.sse import SseDecoder, Streamed, assemble
from tooling.gates.records import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from tooling.gates.correctness.profile import Profile

#: Seconds to a TCP connection.
CONNECT_S = 5.0
#: After so many requests in a row without any answer the server is gone, and asking on only wastes time.
GONE_AFTER = 3


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server.

    Attributes:
        base_url: e.g. `http://127.0.0.1:30000`, with or without `/v1`.
        model: Name of the model; empty means the only one that the server lists.
        api_key: Bearer token; it is never logged.
    """

    base_url: str
    model: str = ""
    api_key: str = field(default="", repr=False)

    @property
    def root(self) -> str:
        """The URL without `/v1`, where the engines' own routes are.

        Raises:
            InputError: It is no http(s) URL, or holds credentials.
        """
        url = self.base_url.strip().rstrip("/").removesuffix("/v1")
        if not url.startswith(("http://", "https://")):
            raise InputError(f"not an http URL: {self.base_url!r}", fix="give e.g. http://127.0.0.1:30000")
        if "@" in url:
            raise InputError(
                "the URL holds credentials, which would be logged", fix="give a token by environment"
            )
        return url


@dataclass
class Reply:
    """What came back on one request.

    Attributes:
        tag: What it was for, e.g. `ladder-64@mul-17-23`: a kind, and one of the kind.
        status: HTTP status; None if there was none.
        body: Parsed JSON, if it was JSON.
        text: The body, or the transport's error.
        elapsed_s: Seconds from sending to the last byte.
        gap_s: Longest time in seconds without a byte.
        answer: The parsed answer of a chat request.
        streamed: How it was put together, if it came as a stream.
        findings: What is wrong with it, whatever was asked.
    """

    tag: str
    status: int | None = None
    body: Any = None
    text: str = ""
    elapsed_s: float = 0.0
    gap_s: float = 0.0
    answer: Answer | None = None
    streamed: Streamed | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def said(self) -> str:
        """The user's text, empty if there is none."""
        return self.answer.text if self.answer else ""


class Client:
    """Asks one server and writes every exchange to a JSON-lines file; safe to use from many threads."""

    def __init__(self, endpoint: Endpoint, profile: Profile, log: Path) -> None:
        self.endpoint = endpoint
        self.profile = profile
        self.model = endpoint.model
        self.replies: list[Reply] = []
        self._root = endpoint.root
        self._log: IO[str] = log.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self._silent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    @property
    def gone(self) -> bool:
        """Whether the server has left several requests in a row unanswered."""
        return self._silent >= GONE_AFTER

    def get(self, path: str, *, timeout_s: float = 10.0) -> Reply:
        """GET a route of the server; not counted among the chat replies."""
        return self._send("GET", path, None, f"GET {path}", timeout_s)

    def post(self, path: str, body: dict[str, Any], tag: str) -> Reply:
        """POST JSON to a route of the engine's own; not counted among the chat replies."""
        return self._send("POST", path, body, tag, self.profile.chat.timeout_s)

    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        tag: str,
        *,
        max_tokens: int | None = None,
        stream: bool = False,
        extra: dict[str, Any] | None = None,
        ascii_only: bool = True,
    ) -> Reply:
        """Ask greedily, with log-probabilities, and judge the reply.

        Args:
            messages: The conversation.
            tag: What it is for.
            max_tokens: Token budget of the answer; by default the profile's.
            stream: Ask for a stream and put it together.
            extra: Further fields of the request; they win over the profile's `extra_body`.
            ascii_only: Whether a good answer is plain ASCII.
        """
        chat = self.profile.chat
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "temperature": 0,
            "max_tokens": max_tokens or chat.max_tokens,
            "logprobs": True,
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
            **chat.extra_body,
            **(extra or {}),
        }
        if body["logprobs"]:
            body["top_logprobs"] = 1
        reply = self._send("POST", "/v1/chat/completions", body, tag, chat.timeout_s)
        self._judge(reply, want_logprobs=bool(body["logprobs"]) and not stream, ascii_only=ascii_only)
        with self._lock:
            self.replies.append(reply)
            self._silent = self._silent + 1 if reply.status is None else 0
        return reply

    def _judge(self, reply: Reply, *, want_logprobs: bool, ascii_only: bool) -> None:
        if reply.status != OK:
            reply.findings = [judge_failure(reply.status, reply.text)]
            return
        try:
            reply.answer = reply.streamed.answer if reply.streamed else parse_answer(reply.body)
        except NotAnAnswerError as error:
            reply.findings = [
                Finding(fault=Fault.MALFORMED, verdict=Verdict.FAIL, seen=f"HTTP 200, but {error}")
            ]
            return
        reply.findings = judge_answer(reply.answer, want_logprobs=want_logprobs, ascii_only=ascii_only)

    def _send(self, method: str, path: str, body: dict[str, Any] | None, tag: str, timeout_s: float) -> Reply:
        reply = Reply(tag)
        # A connection of its own for every request: reusing one that the server is just closing loses requests.
        headers = {"Connection": "close"}
        if self.endpoint.api_key:
            headers["Authorization"] = f"Bearer {self.endpoint.api_key}"
        started = time.monotonic()
        raw = b""
        try:
            with (
                requests.Session() as session,
                session.request(
                    method,
                    self._root + path,
                    json=body,
                    headers=headers,
                    timeout=(CONNECT_S, timeout_s),
                    stream=True,
                ) as response,
            ):
                chunks = Timed(response.iter_content(chunk_size=None), started)
                if "text/event-stream" in response.headers.get("Content-Type", ""):
                    decoder = SseDecoder()
                    events = [event for chunk in chunks for event in decoder.feed(chunk)]
                    reply.streamed = assemble([*events, *decoder.feed(b"", final=True)])
                    raw = b"".join(chunks.seen)
                else:
                    raw = b"".join(chunks)
                reply.status = response.status_code
                reply.gap_s = chunks.gap_s
        except requests.RequestException as error:
            reply.text = f"{type(error).__name__}: {error}"
        else:
            reply.text = raw.decode("utf-8", "replace")
            if reply.streamed is None:
                reply.body = _json(reply.text)
        reply.elapsed_s = time.monotonic() - started
        if reply.status is None:
            reply.gap_s = reply.elapsed_s
        self._write(reply, path, body)
        return reply

    def _write(self, reply: Reply, path: str, body: dict[str, Any] | None) -> None:
        line = {
            "tag": reply.tag,
            "path": path,
            "request": body,
            "status": reply.status,
            "elapsed_s": round(reply.elapsed_s, 4),
            "response": reply.text if reply.body is None else reply.body,
        }
        with self._lock:
            self._log.write(json.dumps(line, ensure_ascii=False) + "\n")


class Timed:
    """Passes chunks on and notes the longest wait for one."""

    def __init__(self, chunks: Iterable[bytes], started: float) -> None:
        self._chunks = chunks
        self._last = started
        self.gap_s = 0.0
        self.seen: list[bytes] = []

    def __iter__(self) -> Timed:
        self._iterator = iter(self._chunks)
        return self

    def __next__(self) -> bytes:
        try:
            chunk = next(self._iterator)
        finally:
            now = time.monotonic()
            self.gap_s = max(self.gap_s, now - self._last)
            self._last = now
        self.seen.append(chunk)
        return chunk


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def results(futures: Iterable[Future[Reply]]) -> list[Reply]:
    """The replies of requests that ran at once, in the order they were sent."""
    return [future.result() for future in futures]
