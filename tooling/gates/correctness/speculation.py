"""T1: acceptance length of speculative decoding, from the server's own counters.

Wrong drafts cost speed, never text, so no answer shows that a draft model reads garbage; and some faults appear
only when a second sequence joins.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from tooling.gates.correctness.answers import OK
from tooling.gates.records import Check, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.gates.correctness.client import Reply
    from tooling.gates.correctness.run import Run

NAME = "acceptance-length"
#: Accepted draft tokens and drafts (verification steps); each step also yields one token of the target.
COUNTERS = (
    ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_drafts_total"),
    ("vllm:spec_decode_num_accepted_tokens", "vllm:spec_decode_num_drafts"),
)
#: Gauges that hold a running mean.
GAUGES = ("sglang:spec_accept_length",)
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)
#: Requests a concurrency.
REQUESTS = 16


def parse_metrics(text: str) -> dict[str, float]:
    """Samples of a Prometheus text page, summed over their labels."""
    samples: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        samples[name] = samples.get(name, 0.0) + float(value)
    return samples


def acceptance_length(
    before: Mapping[str, float], after: Mapping[str, float], server_info: Any, replies: list[Reply]
) -> float | None:
    """Mean tokens per verification step between two readings; None if the server does not speculate or tell.

    Args:
        before: Metrics before the requests.
        after: Metrics after them.
        server_info: SGLang's `/server_info`, or None.
        replies: The requests between; llama.cpp tells of drafts in each (`timings`).
    """
    for accepted, drafts in COUNTERS:
        steps = after.get(drafts, 0.0) - before.get(drafts, 0.0)
        if steps > 0:
            return 1.0 + (after.get(accepted, 0.0) - before.get(accepted, 0.0)) / steps
    for gauge in GAUGES:
        if after.get(gauge):
            return after[gauge]
    states = server_info.get("internal_states") if isinstance(server_info, dict) else None
    lengths = [s["avg_spec_accept_length"] for s in states or () if s.get("avg_spec_accept_length")]
    if lengths:
        return float(sum(lengths) / len(lengths))
    timings = [r.body.get("timings") or {} for r in replies if isinstance(r.body, dict)]
    accepted_tokens = sum(t.get("draft_n_accepted", 0) for t in timings)
    predicted = sum(t.get("predicted_n", 0) for t in timings if t.get("draft_n"))
    return predicted / (predicted - accepted_tokens) if predicted > accepted_tokens > 0 else None


def check_acceptance(run: Run) -> list[Check]:
    """Acceptance length alone and with company against the profile's reference."""
    wanted = run.profile.acceptance
    if wanted is None:
        length, _ = _measure(run, 1, 4)
        if length is None:
            return []
        seen = (
            f"the server speculates (acceptance length {length:.2f}), and the profile holds no reference for it"
        )
        return [Check(name=NAME, verdict=Verdict.INCONCLUSIVE, seen=seen, value=length, unit="tokens per step")]
    checks: list[Check] = []
    for concurrency in wanted.concurrencies:
        name = f"{NAME}-c{concurrency}"
        length, answered = _measure(run, concurrency, REQUESTS)
        if length is None:
            seen = f"expected {wanted.reference:g}, the server tells of no speculation ({answered} answers)"
            checks.append(Check(name=name, verdict=Verdict.FAIL, seen=seen))
            continue
        bound = wanted.reference * wanted.min_share
        checks.append(
            Check(
                name=name,
                verdict=Verdict.PASS if length >= bound else Verdict.FAIL,
                value=round(length, 3),
                unit="tokens per step",
                threshold=round(bound, 3),
                seen=f"{length:.2f} tokens a verification step at concurrency {concurrency}",
            )
        )
    return checks


def _measure(run: Run, concurrency: int, requests: int) -> tuple[float | None, int]:
    before = _metrics(run)
    questions = list(islice(cycle(run.profile.asked_in(run.tier)), requests))
    replies = run.at_once(
        [partial(run.ask, question, f"{NAME}-c{concurrency}") for question in questions], concurrency
    )
    info = run.client.get("/server_info") if run.engine == "sglang" else None
    length = acceptance_length(before, _metrics(run), info.body if info else None, replies)
    return length, sum(reply.status == OK for reply in replies)


def _metrics(run: Run) -> dict[str, float]:
    reply = run.client.get("/metrics")
    return parse_metrics(reply.text) if reply.status == OK else {}
