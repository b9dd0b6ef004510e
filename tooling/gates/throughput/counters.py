"""The server's own counters: an independent witness of what the client says."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

import requests
import yaml
from pydantic import Field

from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: One sample of the Prometheus text format: name, labels, value, and a time stamp that nobody needs.
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{.*\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*")
HTTP_LIMIT_S = 10.0


class Engine(Record):
    """Metric names of one engine; see `engines.yaml`."""

    name: str
    prefix: str
    generated: tuple[str, ...] = Field(min_length=1)
    prompt: tuple[str, ...]
    cached: tuple[str, ...]
    running: tuple[str, ...]
    progress: tuple[str, ...] = Field(min_length=1)
    prompt_includes_cached: bool
    fresh_connections: bool = False


class Counters(Record):
    """One reading of a server's counters; None for what it does not have.

    Attributes:
        engine: Whose names were found.
        generated: Tokens generated so far.
        prompt: Prompt tokens so far, those from the cache included.
        cached: Prompt tokens from the prefix cache so far.
        running: Requests in flight.
        progress: Grows whenever the engine gets anything done.
    """

    engine: str
    generated: float | None = None
    prompt: float | None = None
    cached: float | None = None
    running: float | None = None
    progress: float | None = None


@lru_cache(maxsize=1)
def known_engines() -> tuple[Engine, ...]:
    """The engines whose metric names we know."""
    text = resources.files("tooling.gates.throughput").joinpath("engines.yaml").read_text(encoding="utf-8")
    return tuple(Engine.model_validate(entry) for entry in yaml.safe_load(text))


def wants_fresh_connections(engine: str) -> bool:
    """Whether connections to this engine must not be kept open between requests."""
    return any(entry.fresh_connections for entry in known_engines() if entry.name == engine)


def parse_metrics(text: str) -> dict[str, float]:
    """Sum of each metric over its labels, from the Prometheus text format.

    Lines that are no samples, and values that are not finite, are left out.
    """
    totals: dict[str, float] = {}
    for line in text.splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            continue
        try:
            value = float(sample[2])
        except ValueError:
            continue
        if math.isfinite(value):
            totals[sample[1]] = totals.get(sample[1], 0.0) + value
    return totals


def read_counters(metrics: Mapping[str, float]) -> Counters | None:
    """What the metrics say in one vocabulary; None when no known engine wrote them."""
    for engine in known_engines():
        if any(name.startswith(engine.prefix) for name in metrics):
            prompt, cached = _first(metrics, engine.prompt), _first(metrics, engine.cached)
            if prompt is not None and not engine.prompt_includes_cached:
                prompt += cached or 0.0
            progress = [metrics[name] for name in engine.progress if name in metrics]
            return Counters(
                engine=engine.name,
                generated=_first(metrics, engine.generated),
                prompt=prompt,
                cached=cached,
                running=_first(metrics, engine.running),
                progress=sum(progress) if progress else None,
            )
    return None


def _first(metrics: Mapping[str, float], names: Iterable[str]) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)


def fetch_counters(url: str, headers: Mapping[str, str]) -> Counters | None:
    """Read `/metrics` of a server; None when it has none, does not answer, or speaks an unknown vocabulary."""
    try:
        answer = requests.get(f"{url}/metrics", headers=dict(headers), timeout=HTTP_LIMIT_S)
    except requests.RequestException:
        return None
    return read_counters(parse_metrics(answer.text)) if answer.ok else None


def grown(before: float | None, after: float | None) -> float | None:
    """How much a counter grew; a counter that appears counts from 0, one that fell belongs to another boot."""
    if after is None:
        return None
    difference = after - (before or 0.0)
    return difference if difference >= 0 else None
