"""A server that answers at a fixed, known rate, with faults on request: the truth for load clients.

It speaks the OpenAI completion routes with streaming, `/v1/models`, `/health` and `/metrics`, and notes for
every request when it really wrote which token (`/truth`), so that its own lateness is never blamed on a client.

    python -m tooling.gates.throughput.mock --plan '{"pace": {"itl_ms": 20}}'
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from tooling.gates.throughput.mock_http import (
    LAST_FRAME,
    STREAM_HEAD,
    Connection,
    Request,
    frame,
    whole_response,
)
from tooling.gates.throughput.mock_wire import MODEL, event_bytes, metric_lines
from tooling.gates.throughput.pacing import Pace, Pacer
from tooling.records import Record

#: The words that make one token of output each.
WORD = "tok "
#: Scheduling priority that it asks for.
MOCK_NICE = -15
#: How long a deadlock lasts, seconds.
FOREVER_S = 1e9


class Faults(Record):
    """What the mock does wrong, all off by default.

    Attributes:
        freeze_after_tokens: Once so many tokens were written in all, every stream stands still, once.
        freeze_s: For how long, seconds.
        deadlock_after_tokens: From then on nothing is ever written again, while `/health` stays green.
        refuse_every: Each n-th request is answered 503; 2 refuses half of them.
        drop_every: The connection of each n-th request is cut without an answer.
        empty_content: Tokens are counted, their text is empty.
        counter_factor: What the token counter of `/metrics` is multiplied with.
        short_by: Tokens that each answer is shorter than asked.
        role_chunk: An empty first chunk is sent at once, as chat servers do.
        prefix_cache: A prompt seen before is counted as a cache hit and answered after a tenth of the time.
    """

    freeze_after_tokens: int | None = Field(default=None, ge=1)
    freeze_s: float = Field(default=3.0, gt=0)
    deadlock_after_tokens: int | None = Field(default=None, ge=1)
    refuse_every: int | None = Field(default=None, ge=1)
    drop_every: int | None = Field(default=None, ge=1)
    empty_content: bool = False
    counter_factor: float = 1.0
    short_by: int = Field(default=0, ge=0)
    role_chunk: bool = False
    prefix_cache: bool = False


class MockPlan(Record):
    """How the mock answers.

    Attributes:
        pace: How fast.
        faults: What goes wrong.
        metrics: Whose metric names it uses: `sglang`, `llamacpp` or `vllm`.
        usage: How much of the usage that a request asks for it sends: with `each` chunk, at the end
            (`final`) or `none`.
    """

    pace: Pace = Pace()
    faults: Faults = Faults()
    metrics: Literal["sglang", "llamacpp", "vllm"] = "sglang"
    usage: Literal["each", "final", "none"] = "each"


class Truth(Record):
    """What the mock really did for one request; times in seconds of the monotonic clock of this host."""

    received: float
    first: float
    last: float
    tokens: int
    largest_gap_s: float


class _Order(NamedTuple):
    """What one request asks for: route, tokens, when it came, how much sooner its answer begins."""

    chat: bool
    tokens: int
    received: float
    lead_s: float
    prompt_tokens: int
    usage_each: bool = False
    usage_final: bool = False

    def usage(self, tokens: int) -> dict[str, int]:
        total = self.prompt_tokens + tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": tokens, "total_tokens": total}


class _Stream:
    """One answer on its way; driven by the pacer."""

    def __init__(self, server: MockServer, connection: Connection, order: _Order) -> None:
        self._server = server
        self._connection = connection
        self._order = order
        self._sent = 0
        self._origin = order.received + order.lead_s
        self._first = self._last = 0.0
        self._gap = 0.0
        faults, self._pace = server.plan.faults, server.plan.pace
        # The head leaves with the first chunk, unless an empty first chunk is wanted at once.
        self._head = STREAM_HEAD
        if faults.role_chunk:
            connection.transport.write(STREAM_HEAD + frame(event_bytes(order.chat, "", role=True)))
            self._head = b""
        server.pacer.add(self._origin + self._pace.due_s(0), self)

    def emit(self, now: float) -> float | None:
        """Write one chunk; see Paced."""
        transport = self._connection.transport
        if transport.is_closing():
            self._server.running -= 1
            return None
        size = min(self._pace.tokens_per_chunk, self._order.tokens - self._sent)
        ends = self._sent + size >= self._order.tokens
        chunk = self._ending(size) if ends else self._server.chunk(self._order, self._sent + size, size)
        transport.write(self._head + chunk)
        if self._sent:
            self._gap = max(self._gap, now - self._last)
        else:
            self._first, self._head = now, b""
        self._last = now
        self._sent += size
        self._server.count(size)
        if ends:
            self._server.running -= 1
            self._server.truth.append((self._order.received, self._first, now, self._sent, self._gap))
            self._connection.answered()
            return None
        return self._origin + self._pace.due_s(self._sent)

    def _ending(self, size: int) -> bytes:
        faults = self._server.plan.faults
        text = "" if faults.empty_content else WORD * size
        order, usage = self._order, self._order.usage(self._order.tokens)
        tail = event_bytes(order.chat, text, "length", usage=usage if order.usage_each else None)
        if order.usage_final:
            tail += event_bytes(order.chat, None, usage=usage)
        return frame(tail + b"data: [DONE]\n\n") + LAST_FRAME


class MockServer:
    """The server's state: pacer, counters, truth."""

    def __init__(self, plan: MockPlan, loop: asyncio.AbstractEventLoop) -> None:
        self.plan = plan
        self.loop = loop
        self.pacer = Pacer(loop)
        self.truth: list[tuple[float, float, float, int, float]] = []
        self.generated = self.prompt_tokens = self.cached_tokens = self.running = self.requests = 0
        self._frozen = False
        self._seen: set[str] = set()
        self._frames: dict[tuple[object, ...], bytes] = {}

    def chunk(self, order: _Order, sent: int, size: int) -> bytes:
        """The frame of a chunk; requests share it, since encoding it anew is what a burst would wait for."""
        usage = (order.prompt_tokens, sent) if order.usage_each else None
        key = (order.chat, size, usage)
        if key not in self._frames:
            text = "" if self.plan.faults.empty_content else WORD * size
            event = event_bytes(order.chat, text, usage=order.usage(sent) if usage else None)
            self._frames[key] = frame(event)
        return self._frames[key]

    def connect(self) -> Connection:
        """A connection for each client socket."""
        return Connection(self.loop, self.handle)

    def handle(self, connection: Connection, request: Request) -> None:
        """Answer one request."""
        path = request.path.partition("?")[0]
        if request.method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
            self._complete(connection, request)
            return
        content = self._document(path) if request.method == "GET" else None
        missing = {"error": "no such route"}
        connection.transport.write(whole_response(*((404, missing) if content is None else (200, content))))
        connection.answered()

    def count(self, tokens: int) -> None:
        """Account for tokens that were just written, and trip the freezing faults."""
        self.generated += tokens
        faults = self.plan.faults
        if faults.deadlock_after_tokens and self.generated >= faults.deadlock_after_tokens:
            self.pacer.freeze(FOREVER_S)
        elif faults.freeze_after_tokens and not self._frozen and self.generated >= faults.freeze_after_tokens:
            self._frozen = True
            self.pacer.freeze(faults.freeze_s)

    def _complete(self, connection: Connection, request: Request) -> None:
        self.requests += 1
        faults = self.plan.faults
        if faults.drop_every and self.requests % faults.drop_every == 0:
            connection.transport.abort()
            return
        if faults.refuse_every and self.requests % faults.refuse_every == 0:
            connection.transport.write(whole_response(503, {"error": {"message": "queue is full"}}))
            connection.answered()
            return
        body = json.loads(request.body)
        prompt = json.dumps(body.get("messages") or body.get("prompt") or "")
        length = max(1, len(prompt.split()))
        options = body.get("stream_options") or {}
        asked = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        order = _Order(
            chat="messages" in body,
            tokens=max(1, asked - faults.short_by),
            received=request.received,
            lead_s=-0.9 * self.plan.pace.due_s(0) if self._note_prompt(prompt, length) else 0.0,
            prompt_tokens=length,
            usage_each=bool(options.get("continuous_usage_stats")) and self.plan.usage == "each",
            usage_final=bool(options.get("include_usage")) and self.plan.usage != "none",
        )
        self.running += 1
        if body.get("stream"):
            _Stream(self, connection, order)
        else:
            due = order.received + order.lead_s + self.plan.pace.duration_s(order.tokens)
            self.loop.call_at(due, self._whole, connection, order)

    def _whole(self, connection: Connection, order: _Order) -> None:
        self.running -= 1
        self.count(order.tokens)
        text = "" if self.plan.faults.empty_content else WORD * order.tokens
        content = {"message": {"role": "assistant", "content": text}} if order.chat else {"text": text}
        choice = {"index": 0, "finish_reason": "length"} | content
        kind = "chat.completion" if order.chat else "text_completion"
        answer = {
            "id": "mock",
            "object": kind,
            "model": MODEL,
            "choices": [choice],
            "usage": order.usage(order.tokens),
        }
        connection.transport.write(whole_response(200, answer))
        connection.answered()

    def _note_prompt(self, prompt: str, length: int) -> bool:
        self.prompt_tokens += length
        if not self.plan.faults.prefix_cache:
            return False
        cached = prompt in self._seen
        self._seen.add(prompt)
        if cached:
            self.cached_tokens += length
        return cached

    def _document(self, path: str) -> Any:
        """The answer to a GET; None for a route that does not exist."""
        if path == "/v1/models":
            return {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
        if path == "/truth":
            return {"fields": list(Truth.model_fields), "requests": self.truth}
        if path == "/metrics":
            generated = self.generated * self.plan.faults.counter_factor
            lines = metric_lines(
                self.plan.metrics, generated, self.prompt_tokens, self.cached_tokens, self.running
            )
            return "".join(f"{name} {value:.15g}\n" for name, value in lines)
        return {"status": "ok"} if path == "/health" else None


async def serve(plan: MockPlan, port: int) -> None:
    """Listen on loopback until standard input closes; the first line on stdout is `{"port": ...}`."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(MockServer(plan, loop).connect, "127.0.0.1", port, backlog=4096)
    sys.stdout.write(json.dumps({"port": server.sockets[0].getsockname()[1]}) + "\n")
    sys.stdout.flush()
    with suppress(PermissionError):
        # On a busy host the mock has to be on time first of all; without the right it notes its lateness.
        os.setpriority(os.PRIO_PROCESS, 0, MOCK_NICE)
    gc.freeze()
    gc.disable()  # a collection over thousands of live streams would be a hiccup in every one of them
    # The parent holds the other end of stdin: when it is gone, so are we.
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> int:
    """Run the mock until its standard input is closed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", default="{}", help="JSON: pace, faults, metrics")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    arguments = parser.parse_args()
    try:
        plan = MockPlan.model_validate_json(arguments.plan)
    except ValidationError as error:
        parser.error(f"--plan is not usable: {error}")
    asyncio.run(serve(plan, arguments.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
