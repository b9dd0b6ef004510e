"""From a client's result document to a window: the one parser of both clients."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tooling.errors import CheckError
from tooling.gates.throughput.plan import Window, distribution


class RawResult(BaseModel):
    """The columns of the client's result document that are used, one entry a request; times in seconds.

    Attributes:
        duration: First request sent to last answer complete.
        completed: Requests without an error, by the client's own count.
        output_lens: Tokens of each answer.
        input_lens: Prompt lengths.
        ttfts: Time to first token.
        itls: Times between the chunks of each stream.
        generated_texts: The text of each answer.
        errors: Empty where there was none.
        max_concurrent_requests: The most that were in flight.
        client_cpu_s: Processor time of the client.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    duration: float = Field(ge=0)
    completed: int = Field(ge=0)
    output_lens: list[int]
    input_lens: list[int] = []
    ttfts: list[float]
    itls: list[list[float]]
    generated_texts: list[str]
    errors: list[str]
    max_concurrent_requests: int = 0
    client_cpu_s: float = 0.0


def parse_result(document: dict[str, Any]) -> RawResult:
    """Validate a result document.

    Raises:
        CheckError: It lacks a column, or its columns are of different lengths.
    """
    try:
        raw = RawResult.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckError(
            f"the load client's result is not readable: {first['msg']}",
            where=".".join(str(part) for part in first["loc"]),
            fix="use the pinned client build",
        ) from error
    lengths = {len(raw.output_lens), len(raw.ttfts), len(raw.itls), len(raw.generated_texts), len(raw.errors)}
    if len(lengths) != 1:
        raise CheckError(f"the columns of the load client's result have different lengths: {sorted(lengths)}")
    return raw


def frozen_for_ms(gaps_s: list[float], freeze_ratio: float) -> float:
    """The largest gap of a stream that is out of its rhythm, milliseconds; 0 when it keeps its rhythm.

    Args:
        gaps_s: Times between the chunks of one stream, seconds.
        freeze_ratio: How many times the usual gap counts as out of rhythm.
    """
    if not gaps_s:
        return 0.0
    # The median of few gaps may be the freeze itself; the smallest gap is then the rhythm.
    usual = statistics.median(gaps_s) if len(gaps_s) > 2 else min(gaps_s)  # noqa: PLR2004
    largest = max(gaps_s)
    return largest * 1000 if len(gaps_s) == 1 or largest > freeze_ratio * usual else 0.0


def to_window(
    raw: RawResult,
    *,
    requested: int,
    output_tokens: int,
    concurrency: int | None,
    request_rate: float | None,
    freeze_ratio: float,
) -> Window:
    """What one run of the client says, before the server's counters are held against it.

    Args:
        raw: The client's result.
        requested: Requests that were to be made.
        output_tokens: Tokens that each answer had to have.
        concurrency: Of a closed loop; None takes the client's own highest count.
        request_rate: Of an open loop, requests a second.
        freeze_ratio: See `frozen_for_ms`.
    """
    good = [index for index, error in enumerate(raw.errors) if not error and raw.output_lens[index] > 0]
    tokens = [raw.output_lens[index] for index in good]
    gaps = [raw.itls[index] for index in good]
    chunks = sum(len(stream) + 1 for stream in gaps)
    tpots = [sum(stream) / (count - 1) * 1000 for stream, count in zip(gaps, tokens, strict=True) if count > 1]
    counted = Counter(error for error in raw.errors if error)
    return Window(
        concurrency=concurrency or max(1, raw.max_concurrent_requests),
        request_rate=request_rate,
        requested=requested,
        completed=min(raw.completed, len(good)),
        duration_s=raw.duration,
        output_tokens=sum(tokens),
        input_tokens=sum(raw.input_lens),
        ttft_ms=distribution([raw.ttfts[index] * 1000 for index in good]),
        tpot_ms=distribution(tpots),
        gap_ms=distribution([gap * 1000 for stream in gaps for gap in stream]),
        freeze_ms=max((frozen_for_ms(stream, freeze_ratio) for stream in gaps), default=0.0),
        tokens_per_chunk=sum(tokens) / chunks if chunks else 1.0,
        wrong_length=sum(1 for count in tokens if count != output_tokens),
        empty=sum(1 for index in good if not raw.generated_texts[index].strip()),
        errors=tuple(f"{number} x {error[:200]}" for error, number in counted.most_common(5)),
        client_cpu_s=raw.client_cpu_s,
    )
