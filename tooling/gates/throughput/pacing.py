"""When each token of the mock server is due: the arithmetic and the one timer behind all its streams."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Protocol

from pydantic import Field

from tooling.records import Record

if TYPE_CHECKING:
    import asyncio

#: A token that is due within this time is written now: the event loop's own timer is no finer. Seconds.
TIMER_GRAIN_S = 0.0005


class Pace(Record):
    """The fixed rate of the mock server.

    Attributes:
        ttft_ms: From the last byte of a request to its first token, milliseconds.
        itl_ms: From one token of a stream to the next, milliseconds.
        tokens_per_chunk: Tokens that one server-sent event carries, as engines with speculative decoding send.
    """

    ttft_ms: float = Field(default=200.0, gt=0)
    itl_ms: float = Field(default=50.0, gt=0)
    tokens_per_chunk: int = Field(default=1, ge=1)

    def due_s(self, tokens_before: int) -> float:
        """When the chunk that follows `tokens_before` tokens is written, seconds after the request.

        A chunk leaves when its last token is ready; the first one leaves with whatever it holds at the first
        token's time, so that the time to first token does not depend on the chunk size.
        """
        return (self.ttft_ms + self.itl_ms * tokens_before) / 1000

    def duration_s(self, tokens: int) -> float:
        """From request to last token of a stream of that many tokens, seconds."""
        return self.due_s(((tokens - 1) // self.tokens_per_chunk) * self.tokens_per_chunk)

    def ideal_tokens_per_s(self, concurrency: int, tokens: int) -> float:
        """What a perfect closed-loop client at that concurrency gets, tokens per second."""
        return concurrency * tokens / self.duration_s(tokens)


class Paced(Protocol):
    """A stream that the pacer drives."""

    def emit(self, now: float) -> float | None:
        """Write what is due and say when the next chunk is, in loop time; None ends the stream."""


class Pacer:
    """One timer for all streams.

    A sleeping task per stream would cost the event loop a wake-up per token; at 20 000 tokens a second that is
    the mock measuring itself. Due times are absolute, so being late once delays nothing that follows.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Paced]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._frozen_until = 0.0

    def add(self, due: float, stream: Paced) -> None:
        """Let a stream's next chunk be written at `due`, in loop time."""
        heapq.heappush(self._heap, (due, next(self._order), stream))
        self._arm()

    def freeze(self, seconds: float) -> None:
        """Write nothing for that long, as a server stuck in one step does."""
        self._frozen_until = self._loop.time() + seconds

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = max(self._heap[0][0], self._frozen_until)
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        if now + TIMER_GRAIN_S >= self._frozen_until:
            while self._heap and self._heap[0][0] <= now + TIMER_GRAIN_S:
                _, _, stream = heapq.heappop(self._heap)
                following = stream.emit(self._loop.time())
                if following is not None:
                    heapq.heappush(self._heap, (following, next(self._order), stream))
        self._timer = None
        if self._heap:
            self._arm()
