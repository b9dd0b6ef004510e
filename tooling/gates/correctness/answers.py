"""What a server's reply to a chat request says, and what is wrong with it. Pure functions on its body."""

from __future__ import annotations

import json
import math
import re
from enum import StrEnum
from typing import Any

from tooling.gates.correctness.text import degeneration, without_thinking
from tooling.gates.records import Verdict
from tooling.records import Record

#: Names under which engines file what a model thinks aloud.
REASONING_FIELDS = ("reasoning_content", "reasoning")
#: A token that ends a turn or a text, in the spellings of the common vocabularies; users must never see one.
END_TOKEN = re.compile(
    r"<[|\uff5c]\s?[\w\u2581 .-]*(?:end|eos|eot|eom|im_start|return|call)[\w\u2581 .-]*\s?[|\uff5c]>"
    r"|</s>|<eos>|<(?:end|start)_of_turn>",
    re.IGNORECASE,
)
#: How JSON encoders and engines word that a number was not finite.
_NOT_FINITE = re.compile(
    r"\bnan\b|not json compliant|out of range float|non-?finite|\binf(?:inity)?\b", re.IGNORECASE
)
#: A log-probability may be above zero by rounding alone.
ROUNDING = 1e-3
OK = 200


class Fault(StrEnum):
    """What can be wrong with one reply."""

    UNANSWERED = "unanswered"
    REFUSED = "refused"
    MALFORMED = "malformed"
    NOT_FINITE = "logprob-not-finite"
    NO_LOGPROBS = "no-logprobs"
    EMPTY = "empty-answer"
    IN_REASONING = "answer-in-the-reasoning-field"
    BUDGET = "budget-spent-on-thinking"
    DEGENERATE = "degenerate-text"
    END_TOKEN = "end-token-in-the-text"  # noqa: S105  # not a password


class Finding(Record):
    """One thing that is wrong with one reply.

    Attributes:
        fault: Its kind.
        verdict: FAIL, or INCONCLUSIVE where the request and not the server may be at fault.
        seen: What was seen, one sentence.
        advice: What to do next.
    """

    fault: Fault
    verdict: Verdict
    seen: str
    advice: str = ""


class ToolCalled(Record):
    """A function call in a reply; the arguments are the text that the server sent."""

    name: str
    arguments: str


class Answer(Record):
    """The parts of a reply that matter.

    Attributes:
        content: The text for the user; None as ''.
        reasoning: What is filed as thinking, under either name.
        finish: Why it ended: `stop`, `length`, `tool_calls`, ...
        matched_stop: What ended it, where the engine says (SGLang).
        prompt_tokens: As the server counts them.
        completion_tokens: As the server counts them.
        logprobs: Of the generated tokens, None where one was null or not a number; None as a whole if not sent.
        tool_calls: In order.
    """

    content: str = ""
    reasoning: str = ""
    finish: str = ""
    matched_stop: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    logprobs: tuple[float | None, ...] | None = None
    tool_calls: tuple[ToolCalled, ...] = ()

    @property
    def text(self) -> str:
        """The user's text without a closed section of thinking."""
        return without_thinking(self.content)


class NotAnAnswerError(ValueError):
    """A body is not what the chat API promises."""


def parse_answer(body: Any) -> Answer:
    """Read the body of a chat or text completion, in the dialects of SGLang, vLLM and llama.cpp.

    Raises:
        NotAnAnswerError: It has no choice to read.
    """
    try:
        choice = body["choices"][0]
        message = choice.get("message") or {"content": choice.get("text")}
        usage = body.get("usage") or {}
        return Answer(
            content=_text(message.get("content")),
            reasoning="".join(_text(message.get(field)) for field in REASONING_FIELDS[:1])
            or _text(message.get(REASONING_FIELDS[1])),
            finish=str(choice.get("finish_reason") or ""),
            matched_stop=str(choice.get("matched_stop") or ""),
            prompt_tokens=usage.get("prompt_tokens"),
            completion_tokens=usage.get("completion_tokens"),
            logprobs=_logprobs(choice.get("logprobs")),
            tool_calls=tuple(
                ToolCalled(name=call["function"]["name"], arguments=_text(call["function"].get("arguments")))
                for call in message.get("tool_calls") or ()
            ),
        )
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise NotAnAnswerError(f"no readable choice in the body ({type(error).__name__}: {error})") from error


def _text(value: Any) -> str:
    """A content field: text, null, a list of parts, or (arguments of some servers) an object."""
    if value is None:
        return ""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value)
    return value if isinstance(value, str) else json.dumps(value)


def _logprobs(field: Any) -> tuple[float | None, ...] | None:
    """The numbers of a `logprobs` field: chat style (`content`) or text style (`token_logprobs`)."""
    if not field:
        return None
    if field.get("content") is not None:
        numbers = [entry.get("logprob") for entry in field["content"]]
    elif field.get("token_logprobs") is not None:
        numbers = list(field["token_logprobs"])
    else:
        return None
    return tuple(n if isinstance(n, int | float) and math.isfinite(n) else None for n in numbers)


def judge_failure(status: int | None, text: str) -> Finding:
    """What an answer other than HTTP 200 means.

    Args:
        status: HTTP status, None when there was no answer at all.
        text: Its body, or the transport's error.
    """
    if status is None:
        refused = "refused" in text.lower() or "reset" in text.lower() or "disconnected" in text.lower()
        fault = Fault.REFUSED if refused else Fault.UNANSWERED
        return Finding(fault=fault, verdict=Verdict.FAIL, seen=f"no answer: {text[:160]}")
    if _NOT_FINITE.search(text):
        return Finding(
            fault=Fault.NOT_FINITE,
            verdict=Verdict.FAIL,
            seen=f"HTTP {status}: the log-probabilities could not be written as JSON: {text[:160]}",
            advice="NaN or infinity in the logits: bisect kernels, quantisation and KV type",
        )
    return Finding(fault=Fault.REFUSED, verdict=Verdict.FAIL, seen=f"HTTP {status}: {text[:160]}")


def judge_answer(answer: Answer, *, want_logprobs: bool = True, ascii_only: bool = False) -> list[Finding]:
    """Everything that is wrong with a reply, whatever was asked.

    Args:
        answer: The reply.
        want_logprobs: Whether log-probabilities had been asked for.
        ascii_only: Whether the answer should be plain ASCII.
    """
    findings = [*_judge_logprobs(answer, want_logprobs=want_logprobs), *_judge_presence(answer)]
    for field, text in (("content", answer.content), ("reasoning field", answer.reasoning)):
        if wrong := degeneration(text, ascii_only=ascii_only):
            findings.append(
                Finding(
                    fault=Fault.DEGENERATE,
                    verdict=Verdict.FAIL,
                    seen=f"degenerate text in the {field}: {wrong}",
                    advice="numeric fault or a wrong end token: see the log-probabilities and finish_reason",
                )
            )
    if token := END_TOKEN.search(answer.content):
        findings.append(
            Finding(
                fault=Fault.END_TOKEN,
                verdict=Verdict.FAIL,
                seen=f"the text contains the end token {token[0]!r}",
                advice="compare the generation config's end tokens with the chat template's",
            )
        )
    return findings


def _judge_logprobs(answer: Answer, *, want_logprobs: bool) -> list[Finding]:
    if "nan" in answer.matched_stop.lower():
        return [
            Finding(
                fault=Fault.NOT_FINITE,
                verdict=Verdict.FAIL,
                seen=f"the engine stopped the answer itself: {answer.matched_stop}",
            )
        ]
    if not want_logprobs:
        return []
    if answer.logprobs is None or (not answer.logprobs and answer.completion_tokens):
        return [
            Finding(
                fault=Fault.NO_LOGPROBS,
                verdict=Verdict.INCONCLUSIVE,
                seen="log-probabilities were asked for and not sent",
                advice="start the server so that it returns them; without them a NaN model can look healthy",
            )
        ]
    bad = [i for i, n in enumerate(answer.logprobs) if n is None or n > ROUNDING]
    if not bad:
        return []
    first = answer.logprobs[bad[0]]
    seen = "null, NaN or infinite" if first is None else f"{first:g}, above zero"
    return [
        Finding(
            fault=Fault.NOT_FINITE,
            verdict=Verdict.FAIL,
            seen=f"log-probability of token {bad[0]} is {seen} ({len(bad)} of {len(answer.logprobs)} tokens)",
            advice="NaN or infinity in the logits: bisect kernels, quantisation and KV type",
        )
    ]


def _judge_presence(answer: Answer) -> list[Finding]:
    """Nothing for the user: is it lost, filed elsewhere, or was there no room left for it?"""
    if answer.text or answer.tool_calls:
        return []
    unclosed = answer.content.lstrip().startswith("<think>")
    thinking = answer.reasoning or (answer.content if unclosed else "")
    finish = answer.finish or "unknown"
    tokens = "an unknown number of" if answer.completion_tokens is None else str(answer.completion_tokens)
    if not thinking.strip():
        return [
            Finding(
                fault=Fault.EMPTY,
                verdict=Verdict.FAIL,
                seen=f"HTTP 200 with no text at all, {tokens} completion tokens, finish {finish!r}",
                advice="tokens without text are often token 0, the argmax of NaN: see the log-probabilities",
            )
        ]
    if answer.finish == "length":
        return [
            Finding(
                fault=Fault.BUDGET,
                verdict=Verdict.INCONCLUSIVE,
                seen=f"all {tokens} tokens were spent on thinking, the answer was cut off before it began",
                advice="no numeric fault: raise max_tokens, or switch thinking off in the profile's extra_body",
            )
        ]
    token = END_TOKEN.search(thinking)
    inside = f", the end token {token[0]!r} with it" if token else ""
    return [
        Finding(
            fault=Fault.IN_REASONING,
            verdict=Verdict.FAIL,
            seen=f"content is empty, finish {finish!r}, {tokens} completion tokens: "
            f"the reply was filed under reasoning{inside}",
            advice="a defect of the reasoning parser (no closing think tag came), not a numeric fault: "
            "repeat with a production-like system prompt and check the parser that the server was started with",
        )
    ]
