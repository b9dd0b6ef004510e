"""Readiness and correctness are answers: the model list, a completion, questions that have a right answer."""

from __future__ import annotations

import dataclasses
import http.client
import json
import math
import re
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional
from urllib.parse import urlsplit

from tooling.errors import CheckError, ToolkitError

if TYPE_CHECKING:
    from tooling.host.request import Health, Question

_LIST_S = 10.0
_OK = 200
#: Answers by which a server says that it has no such route, or no chat template.
_NO_CHAT = (400, 404, 405, 422, 501)
_EMPTY_BELIEVED = 3


class NotYetError(ToolkitError):
    """The engine does not answer yet."""


@dataclass(frozen=True)
class Answer:
    """One completion.

    Attributes:
        text: What was answered.
        thought: What came as reasoning beside it.
        logprobs: Log-probabilities of its tokens, as sent; None where the server sent none.
    """

    text: str
    thought: str
    logprobs: Optional[list[Any]]


def models(base: str) -> list[str]:
    """Names of the served models.

    Raises:
        NotYetError: It does not list any.
    """
    status, body = _http(base, "GET", "/v1/models", None, _LIST_S)
    data = body.get("data") if isinstance(body, dict) else None
    names = [str(one["id"]) for one in data or () if isinstance(one, dict) and one.get("id")]
    if status != _OK or not names:
        raise NotYetError(f"/v1/models answers HTTP {status} and lists {len(names)} models")
    return names


def ask(base: str, model: str, prompt: str, health: Health) -> Answer:
    """One completion; plain where the model has no chat template.

    Raises:
        NotYetError: The server does not answer, or not with a completion.
    """
    messages = [{"role": "system", "content": health.system_prompt}] if health.system_prompt else []
    messages.append({"role": "user", "content": prompt})
    common: dict[str, Any] = {"model": model, "max_tokens": health.max_tokens, "temperature": 0}
    chat = {**common, "messages": messages, **({"logprobs": True} if health.logprobs else {})}
    plain = {**common, "prompt": prompt, **({"logprobs": 1} if health.logprobs else {})}
    status, body = 0, None
    for path, content in (("/v1/chat/completions", chat), ("/v1/completions", plain)):
        status, body = _http(base, "POST", path, content, health.answer_timeout_seconds)
        if status not in _NO_CHAT:
            break
    if status != _OK:
        raise NotYetError(f"a completion is answered with HTTP {status}: {str(body)[:200]}")
    return read_answer(body)


def read_answer(body: Any) -> Answer:
    """Text, reasoning and log-probabilities of a completion of either kind.

    Raises:
        NotYetError: It is none.
    """
    try:
        choice = body["choices"][0]
        message = choice.get("message") or {}
        text = message.get("content") if message else choice.get("text")
        thought = message.get("reasoning_content") or message.get("reasoning") or ""
        given = choice.get("logprobs") or {}
        values = given.get("token_logprobs")
        if given.get("content") is not None:
            values = [token.get("logprob") for token in given["content"]]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise NotYetError(f"the answer is no completion: {str(body)[:200]}") from error
    return Answer(text if isinstance(text, str) else "", str(thought), values)


def fault_of(question: Question, answer: Answer, *, logprobs: bool) -> str:
    """What is wrong with an answer; empty if nothing is."""
    if not answer.text.strip():
        where = "only reasoning came, no answer" if answer.thought.strip() else "HTTP 200 and no text at all"
        return f"{question.prompt!r}: {where}"
    if logprobs:
        values = answer.logprobs
        if not values:
            return f"{question.prompt!r}: no log-probabilities came, so nobody knows whether they are finite"
        # The first token of an echoed prompt has none; of an answer every token has one.
        bad = [value for value in values if not isinstance(value, (int, float)) or not math.isfinite(value)]
        if bad:
            return (
                f"{question.prompt!r}: {len(bad)} of {len(values)} log-probabilities are not finite ({bad[0]})"
            )
    pattern = rf"(?<![A-Za-z0-9]){re.escape(question.expect.strip())}(?![A-Za-z0-9])"
    if not re.search(pattern, answer.text, re.IGNORECASE):
        return f"{question.prompt!r}: {question.expect!r} was expected, {answer.text.strip()[:80]!r} came"
    return ""


def wait_ready(base: str, health: Health, ended: Callable[[], Optional[str]]) -> tuple[str, float]:
    """Wait for the first answer with text in it.

    Args:
        base: `http://address:port`.
        health: What to wait for.
        ended: Says how the container ended, if it did; asked between all looks.

    Returns:
        The model's name, and the seconds that it took.

    Raises:
        CheckError: The container ended, or the time is over.
    """
    started = time.monotonic()
    empty, seen = 0, ""
    plain = dataclasses.replace(health, logprobs=False)
    while True:
        gone = ended()
        if gone is not None:
            raise CheckError(f"the container ended while it was loading: {gone}", fix="read its log")
        try:
            names = models(base)
            if health.model and health.model not in names:
                raise CheckError(
                    f"the engine serves {', '.join(names)}, not {health.model}",
                    fix="correct the name or the model",
                )
            model = health.model or names[0]
            # A sound model may have nothing to say to one question; the next look asks another one.
            repeat = f"Repeat this word and nothing else: {secrets.token_hex(4)}"
            answer = ask(base, model, "What is 17*23?" if empty % 2 else repeat, plain)
            if answer.text.strip() or answer.thought.strip():
                return model, time.monotonic() - started
            empty += 1
            seen = "completions without any text"
            if empty >= _EMPTY_BELIEVED:
                raise CheckError(
                    f"{empty} completions in a row had no text", fix="the model or a kernel is broken"
                )
        except NotYetError as error:
            seen = error.what
        if time.monotonic() - started > health.ready_timeout_seconds:
            raise CheckError(
                f"no answer within {health.ready_timeout_seconds:g} s; last seen: {seen}",
                where=base,
                fix="read the container's log, or allow it more time",
            )
        time.sleep(health.interval_seconds)


def check_answers(base: str, model: str, health: Health) -> int:
    """Ask every question of the contract.

    Returns:
        How many were answered right, which is all of them.

    Raises:
        CheckError: An answer is missing, empty, not finite or wrong.
    """
    faults = []
    for question in health.questions:
        try:
            answer = ask(base, model, question.prompt, health)
        except NotYetError as error:
            faults.append(f"{question.prompt!r}: {error.what}")
            continue
        fault = fault_of(question, answer, logprobs=health.logprobs)
        if fault:
            faults.append(fault)
    if faults:
        raise CheckError(
            f"the engine answers, and {len(faults)} of {len(health.questions)} answers are wrong",
            where=base,
            details=faults,
            fix="the weights, a kernel or an argument is wrong; the old generation is right to keep",
        )
    return len(health.questions)


def _http(base: str, method: str, path: str, content: Any, limit_s: float) -> tuple[int, Any]:
    """One exchange; the body is parsed JSON, or the text where it is none."""
    address = urlsplit(base)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=limit_s)
    try:
        body = None if content is None else json.dumps(content)
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise NotYetError(f"{path}: {error or type(error).__name__}", where=base) from error
    finally:
        connection.close()
    try:
        return response.status, json.loads(text)
    except ValueError:
        return response.status, text
