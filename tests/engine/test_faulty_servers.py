"""The gate against a real engine behind a proxy that does what broken servers do."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.faulty_proxy import (
    FaultyProxy,
    change_answer,
    change_stream,
    freeze_once,
    refuse_every,
    silent_after,
)
from tooling.gates.correctness import Tier
from tooling.gates.records import Verdict

if TYPE_CHECKING:
    from tests.engine.conftest import Gate
    from tooling.gates.correctness import Profile
    from tooling.gates.records import Check, GateResult

pytestmark = pytest.mark.engine


def by_name(result: GateResult) -> dict[str, Check]:
    return {check.name: check for check in result.checks}


@pytest.fixture
def few(tiny: Profile) -> Profile:
    """The profile with two questions a group: these tests are about the server, not the model."""
    groups: dict[str, list[Any]] = {}
    for question in tiny.questions:
        groups.setdefault(question.group, []).append(question)
    named = tuple(question for group in groups.values() for question in group[:2])
    chat = tiny.chat.model_copy(update={"timeout_s": 6.0})
    return tiny.model_copy(update={"questions": named, "chat": chat})


def test_the_proxy_alone_changes_nothing(gate: Gate, healthy: str, few: Profile):
    with FaultyProxy(healthy, change_answer(lambda _: None)) as url:
        result = gate(url, profile=few)
    assert result.verdict is Verdict.PASS, [c for c in result.checks if c.verdict is not Verdict.PASS]


def test_half_the_requests_refused(gate: Gate, healthy: str, few: Profile):
    with FaultyProxy(healthy, refuse_every(2)) as url:
        check = by_name(gate(url, profile=few))["requests-answered"]
    assert check.verdict is Verdict.FAIL
    assert "refused" in check.seen


def test_a_server_that_freezes_for_three_seconds(gate: Gate, healthy: str, few: Profile):
    with FaultyProxy(healthy, freeze_once(9, 3.0)) as url:
        result = gate(url, profile=few)
    assert by_name(result)["no-stall"].verdict is Verdict.FAIL
    assert by_name(result)["requests-answered"].verdict is Verdict.PASS


def test_a_server_that_stops_answering_after_readiness(gate: Gate, healthy: str, few: Profile):
    released = threading.Event()
    brief = few.model_copy(update={"chat": few.chat.model_copy(update={"timeout_s": 0.7})})
    with FaultyProxy(healthy, silent_after(6, released)) as url:
        result = gate(url, profile=brief)
        released.set()
    checks = by_name(result)
    assert checks["requests-answered"].verdict is Verdict.FAIL
    assert "3 of 9 replies: unanswered" in checks["requests-answered"].seen  # it does not ask on for ever
    assert checks["battery-complete"].verdict is Verdict.INCONCLUSIVE


def test_http_200_with_empty_content(gate: Gate, healthy: str, few: Profile):
    def empty(body: dict[str, Any]) -> None:
        body["choices"][0]["message"]["content"] = ""

    with FaultyProxy(healthy, change_answer(empty)) as url:
        check = by_name(gate(url, profile=few))["answers-present"]
    assert check.verdict is Verdict.FAIL
    assert "empty-answer" in check.seen


def test_the_answer_filed_under_reasoning_is_named_as_the_parsers_defect(
    gate: Gate, healthy: str, few: Profile
):
    def misfile(body: dict[str, Any]) -> None:
        message = body["choices"][0]["message"]
        message["reasoning_content"], message["content"] = message["content"] + "<|end_of_sentence|>", ""

    with FaultyProxy(healthy, change_answer(misfile)) as url:
        result = gate(url, profile=few)
    check = by_name(result)["answers-present"]
    assert check.verdict is Verdict.FAIL
    assert "answer-in-the-reasoning-field" in check.seen
    assert any("parser" in line for line in check.details)
    assert by_name(result)["logprobs-finite"].verdict is Verdict.PASS
    arithmetic = by_name(result)["answers-arithmetic"]
    assert any("reasoning field" in line for line in arithmetic.details)


def test_log_probabilities_that_are_null(gate: Gate, healthy: str, few: Profile):
    def null(body: dict[str, Any]) -> None:
        body["choices"][0]["logprobs"]["content"][-1]["logprob"] = None

    with FaultyProxy(healthy, change_answer(null)) as url:
        assert by_name(gate(url, profile=few))["logprobs-finite"].verdict is Verdict.FAIL


def test_a_server_without_log_probabilities_is_not_waved_through(gate: Gate, healthy: str, few: Profile):
    def none(body: dict[str, Any]) -> None:
        body["choices"][0].pop("logprobs")

    with FaultyProxy(healthy, change_answer(none)) as url:
        result = gate(url, profile=few)
    assert by_name(result)["logprobs-finite"].verdict is Verdict.INCONCLUSIVE
    assert result.verdict is Verdict.INCONCLUSIVE


def test_a_stream_that_loses_text(gate: Gate, healthy: str, few: Profile):
    def lose(raw: bytes) -> bytes:
        events = raw.split(b"\n\n")
        texts = [i for i, event in enumerate(events) if re.search(rb'"content":"[^"]', event)]
        return b"\n\n".join(event for i, event in enumerate(events) if i not in texts[1:2])

    with FaultyProxy(healthy, change_stream(lose)) as url:
        check = by_name(gate(url, profile=few))["stream-equals-whole"]
    assert check.verdict is Verdict.FAIL
    assert "missing" in check.seen


def test_a_stream_that_cannot_be_read_blames_the_reader_first(gate: Gate, healthy: str, few: Profile):
    with FaultyProxy(healthy, change_stream(lambda raw: raw.replace(b'{"choices"', b'{choices"'))) as url:
        check = by_name(gate(url, profile=few))["stream-equals-whole"]
    assert check.verdict is Verdict.INCONCLUSIVE
    assert "reader" in check.seen


def test_a_wrong_answer_on_one_rung_fails_that_rung(gate: Gate, healthy: str, few: Profile, tiny: Profile):
    def garble(body: dict[str, Any]) -> None:
        if body["usage"]["prompt_tokens"] == 65:
            body["choices"][0]["message"]["content"] = "!!!!!!!!!!!!!!"

    assert tiny.ladder is not None
    ids = tuple(question.id for question in few.questions if question.group == "arithmetic")
    ladder = tiny.ladder.model_copy(update={"tokens": (12, 64, 65), "questions": ids})
    left = ("needle", "long_answer", "load", "prefill_decode", "json_schema")
    profile = few.model_copy(update={"ladder": ladder, **dict.fromkeys(left)})
    with FaultyProxy(healthy, change_answer(garble)) as url:
        result = gate(url, Tier.T1, profile=profile)
    checks = by_name(result)
    assert "ladder-12" not in checks
    assert any("rung of 12 tokens" in limitation for limitation in result.limitations)
    assert checks["ladder-64"].verdict is Verdict.PASS
    assert checks["ladder-65"].verdict is Verdict.FAIL
    assert checks["text-sane"].verdict is Verdict.FAIL


def test_nobody_listens(gate: Gate, few: Profile):
    with FaultyProxy("http://127.0.0.1:9", refuse_every(1)) as url:
        pass
    result = gate(url, profile=few)
    assert by_name(result)["model-listed"].verdict is Verdict.FAIL
