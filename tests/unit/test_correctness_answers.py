import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tooling.gates.correctness.answers import Fault, NotAnAnswerError, judge_answer, judge_failure, parse_answer
from tooling.gates.correctness.client import Reply
from tooling.gates.correctness.overall import check_overall, check_stall, check_usage
from tooling.gates.records import Verdict

CASES = Path(__file__).parents[1] / "cases"


def body(**message: Any) -> dict[str, Any]:
    finish = message.pop("finish", "stop")
    tokens = message.pop("tokens", 11)
    logprobs = message.pop("logprobs", None)
    return {
        "choices": [{"message": message, "finish_reason": finish, "logprobs": logprobs}],
        "usage": {"completion_tokens": tokens},
    }


def faults(reply: dict[str, Any], *, want_logprobs: bool = False) -> dict[Fault, Verdict]:
    return {f.fault: f.verdict for f in judge_answer(parse_answer(reply), want_logprobs=want_logprobs)}


def chat_logprobs(*numbers: float | None) -> dict[str, Any]:
    return {"content": [{"token": "x", "logprob": number} for number in numbers]}


def test_the_field_case_of_an_answer_under_reasoning():
    text = yaml.safe_load((CASES / "correctness-answer-in-the-reasoning-field.yaml").read_text())["input"][
        "text"
    ]
    findings = judge_answer(parse_answer(json.loads(text.splitlines()[0])), want_logprobs=False)
    assert [(f.fault, f.verdict) for f in findings] == [(Fault.IN_REASONING, Verdict.FAIL)]
    assert "'<|end_of_sentence|>'" in findings[0].seen
    assert "reasoning parser" in findings[0].advice
    assert "not a numeric fault" in findings[0].advice


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize(
    "token",
    ["", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|im_end|>", "</s>", "<|eot_id|>", "<end_of_turn>"],
)
def test_every_spelling_of_an_answer_under_reasoning(field: str, token: str):
    assert faults(body(content=None, **{field: f"Paris.{token}"})) == {Fault.IN_REASONING: Verdict.FAIL}


def test_an_open_think_tag_that_swallows_the_answer_counts_as_reasoning():
    assert faults(body(content="<think>Paris, of course.")) == {Fault.IN_REASONING: Verdict.FAIL}


def test_a_budget_spent_on_thinking_is_another_finding():
    assert faults(body(content=None, reasoning="Let me see", finish="length")) == {
        Fault.BUDGET: Verdict.INCONCLUSIVE
    }


def test_a_healthy_reasoning_reply_is_clean():
    assert faults(body(content="Paris", reasoning_content="The user wants a capital.")) == {}
    assert faults(body(content="<think>Hm.</think>\nParis")) == {}


@pytest.mark.parametrize("content", [None, "", "  \n"])
def test_empty_content_with_tokens_is_a_failure(content: str | None):
    assert faults(body(content=content, finish="length", tokens=12)) == {Fault.EMPTY: Verdict.FAIL}


def test_a_tool_call_without_text_is_an_answer():
    call = {"function": {"name": "f", "arguments": "{}"}}
    assert faults(body(content=None, tool_calls=[call], finish="tool_calls")) == {}


def test_exclamation_marks_in_the_reasoning_field_alone_are_found():
    found = faults(body(content=None, reasoning="!" * 40, finish="length"))
    assert found[Fault.DEGENERATE] is Verdict.FAIL


def test_an_end_token_in_the_users_text_is_found():
    assert Fault.END_TOKEN in faults(body(content="Paris<|im_end|>"))
    assert faults(body(content="use a <|pipe|> here")) == {}


@pytest.mark.parametrize("number", [None, float("nan"), float("-inf"), 0.5])
def test_a_log_probability_that_is_no_log_probability(number: float | None):
    reply = body(content="Paris", logprobs=chat_logprobs(-0.1, number))
    assert faults(reply, want_logprobs=True) == {Fault.NOT_FINITE: Verdict.FAIL}


def test_text_style_log_probabilities_are_read_too():
    reply = {
        "choices": [{"text": "Paris", "finish_reason": "stop", "logprobs": {"token_logprobs": [-0.1, None]}}]
    }
    assert faults(reply, want_logprobs=True) == {Fault.NOT_FINITE: Verdict.FAIL}


def test_sound_log_probabilities_are_clean_and_missing_ones_are_not():
    assert faults(body(content="Paris", logprobs=chat_logprobs(-0.1, 0.0, 1e-7)), want_logprobs=True) == {}
    assert faults(body(content="Paris"), want_logprobs=True) == {Fault.NO_LOGPROBS: Verdict.INCONCLUSIVE}


def test_the_engines_own_nan_mark_is_found():
    reply = body(content="Paris")
    reply["choices"][0]["matched_stop"] = "NaN happened"
    assert Fault.NOT_FINITE in faults(reply)


@pytest.mark.parametrize(
    "text",
    ["Out of range float values are not JSON compliant", "ValueError: nan", "non-finite logits detected"],
)
def test_an_error_that_words_a_nan(text: str):
    assert judge_failure(400, text).fault is Fault.NOT_FINITE


def test_other_errors_keep_their_kind():
    assert judge_failure(400, "max_tokens must be positive, financial advice refused").fault is Fault.REFUSED
    assert judge_failure(None, "ConnectionError: Connection refused").fault is Fault.REFUSED
    assert judge_failure(None, "ReadTimeout: no bytes").fault is Fault.UNANSWERED


@pytest.mark.parametrize("broken", [None, [], {}, {"choices": []}, {"choices": [None]}, {"error": "x"}])
def test_a_body_without_an_answer_is_refused(broken: Any):
    with pytest.raises(NotAnAnswerError):
        parse_answer(broken)


def reply(tag: str, *, gap_s: float = 0.1, usage: int = 1, listed: int = 1) -> Reply:
    answer = parse_answer(body(content="x", tokens=usage, logprobs=chat_logprobs(*[-0.1] * listed)))
    return Reply(tag, status=200, gap_s=gap_s, answer=answer)


def test_no_replies_at_all_pass_nothing():
    assert {check.verdict for check in check_overall([], 1.0)} == {Verdict.INCONCLUSIVE}


def test_usage_that_does_not_match_the_tokens():
    assert check_usage([reply("a")]).verdict is Verdict.PASS
    assert check_usage([reply("a"), reply("b", usage=12, listed=3)]).verdict is Verdict.FAIL


def test_a_stall_is_held_against_the_requests_of_its_kind():
    long = [reply(f"ladder-8192@{i}", gap_s=9.0) for i in range(3)]
    short = [reply(f"alone@{i}") for i in range(9)]
    assert check_stall([*short, *long], 2.5).verdict is Verdict.PASS
    check = check_stall([*short, *long, reply("alone@9", gap_s=3.0)], 2.5)
    assert check.verdict is Verdict.FAIL
    assert "alone@9" in check.details[0]
