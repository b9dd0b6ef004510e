"""Readiness is an answer: the model list, then a completion with text in it."""

from __future__ import annotations

import secrets
import time
from enum import StrEnum
from typing import Any

import requests

from tooling.records import Record

#: Seconds for a TCP connection on this host.
_CONNECT_S = 3.0
#: Tokens asked of the first answer; some tokenizers need a few for one visible character.
_ANSWER_TOKENS = 16
#: What is asked before a random word, and what is asked when there was no text. The second one's request holds
#: the word, too (`user`), so that nobody who keeps answers by their request has one for it.
_REPEAT, _OTHER = "Repeat this word and nothing else: ", "What is 17*23?"


class Patience(Record):
    """How long a boot may take, in seconds.

    Attributes:
        ready_s: From the container's start to its first answer; large models load for many minutes.
        listen_s: From the engine's own ready line to an open port.
        answer_s: For one answer, since the first request may compile kernels.
        poll_s: Between two looks at the container.
        stop_s: Between SIGTERM and SIGKILL.
        empty_answers: Empty answers in a row that are believed.
    """

    ready_s: float = 1800.0
    listen_s: float = 120.0
    answer_s: float = 180.0
    poll_s: float = 0.25
    stop_s: float = 20.0
    empty_answers: int = 3


class Answer(Record):
    """One completion.

    Attributes:
        nonce: Random word in the request, so that no cache can answer.
        model: Model that was asked.
        text: What came back, reasoning included.
        completion_tokens: As the server counts.
        echoed: The nonce came back; a small model need not manage that.
        seconds: From the request to the whole answer.
    """

    nonce: str
    model: str
    text: str
    completion_tokens: int
    echoed: bool
    seconds: float


class ProbeState(StrEnum):
    """How far an endpoint is."""

    CLOSED = "closed"  # nobody listens
    LOADING = "loading"  # somebody listens and does not serve yet
    WRONG = "wrong"  # not an OpenAI-compatible server, or it refuses us
    EMPTY = "empty"  # HTTP 200 without any text
    READY = "ready"


class Probe(Record):
    """What one look at an endpoint showed."""

    state: ProbeState
    seen: str
    answer: Answer | None = None
    model: str = ""


def probe(url: str, *, model: str = "", answer_s: float) -> Probe:
    """Ask for the models, then for a completion.

    Args:
        url: Base, e.g. `http://127.0.0.1:30000`.
        model: Model to ask; the first of the list if empty.
        answer_s: Seconds for the answer.
    """
    try:
        listed = requests.get(f"{url}/v1/models", timeout=(_CONNECT_S, 10))
    except requests.RequestException as error:
        closed = isinstance(error, requests.ConnectionError)
        state = ProbeState.CLOSED if closed else ProbeState.LOADING
        return Probe(state=state, seen=f"{url}/v1/models: {_short(error)}")
    if listed.status_code != requests.codes.ok:
        refused = listed.status_code in (requests.codes.unauthorized, requests.codes.forbidden)
        state = ProbeState.WRONG if refused else ProbeState.LOADING
        return Probe(state=state, seen=f"/v1/models answers HTTP {listed.status_code}")
    names = model_names(_json(listed))
    if not names:
        return Probe(state=ProbeState.LOADING, seen="/v1/models lists no model")
    if model and model not in names:
        return Probe(
            state=ProbeState.WRONG, seen=f"/v1/models lists {', '.join(names)}, not {model}", model=names[0]
        )
    return ask(url, model or names[0], answer_s=answer_s)


def ask(url: str, model: str, *, answer_s: float) -> Probe:
    """One completion that no cache can have; plain completions where chat is refused.

    A sound model may end its answer to one question at once, above all a tiny one that never saw the word. Only
    one that has no text for the other question either is empty.
    """
    nonce = secrets.token_hex(4)
    found = _ask(url, model, f"{_REPEAT}{nonce}", nonce, answer_s)
    return _ask(url, model, _OTHER, nonce, answer_s) if found.state is ProbeState.EMPTY else found


def _ask(url: str, model: str, prompt: str, nonce: str, answer_s: float) -> Probe:
    common = {"model": model, "max_tokens": _ANSWER_TOKENS, "temperature": 0, "user": nonce}
    requests_to_try = (
        ("/v1/chat/completions", {**common, "messages": [{"role": "user", "content": prompt}]}),
        ("/v1/completions", {**common, "prompt": prompt}),
    )
    seen = ""
    for path, body in requests_to_try:
        started = time.monotonic()
        try:
            response = requests.post(f"{url}{path}", json=body, timeout=(_CONNECT_S, answer_s))
        except requests.RequestException as error:
            return Probe(state=ProbeState.LOADING, seen=f"{path}: {_short(error)}", model=model)
        if response.status_code in (400, 404, 405, 422, 501):  # no chat template, or no such route
            seen = f"{path} answers HTTP {response.status_code}: {response.text[:200]}"
            continue
        if response.status_code != requests.codes.ok:
            return Probe(
                state=ProbeState.LOADING, seen=f"{path} answers HTTP {response.status_code}", model=model
            )
        text, tokens = answer_text(_json(response))
        answer = Answer(
            nonce=nonce,
            model=model,
            text=text[:200],
            completion_tokens=tokens,
            echoed=nonce in text,
            seconds=round(time.monotonic() - started, 3),
        )
        if not text.strip():
            return Probe(
                state=ProbeState.EMPTY,
                seen=f"{path} answers HTTP 200 without text ({tokens} completion tokens)",
                answer=answer,
                model=model,
            )
        return Probe(state=ProbeState.READY, seen=f"{path} answers", answer=answer, model=model)
    return Probe(state=ProbeState.WRONG, seen=seen, model=model)


def model_names(listed: Any) -> list[str]:
    """Names in an answer of `/v1/models`; none if it is something else."""
    data = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(data, list):
        return []
    return [str(item["id"]) for item in data if isinstance(item, dict) and item.get("id")]


def answer_text(completion: Any) -> tuple[str, int]:
    """Text (content and reasoning, chat or plain) and completion tokens of an answer; empty if it has none."""
    if not isinstance(completion, dict):
        return "", 0
    usage = completion.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else 0
    choices = completion.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = first.get("message")
    fields = message if isinstance(message, dict) else {}
    parts = [first.get("text"), *(fields.get(key) for key in ("content", "reasoning_content", "reasoning"))]
    return "".join(part for part in parts if isinstance(part, str)), tokens if isinstance(tokens, int) else 0


def _json(response: requests.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _short(error: Exception) -> str:
    text = str(error)
    for name in ("Connection refused", "timed out", "Connection reset", "RemoteDisconnected"):
        if name in text:
            return name
    return text[:200]
