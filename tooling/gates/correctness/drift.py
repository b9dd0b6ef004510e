"""T1: the same token ids must have the same log-probabilities whether they were decoded or prefilled.

The two use different kernels. A text that is encoded again may split into other tokens, so stored ids are
compared. Each engine has its own route for ids; one that is not known here is a limitation, not a pass.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tooling.gates.correctness.answers import OK
from tooling.gates.records import Check, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tooling.gates.correctness.run import Run

NAME = "prefill-decode"
#: Candidates asked for where an engine gives no log-probabilities of a prompt.
CANDIDATES = 20
#: What a token's log-probability is at most if it is not even among the candidates.
FLOOR = -20.0


class NoRouteError(Exception):
    """The engine does not offer, or did not answer, what is needed."""


@dataclass(frozen=True)
class Decoded:
    """A greedy text as token ids.

    Attributes:
        prompt: Ids of the prompt.
        generated: Ids that were decoded after it.
        logprobs: Of the generated ids, natural logarithm.
    """

    prompt: list[int]
    generated: list[int]
    logprobs: list[float]


def check_prefill_decode(run: Run) -> Check | None:
    """Decode once, prefill the same ids, compare by position."""
    wanted = run.profile.prefill_decode
    if wanted is None:
        return None
    if run.engine not in _ROUTES:
        run.limitations.append("prefill against decode: no route by token ids is known for this engine")
        return None
    decode, prefill = _ROUTES[run.engine]
    question = run.profile.question(wanted.question)
    try:
        decoded = decode(run, question.ask, max(wanted.positions) + 1)
        positions = [p for p in wanted.positions if p < len(decoded.generated)]
        again = prefill(run, decoded, positions)
    except NoRouteError as error:
        return Check(name=NAME, verdict=Verdict.INCONCLUSIVE, seen=str(error))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        seen = f"the engine's reply is not of the known form ({type(error).__name__}: {error})"
        return Check(name=NAME, verdict=Verdict.INCONCLUSIVE, seen=seen)
    return compare_logprobs(
        positions, [decoded.logprobs[p] for p in positions], again, wanted.max_median, wanted.max_step
    )


def compare_logprobs(
    positions: Sequence[int],
    decoded: Sequence[float],
    prefilled: Sequence[float],
    max_median: float,
    max_step: float,
) -> Check:
    """Median and largest absolute difference of two series of log-probabilities.

    A fault at one block boundary moves a single position and leaves the median alone, hence two bounds.
    """
    if not positions:
        return Check(name=NAME, verdict=Verdict.INCONCLUSIVE, seen="no position could be compared")
    bad = [
        p
        for p, a, b in zip(positions, decoded, prefilled, strict=True)
        if not math.isfinite(a) or not math.isfinite(b)
    ]
    if bad:
        return Check(name=NAME, verdict=Verdict.FAIL, seen=f"log-probability not finite at position {bad[0]}")
    differences = [abs(a - b) for a, b in zip(decoded, prefilled, strict=True)]
    median, largest = statistics.median(differences), max(differences)
    where = positions[differences.index(largest)]
    verdict = Verdict.PASS if median <= max_median and largest <= max_step else Verdict.FAIL
    return Check(
        name=NAME,
        verdict=verdict,
        value=median,
        unit="nat",
        threshold=max_median,
        seen=f"{len(positions)} positions: median difference {median:.2g}, "
        f"largest {largest:.2g} at position {where} (bound {max_step:g})",
    )


def _post(run: Run, path: str, body: dict[str, Any], tag: str) -> Any:
    reply = run.client.post(path, body, tag)
    if reply.status != OK or reply.body is None:
        raise NoRouteError(f"{path}: HTTP {reply.status}: {reply.text[:120]}")
    return reply.body


def _number(value: Any) -> float:
    """A log-probability; null (how NaN is written) becomes NaN."""
    return math.nan if value is None else float(value)


def _decode_llama_cpp(run: Run, ask: str, tokens: int) -> Decoded:
    prompt = _post(run, "/apply-template", {"messages": run.messages(ask)}, NAME)["prompt"]
    ids = _post(run, "/tokenize", {"content": prompt, "add_special": True, "parse_special": True}, NAME)[
        "tokens"
    ]
    body = {"prompt": ids, "n_predict": tokens, "temperature": 0, "n_probs": 1, "cache_prompt": False}
    entries = _post(run, "/completion", body, NAME)["completion_probabilities"]
    return Decoded(ids, [e["id"] for e in entries], [_number(e["logprob"]) for e in entries])


def _prefill_llama_cpp(run: Run, decoded: Decoded, positions: Sequence[int]) -> list[float]:
    """It tells none of a prompt: each position is the first token after a prompt that ends there."""
    found: list[float] = []
    for position in positions:
        body = {
            "prompt": decoded.prompt + decoded.generated[:position],
            "n_predict": 1,
            "temperature": 0,
            "n_probs": CANDIDATES,
            "cache_prompt": False,
        }
        entry = _post(run, "/completion", body, NAME)["completion_probabilities"][0]
        candidates = {c["id"]: _number(c["logprob"]) for c in entry["top_logprobs"]}
        found.append(candidates.get(decoded.generated[position], FLOOR))
    return found


def _decode_sglang(run: Run, ask: str, tokens: int) -> Decoded:
    body = {
        "text": ask,
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    meta = _post(run, "/generate", body, NAME)["meta_info"]
    output = meta["output_token_logprobs"]
    return Decoded(
        [e[1] for e in meta["input_token_logprobs"]], [e[1] for e in output], [_number(e[0]) for e in output]
    )


def _prefill_sglang(run: Run, decoded: Decoded, positions: Sequence[int]) -> list[float]:
    body = {
        "input_ids": decoded.prompt + decoded.generated,
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    entries = _post(run, "/generate", body, NAME)["meta_info"]["input_token_logprobs"]
    return [_number(entries[len(decoded.prompt) + position][0]) for position in positions]


def _decode_vllm(run: Run, ask: str, tokens: int) -> Decoded:
    model = {"model": run.client.model}
    ids = _post(run, "/tokenize", {**model, "messages": run.messages(ask)}, NAME)["tokens"]
    body = {
        **model,
        "prompt": ids,
        "max_tokens": tokens,
        "temperature": 0,
        "logprobs": 0,
        "return_token_ids": True,
        "ignore_eos": True,
    }
    choice = _post(run, "/v1/completions", body, NAME)["choices"][0]
    return Decoded(ids, choice["token_ids"], [_number(n) for n in choice["logprobs"]["token_logprobs"]])


def _prefill_vllm(run: Run, decoded: Decoded, positions: Sequence[int]) -> list[float]:
    ids = decoded.prompt + decoded.generated
    body = {"model": run.client.model, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    entries = _post(run, "/v1/completions", body, NAME)["choices"][0]["prompt_logprobs"]
    places = [len(decoded.prompt) + position for position in positions]
    return [_number(entries[place][str(ids[place])]["logprob"]) for place in places]


_ROUTES: dict[
    str, tuple[Callable[[Run, str, int], Decoded], Callable[[Run, Decoded, Sequence[int]], list[float]]]
] = {
    "llama.cpp": (_decode_llama_cpp, _prefill_llama_cpp),
    "sglang": (_decode_sglang, _prefill_sglang),
    "vllm": (_decode_vllm, _prefill_vllm),
}
