"""Server-sent events of a chat stream, read as events and as JSON, never by a pattern on the bytes.

A pattern such as `"content":"[^"]*"` stops at the first escaped quote and then blames the server; one event may
also carry many tokens (speculation) or none, and a network chunk may end inside an event or inside a character.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable  # noqa: TC003  # pydantic looks it up
from typing import Any

from tooling.gates.correctness.answers import REASONING_FIELDS, Answer, NotAnAnswerError, parse_answer
from tooling.gates.records import Check, Verdict
from tooling.records import Record

DONE = "[DONE]"


class SseDecoder:
    """Turns chunks of bytes, cut anywhere, into the data of whole events (WHATWG event stream format)."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._text = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes, *, final: bool = False) -> list[str]:
        """The data of the events that the chunk completes; `final` also closes one without an empty line."""
        self._text += self._decode(chunk, final)
        events: list[str] = []
        while (line := self._next_line(final=final)) is not None:
            if line == "":
                self._close(events)
            elif line.startswith("data:"):
                self._data.append(line.removeprefix("data:").removeprefix(" "))
        if final:
            self._close(events)
        return events

    def _close(self, events: list[str]) -> None:
        if self._data:
            events.append("\n".join(self._data))
            self._data = []

    def _next_line(self, *, final: bool) -> str | None:
        """Cut the next line off; lines end with LF, CR or CRLF, and a CR at the very end may be half a CRLF."""
        ends = [i for i in (self._text.find("\n"), self._text.find("\r")) if i >= 0]
        if not ends:
            line, self._text = self._text, ""
            if final and line:
                return line
            self._text = line
            return None
        end = min(ends)
        if self._text[end] == "\r" and end + 1 == len(self._text) and not final:
            return None
        line = self._text[:end]
        self._text = self._text[end + (2 if self._text[end : end + 2] == "\r\n" else 1) :]
        return line


class Streamed(Record):
    """A streamed answer put together.

    Attributes:
        answer: As if it had come in one piece.
        events: Number of events with JSON in them.
        unreadable: Events that are not JSON or hold no choice; text may be missing because of them.
        errors: Errors that the server sent inside the stream.
        done: Whether the stream was closed with `[DONE]` or a finish reason.
    """

    answer: Answer
    events: int
    unreadable: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    done: bool = False


def assemble(events: Iterable[str]) -> Streamed:
    """Put the data of a chat stream's events together."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, dict[str, str]] = {}
    unreadable: list[str] = []
    errors: list[str] = []
    choice_end: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    count, done = 0, False
    for data in events:
        if data.strip() == DONE:
            done = True
            continue
        try:
            event = json.loads(data)
            count += 1
            if event.get("error"):
                errors.append(json.dumps(event["error"])[:200])
                continue
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                delta = choice.get("delta") or {"content": choice.get("text")}
                content.append(delta.get("content") or "")
                reasoning.append(next((delta[f] for f in REASONING_FIELDS if delta.get(f)), ""))
                for call in delta.get("tool_calls") or ():
                    known = calls.setdefault(call.get("index", len(calls)), {"name": "", "arguments": ""})
                    known["name"] += call["function"].get("name") or ""
                    known["arguments"] += call["function"].get("arguments") or ""
                if choice.get("finish_reason"):
                    choice_end, done = choice, True
        except (ValueError, KeyError, TypeError, AttributeError):
            unreadable.append(data[:200])
    message = {
        "content": "".join(content),
        REASONING_FIELDS[0]: "".join(reasoning),
        "tool_calls": [{"function": call} for _, call in sorted(calls.items())],
    }
    body = {"choices": [{**choice_end, "message": message, "logprobs": None}], "usage": usage}
    return Streamed(
        answer=parse_answer(body),
        events=count,
        unreadable=tuple(unreadable),
        errors=tuple(errors),
        done=done,
    )


def read_stream(raw: bytes) -> Streamed:
    """Read a whole recorded stream."""
    return assemble(SseDecoder().feed(raw, final=True))


def compare_stream(streamed: Streamed, whole: Answer, again: Answer | None = None) -> Check:
    """Hold a streamed answer against the one in one piece; the reader is a suspect before the server is.

    Args:
        streamed: The answer as it was put together from events.
        whole: The answer of the same request without streaming.
        again: A second answer without streaming: if the two differ, the comparison says nothing.
    """
    name = "stream-equals-whole"
    ours, theirs = streamed.answer, whole
    if streamed.errors:
        return Check(name=name, verdict=Verdict.FAIL, seen=f"the stream carried an error: {streamed.errors[0]}")
    if not streamed.events and not streamed.unreadable:
        return Check(name=name, verdict=Verdict.FAIL, seen="the stream had no event")
    same = (ours.content, ours.reasoning) == (theirs.content, theirs.reasoning)
    same_calls = [c.name for c in ours.tool_calls] == [c.name for c in theirs.tool_calls]
    if same and same_calls and not streamed.unreadable:
        verdict = Verdict.PASS if streamed.done else Verdict.FAIL
        end = "" if streamed.done else ", but the stream ended without [DONE] or a finish reason"
        return Check(name=name, verdict=verdict, seen=f"the same text in {streamed.events} events{end}")
    details = (f"streamed: {ours.content[:200]!r}", f"whole:    {theirs.content[:200]!r}")
    if streamed.unreadable:
        return Check(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            seen=f"{len(streamed.unreadable)} events could not be read, so the reader may be at fault",
            details=(*details, *streamed.unreadable[:3]),
        )
    if again is not None and again.content != theirs.content:
        return Check(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            seen="two answers without streaming differ as well, so this says nothing of the stream",
            details=details,
        )
    lost = len(theirs.content) - len(ours.content)
    return Check(
        name=name,
        verdict=Verdict.FAIL,
        seen="every event was read as JSON, and the streamed text differs from the whole one"
        + (f": {lost} characters are missing" if lost > 0 else ""),
        details=details,
    )


def judge_extraction(raw: bytes, extracted: str, whole: str | None = None) -> Check:
    """Judge text that somebody else's reader took from a recorded stream.

    Args:
        raw: The stream as it was received.
        extracted: What the other reader made of it.
        whole: The same request's answer without streaming, if there is one.
    """
    name = "stream-reader"
    streamed = read_stream(raw)
    text = streamed.answer.content
    details = (f"read as JSON: {text[:200]!r}", f"extracted:    {extracted[:200]!r}")
    if streamed.unreadable or not streamed.events:
        return Check(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            seen="the stream itself cannot be read as JSON events",
            details=details,
        )
    if extracted != text:
        return Check(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            seen="the reader is wrong: read as JSON, the same events hold other text than it extracted; "
            "nothing is shown against the server",
            details=details,
        )
    if whole is not None and whole != text:
        return Check(
            name=name,
            verdict=Verdict.FAIL,
            seen="reader and events agree, and both differ from the answer without streaming",
            details=(*details, f"whole:        {whole[:200]!r}"),
        )
    known = (
        "the answer without streaming as well"
        if whole is not None
        else "no answer without streaming to compare"
    )
    return Check(name=name, verdict=Verdict.PASS, seen=f"reader and events agree; {known}", details=details)


__all__ = [
    "NotAnAnswerError",
    "SseDecoder",
    "Streamed",
    "assemble",
    "compare_stream",
    "judge_extraction",
    "read_stream",
]
