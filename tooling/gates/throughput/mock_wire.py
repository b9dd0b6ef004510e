"""What the mock server puts on the wire: OpenAI events and the engines' metric names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

MODEL = "fixed-rate-mock"


def metric_lines(
    dialect: str, generated: float, prompt: int, cached: int, running: int
) -> Iterable[tuple[str, float]]:
    """The counters in an engine's own names; see `engines.yaml`."""
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


def event_bytes(
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
    kind = "chat.completion.chunk" if chat else "text_completion"
    event: dict[str, Any] = {"id": "mock", "object": kind, "model": MODEL, "choices": choices}
    if usage:
        event["usage"] = usage
    return b"data: " + json.dumps(event).encode() + b"\n\n"
