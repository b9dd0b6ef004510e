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
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web
from pydantic import Field, ValidationError

from tooling.gates.throughput.pacing import Pace, Pacer
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

MODEL = "fixed-rate-mock"
#: The words that make one token of output each.
WORD = "tok "


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
        no_usage: The final usage event is left out.
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
    no_usage: bool = False
    short_by: int = Field(default=0, ge=0)
    role_chunk: bool = False
    prefix_cache: bool = False


class MockPlan(Record):
    """How the mock answers: pace, faults, and whose metric names it uses (`sglang`, `llamacpp`, `vllm`)."""

    pace: Pace = Pace()
    faults: Faults = Faults()
    metrics: str = "sglang"


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

    def usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": self.prompt_tokens + self.tokens,
        }


class _Stream:
    """One answer on its way; driven by the pacer, writes chunk frames straight to the transport."""

    def __init__(self, server: MockServer, transport: asyncio.Transport, order: _Order) -> None:
        self.done: asyncio.Future[None] = server.loop.create_future()
        self._server = server
        self._transport = transport
        self._tokens = order.tokens
        self._sent = 0
        self._origin = order.received + order.lead_s
        self._received = order.received
        self._first = self._last = 0.0
        self._gap = 0.0
        pace, text = server.plan.pace, "" if server.plan.faults.empty_content else WORD
        self._pace = pace
        self._frame = frame(_event(order.chat, text * pace.tokens_per_chunk))
        last = (order.tokens - 1) % pace.tokens_per_chunk + 1
        self._last_frame = frame(_event(order.chat, text * last, "length"))
        server.pacer.add(self._origin + pace.due_s(0), self)

    def emit(self, now: float) -> float | None:
        """Write one chunk; see Paced."""
        if self._transport.is_closing():
            self.finish(completed=False)
            return None
        size = min(self._pace.tokens_per_chunk, self._tokens - self._sent)
        ends = self._sent + size >= self._tokens
        self._transport.write(self._last_frame if ends else self._frame)
        if self._sent:
            self._gap = max(self._gap, now - self._last)
        else:
            self._first = now
        self._last = now
        self._sent += size
        self._server.count(size)
        if ends:
            self.finish(completed=True)
            return None
        return self._origin + self._pace.due_s(self._sent)

    def finish(self, *, completed: bool) -> None:
        """Close the books on this stream."""
        if completed:
            self._server.truth.append((self._received, self._first, self._last, self._sent, self._gap))
        if not self.done.done():
            self.done.set_result(None)


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

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/truth", self._truth)
        app.router.add_get("/health", self._health)
        return app

    def count(self, tokens: int) -> None:
        """Account for tokens that were just written, and trip the freezing faults."""
        self.generated += tokens
        faults = self.plan.faults
        if faults.deadlock_after_tokens and self.generated >= faults.deadlock_after_tokens:
            self.pacer.freeze(float(10**9))
        elif faults.freeze_after_tokens and not self._frozen and self.generated >= faults.freeze_after_tokens:
            self._frozen = True
            self.pacer.freeze(faults.freeze_s)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        received = self.loop.time()
        self.requests += 1
        faults, transport = self.plan.faults, request.transport
        if not isinstance(transport, asyncio.Transport):
            raise web.HTTPInternalServerError(text="no transport")
        if faults.drop_every and self.requests % faults.drop_every == 0:
            transport.abort()
            return web.Response()
        if faults.refuse_every and self.requests % faults.refuse_every == 0:
            return web.json_response({"error": {"message": "queue is full"}}, status=503)
        prompt = json.dumps(body.get("messages") or body.get("prompt") or "")
        length = max(1, len(prompt.split()))
        asked = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        order = _Order(
            chat="messages" in body,
            tokens=max(1, asked - faults.short_by),
            received=received,
            lead_s=-0.9 * self.plan.pace.due_s(0) if self._note_prompt(prompt, length) else 0.0,
            prompt_tokens=length,
        )
        self.running += 1
        try:
            if body.get("stream"):
                return await self._stream(request, transport, order)
            return await self._whole(order)
        finally:
            self.running -= 1

    async def _whole(self, order: _Order) -> web.Response:
        await asyncio.sleep(self.plan.pace.duration_s(order.tokens) + order.lead_s)
        self.count(order.tokens)
        text = "" if self.plan.faults.empty_content else WORD * order.tokens
        content = {"message": {"role": "assistant", "content": text}} if order.chat else {"text": text}
        choice = {"index": 0, "finish_reason": "length"} | content
        return web.json_response({"id": "mock", "model": MODEL, "choices": [choice], "usage": order.usage()})

    async def _stream(
        self, request: web.Request, transport: asyncio.Transport, order: _Order
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        # The first write also flushes the headers; from there on the pacer owns the transport until it is done.
        await response.write(
            _event(order.chat, "", role=True) if self.plan.faults.role_chunk else b": mock\n\n"
        )
        await _Stream(self, transport, order).done
        if transport.is_closing():
            return response
        tail = b"data: [DONE]\n\n"
        if not self.plan.faults.no_usage:
            tail = _event(order.chat, None, usage=order.usage()) + tail
        await response.write_eof(tail)
        return response

    def _note_prompt(self, prompt: str, length: int) -> bool:
        self.prompt_tokens += length
        cached = self.plan.faults.prefix_cache and prompt in self._seen
        if cached:
            self.cached_tokens += length
        self._seen.add(prompt)
        return cached

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _health(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _truth(self, _request: web.Request) -> web.Response:
        names = list(Truth.model_fields)
        return web.json_response({"now": time.monotonic(), "fields": names, "requests": self.truth})

    async def _metrics(self, _request: web.Request) -> web.Response:
        generated = self.generated * self.plan.faults.counter_factor
        lines = _metric_lines(
            self.plan.metrics, generated, self.prompt_tokens, self.cached_tokens, self.running
        )
        return web.Response(text="".join(f"{name} {value:g}\n" for name, value in lines))


def _metric_lines(
    dialect: str, generated: float, prompt: int, cached: int, running: int
) -> Iterable[tuple[str, float]]:
    label = f'{{model_name="{MODEL}"}}'
    if dialect == "llamacpp":
        return (
            ("llamacpp:tokens_predicted_total", generated),
            ("llamacpp:prompt_tokens_total", prompt - cached),
            ("llamacpp:prompt_tokens_cached_total", cached),
            ("llamacpp:requests_processing", running),
        )
    if dialect == "vllm":
        return (
            (f"vllm:generation_tokens_total{label}", generated),
            (f"vllm:prompt_tokens_total{label}", prompt),
            (f"vllm:prefix_cache_queries_total{label}", prompt),
            (f"vllm:prefix_cache_hits_total{label}", cached),
            (f"vllm:num_requests_running{label}", running),
        )
    return (
        (f"sglang:generation_tokens_total{label}", generated),
        (f"sglang:prompt_tokens_total{label}", prompt),
        (f"sglang:cached_tokens_total{label}", cached),
        (f"sglang:num_running_reqs{label}", running),
    )


def _event(
    chat: bool,
    text: str | None,
    finish: str | None = None,
    *,
    role: bool = False,
    usage: dict[str, int] | None = None,
) -> bytes:
    """One server-sent event; text None makes the closing one without choices."""
    choices: list[dict[str, Any]] = []
    if text is not None:
        delta = {"role": "assistant", "content": text} if role else {"content": text}
        choices = [{"index": 0, "finish_reason": finish} | ({"delta": delta} if chat else {"text": text})]
    event: dict[str, Any] = {"id": "mock", "model": MODEL, "choices": choices}
    if usage:
        event["usage"] = usage
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def frame(data: bytes) -> bytes:
    """A piece of an HTTP/1.1 body in chunked transfer coding (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(plan: MockPlan, port: int) -> None:
    """Listen on loopback until cancelled; the first line on stdout is `{"port": ...}`."""
    server = MockServer(plan, asyncio.get_running_loop())
    runner = web.AppRunner(server.application(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=4096)
    await site.start()
    bound = runner.addresses[0][1]
    sys.stdout.write(json.dumps({"port": bound}) + "\n")
    sys.stdout.flush()
    gc.freeze()  # a full collection over thousands of live streams would be a hiccup in every one of them
    # The parent holds the other end of stdin: when it is gone, so are we.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


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
