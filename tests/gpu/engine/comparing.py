"""Boots against boots: the verdict rule on values that were measured here, and answers compared to the bit."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

import requests

from tooling.errors import CheckError
from tooling.gates.throughput.regression import boot_of, gated_metrics
from tooling.gates.verdict import Preconditions, compare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.gates.throughput.plan import Throughput
    from tooling.gates.verdict import Boot, Comparison

_LIMIT_S = 60.0
_PROMPTS = ("Count from 101 to 160.", "What is 17*23?", "Say the alphabet.", "What is the capital of Japan?")
_TOKENS = 96


def boots_of(runs: Mapping[str, Throughput], names: Sequence[str]) -> dict[str, list[Boot]]:
    """Values by metric of some engines, in their order."""
    found: dict[str, list[Boot]] = {}
    for name in names:
        for metric, value in boot_of(runs[name], name).items():
            found.setdefault(metric, []).append(value)
    return found


def compare_boots(
    runs: Mapping[str, Throughput], baseline: Sequence[str], candidate: Sequence[str]
) -> dict[str, Comparison]:
    """The verdict rule on both gated metrics.

    Raises:
        CheckError: A metric was not measured.
    """
    old, new = boots_of(runs, baseline), boots_of(runs, candidate)
    found = {}
    for metric in gated_metrics(runs[candidate[0]].plan):
        if metric.name not in old or metric.name not in new:
            raise CheckError(f"{metric.name} was not measured on both sides")
        found[metric.name] = compare(metric, old[metric.name], new[metric.name], preconditions=Preconditions())
    return found


def spreads(runs: Mapping[str, Throughput], names: Sequence[str]) -> dict[str, float]:
    """Standard deviation of the logarithm over equal boots, by metric: the A/A spread."""
    return {
        f"{metric} A/A spread": round(statistics.stdev(math.log(boot.value) for boot in boots), 5)
        for metric, boots in boots_of(runs, names).items()
        if len(boots) > 1
    }


def greedy(url: str) -> list[dict[str, Any]]:
    """Greedy answers with the log-probability of each token, one request at a time.

    Prefixes that the engine has kept are forgotten first: a prefill in other pieces is rounded otherwise.

    Raises:
        CheckError: A request failed.
    """
    forgotten = requests.post(f"{url}/flush_cache", timeout=_LIMIT_S)
    # Another engine, in a rehearsal, has no such route.
    if forgotten.status_code not in {requests.codes.ok, requests.codes.not_found}:
        raise CheckError(f"HTTP {forgotten.status_code} for /flush_cache", where=url)
    found = []
    for prompt in _PROMPTS:
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": _TOKENS,
            "temperature": 0,
            "logprobs": True,
        }
        answer = requests.post(f"{url}/v1/chat/completions", json=body, timeout=_LIMIT_S)
        if answer.status_code != requests.codes.ok:
            raise CheckError(f"HTTP {answer.status_code} for a greedy request", where=url)
        choice = answer.json()["choices"][0]
        content = (choice.get("logprobs") or {}).get("content") or []
        found.append(
            {"text": choice["message"]["content"], "logprobs": [entry["logprob"] for entry in content]}
        )
    return found


def difference(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> tuple[bool, float]:
    """Whether the texts are equal, and how far log-probabilities are apart at most; lengths must agree, too."""
    texts = [entry["text"] for entry in one] == [entry["text"] for entry in other]
    pairs = [(left["logprobs"], right["logprobs"]) for left, right in zip(one, other, strict=True)]
    if any(len(left) != len(right) or not left for left, right in pairs):
        return texts, math.inf
    return texts, max(abs(a - b) for left, right in pairs for a, b in zip(left, right, strict=True))
