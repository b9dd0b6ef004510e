"""The parts of the longer tiers that the tiny profile leaves out, against the real engine."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.faulty_proxy import FaultyProxy, answer_from_request, change_answer
from tooling.gates.correctness import Endpoint, Profile, Tier, load_profile, run_correctness
from tooling.gates.correctness.profile import Acceptance, Dataset, Needle, Reference, Soak, ToolCall
from tooling.gates.records import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tooling.gates.records import Check

pytestmark = pytest.mark.engine

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture
def bare(tiny: Profile) -> Profile:
    """The tiny profile with eight questions and none of the longer checks."""
    gone = ("ladder", "needle", "long_answer", "load", "prefill_decode", "json_schema", "soak", "tool_call")
    chosen = tuple(question for question in tiny.questions if question.group in {"capital", "arithmetic"})[
        :24:3
    ]
    groups = {question.group for question in chosen}
    required = {group: bound for group, bound in tiny.required.items() if group in groups}
    return tiny.model_copy(update={"questions": tuple(chosen), "required": required, **dict.fromkeys(gone)})


def run(
    profile: Profile, url: str, tmp_path: Path, tier: Tier = Tier.T1, data: Path | None = None
) -> dict[str, Check]:
    result = run_correctness(Endpoint(url), profile, tier, evidence=tmp_path / "evidence", data=data)
    return {check.name: check for check in result.checks}


def test_a_tool_call_is_read_and_a_wrong_or_missing_one_is_found(healthy: str, bare: Profile, tmp_path: Path):
    wanted = {
        "tools": [TOOL],
        "ask": "Weather in Paris?",
        "name": "get_weather",
        "arguments": {"city": "Paris"},
    }
    profile = bare.model_copy(update={"tool_call": ToolCall.model_validate({**wanted, "repeats": 2})})

    def call(arguments: str) -> Callable[[dict[str, Any]], None]:
        made = [{"type": "function", "function": {"name": "get_weather", "arguments": arguments}}]
        return lambda body: body["choices"][0]["message"].update(tool_calls=made)

    seen = {}
    for arguments in ('{"city": "Paris"}', '{"city": "Rome"}', '{"city": '):
        with FaultyProxy(healthy, change_answer(call(arguments))) as url:
            seen[arguments] = run(profile, url, tmp_path)["tool-call"].verdict
    assert list(seen.values()) == [Verdict.PASS, Verdict.FAIL, Verdict.FAIL]
    # The tiny model itself was not trained to call anything.
    assert "no call" in run(profile, healthy, tmp_path)["tool-call"].details[0]


def test_speculation_that_is_expected_and_not_there_fails(healthy: str, bare: Profile, tmp_path: Path):
    profile = bare.model_copy(update={"acceptance": Acceptance(reference=2.0)})
    checks = run(profile, healthy, tmp_path)
    assert {checks[name].verdict for name in ("acceptance-length-c1", "acceptance-length-c8")} == {Verdict.FAIL}


def test_a_mounted_question_file_needs_something_to_be_held_against(
    healthy: str, tiny: Profile, bare: Profile, tmp_path: Path
):
    rows = [{"question": q.ask, "answer": q.answer} for q in tiny.questions if q.group == "arithmetic"] * 8
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sums = Dataset(name="sums", file="sums.jsonl", shots=0, max_tokens=12)
    alone = bare.model_copy(update={"datasets": (sums,)})
    assert run(alone, healthy, tmp_path, data=tmp_path)["dataset-sums"].verdict is Verdict.NO_BASELINE
    reference = Reference(score=1.0, questions=200, source="the same model, elsewhere")
    held = bare.model_copy(update={"datasets": (sums.model_copy(update={"reference": reference}),)})
    assert run(held, healthy, tmp_path, data=tmp_path)["dataset-sums"].verdict is Verdict.PASS

    count = 0

    def halve(body: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if count % 2:
            body["choices"][0]["message"]["content"] = "7"

    with FaultyProxy(healthy, change_answer(halve)) as url:
        check = run(held, url, tmp_path, data=tmp_path)["dataset-sums"]
    assert check.verdict is Verdict.FAIL
    assert any("template" in line for line in check.details)


def test_a_needle_is_looked_for_at_every_depth(healthy: str, bare: Profile, tmp_path: Path):
    needle = Needle(plant="The magic number is {nonce}.", ask="What is the magic number?", tokens=(128, 512))
    profile = bare.model_copy(update={"needle": needle})
    # The tiny model cannot do it, and is found out.
    assert run(profile, healthy, tmp_path)["needle-512"].verdict is Verdict.FAIL

    def find(text: str) -> str:
        return " ".join(re.findall(r"magic number is (\d+)", text))

    with FaultyProxy(healthy, answer_from_request(find)) as url:
        checks = run(profile, url, tmp_path)
    assert checks["needle-128"].verdict is Verdict.PASS
    assert checks["needle-512"].verdict is Verdict.PASS
    with FaultyProxy(healthy, answer_from_request(lambda text: find(text[-1200:]))) as url:
        checks = run(profile, url, tmp_path)
    assert checks["needle-128"].verdict is Verdict.PASS
    assert checks["needle-512"].verdict is Verdict.FAIL
    assert checks["needle-512"].details[0].startswith("depth 10%:")


def test_right_at_first_and_wrong_after_a_while(healthy: str, bare: Profile, tmp_path: Path):
    profile = bare.model_copy(update={"soak": Soak(seconds=1.0, every_s=0.1, concurrency=2)})
    assert run(profile, healthy, tmp_path, Tier.T2)["soak"].verdict is Verdict.PASS
    count = 0

    def tire(body: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if count > 24:  # the short tier takes about twenty
            body["choices"][0]["message"]["content"] = "no"

    with FaultyProxy(healthy, change_answer(tire)) as url:
        check = run(profile, url, tmp_path, Tier.T2)["soak"]
    assert check.verdict is Verdict.FAIL
    assert "minute 0" in check.details[0]


def test_the_profile_for_any_chat_model_fails_on_a_model_that_is_none(healthy: str, tmp_path: Path):
    profile = load_profile("instruct")
    checks = run(profile, healthy, tmp_path, Tier.T0)
    assert checks["answers-knowledge"].verdict is Verdict.FAIL
    assert checks["requests-answered"].verdict is Verdict.PASS
