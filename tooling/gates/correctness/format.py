"""T1: answers that the server forces into a JSON schema, and function calls."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tooling.gates.correctness.answers import OK
from tooling.gates.correctness.text import json_in
from tooling.gates.records import Check, Verdict

if TYPE_CHECKING:
    from tooling.gates.correctness.client import Reply
    from tooling.gates.correctness.run import Run


def check_json_schema(run: Run) -> Check | None:
    """Every answer is JSON of the schema and says the right thing."""
    wanted = run.profile.json_schema
    if wanted is None:
        return None
    name = "json-schema"
    form = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": wanted.json_schema, "strict": True},
    }
    total, wrong = 0, []
    for identifier in wanted.questions * wanted.repeats:
        question = run.profile.question(identifier)
        total += 1
        reply = run.client.chat(
            run.messages(question.ask),
            f"{name}@{identifier}",
            max_tokens=question.max_tokens,
            extra={"response_format": form},
        )
        try:
            value: Any = json_in(reply.said)
        except ValueError:
            wrong.append(f"{identifier}: no JSON: {(reply.said or reply.text)[:80]!r}")
            continue
        if value != json.loads(question.answer):
            wrong.append(f"{identifier}: want {question.answer[:60]}, got {reply.said[:60]}")
        if run.client.gone:
            break
    share = 1 - len(wrong) / total
    verdict = Verdict.PASS if share >= wanted.min_right else Verdict.FAIL
    return Check(
        name=name,
        verdict=verdict,
        seen=f"{total - len(wrong)} of {total} answers are the right JSON",
        value=round(share, 4),
        unit="share",
        threshold=wanted.min_right,
        details=tuple(wrong[:12]),
    )


def check_tool_call(run: Run) -> Check | None:
    """Every request ends in a call of the right function with the right arguments, as JSON."""
    wanted = run.profile.tool_call
    if wanted is None:
        return None
    name = "tool-call"
    wrong: list[str] = []
    extra = {"tools": list(wanted.tools), "tool_choice": wanted.tool_choice, "logprobs": False}
    for turn in range(wanted.repeats):
        reply = run.client.chat(run.messages(wanted.ask), f"{name}@{turn}", max_tokens=256, extra=extra)
        if fault := _call_fault(reply, wanted.name, dict(wanted.arguments)):
            wrong.append(fault)
        if run.client.gone:
            break
    verdict = Verdict.PASS if not wrong else Verdict.FAIL
    seen = f"{wanted.repeats - len(wrong)} of {wanted.repeats} requests called {wanted.name} rightly"
    return Check(name=name, verdict=verdict, seen=seen, details=tuple(dict.fromkeys(wrong))[:5])


def _call_fault(reply: Reply, name: str, arguments: dict[str, Any]) -> str:
    """What is wrong with the call in a reply; empty if nothing is."""
    if reply.status != OK or reply.answer is None:
        return f"HTTP {reply.status}: {reply.text[:120]}"
    calls = reply.answer.tool_calls
    if not calls:
        return f"no call; the text was {reply.said[:80]!r}"
    if [call.name for call in calls] != [name]:
        return f"called {', '.join(call.name for call in calls)} instead of {name}"
    try:
        given = json.loads(calls[0].arguments)
    except ValueError:
        return f"the arguments are not JSON: {calls[0].arguments[:80]!r}"
    return "" if given == arguments else f"arguments {calls[0].arguments[:80]}"
