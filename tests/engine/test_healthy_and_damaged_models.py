"""The gate against a real engine: the whole model passes, each damaged copy fails for the reason it should."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import requests
import typer
from typer.testing import CliRunner

from tests.engine.conftest import MODEL, serve
from tooling.commands import correctness
from tooling.errors import InputError
from tooling.gates.correctness import Tier, load_baselines
from tooling.gates.records import Verdict
from tooling.records import sha256_of_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.engine.conftest import Gate
    from tooling.gates.correctness import Profile
    from tooling.gates.records import Check, GateResult

pytestmark = pytest.mark.engine


def by_name(result: GateResult) -> dict[str, Check]:
    return {check.name: check for check in result.checks}


def failed(result: GateResult) -> set[str]:
    return {check.name for check in result.checks if check.verdict is Verdict.FAIL}


def answer(url: str, text: str) -> str:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 12}
    reply = requests.post(f"{url}/v1/chat/completions", json=body, timeout=30).json()
    return str(reply["choices"][0]["message"]["content"])


def test_the_whole_model_passes_and_leaves_hashed_evidence(gate: Gate, healthy: str, tmp_path: Path):
    result = gate(healthy)
    assert result.verdict is Verdict.PASS, [c for c in result.checks if c.verdict is not Verdict.PASS]
    assert by_name(result)["answers-arithmetic"].seen == "24 of 24 right"
    assert {evidence.path for evidence in result.evidence} == {
        "correctness-exchanges.jsonl",
        "correctness-answers.json",
    }
    for evidence in result.evidence:
        assert sha256_of_file(tmp_path / "evidence" / evidence.path) == evidence.sha256
    lines = [
        json.loads(line)
        for line in (tmp_path / "evidence" / "correctness-exchanges.jsonl").read_text().splitlines()
    ]
    assert len(lines) > 100
    assert all(line["status"] == 200 for line in lines)


def test_the_long_tier_passes_at_every_length_and_under_load(
    gate: Gate, healthy: str, tiny: Profile, tmp_path: Path
):
    assert tiny.ladder is not None
    # The rung of 8192 tokens is left to the command: its prefill alone takes a slow core many seconds.
    short = tiny.ladder.model_copy(update={"tokens": tuple(n for n in tiny.ladder.tokens if n <= 2048)})
    profile = tiny.model_copy(update={"ladder": short})
    result = gate(healthy, Tier.T1, profile=profile)
    assert result.verdict is Verdict.PASS, [c for c in result.checks if c.verdict is not Verdict.PASS]
    checks = by_name(result)
    rungs = {name for name in checks if name.startswith("ladder-")}
    assert rungs == {f"ladder-{n}" for n in (60, 64, 65, 96, 97, 128, 129, 512, 2048)}
    assert checks["load-64"].value == 1.0
    assert checks["prefill-decode"].verdict is Verdict.PASS
    assert "16 positions" in checks["prefill-decode"].seen
    assert any("tool_call" in limitation for limitation in result.limitations)
    baseline = load_baselines([tmp_path / "evidence" / "correctness-answers.json"])
    assert baseline is not None
    again = gate(healthy, Tier.T1, profile=_without_lengths(profile), baseline=baseline)
    assert by_name(again)["paired-with-baseline"].verdict is Verdict.NO_BASELINE  # it was asked other questions


def _without_lengths(profile: Profile) -> Profile:
    gone = {"ladder": None, "long_answer": None, "prefill_decode": None, "load": None, "json_schema": None}
    reasons = {**profile.unsupported, **dict.fromkeys(gone, "left out")}
    return profile.model_copy(update={**gone, "unsupported": reasons})


def test_the_command_prints_the_record_and_keeps_a_baseline(healthy: str, tmp_path: Path):
    app = typer.Typer()
    correctness.register(app)
    kept = tmp_path / "baseline.json"
    where = [
        "--url",
        healthy,
        "--profile",
        str(MODEL / "profile.yaml"),
        "--evidence",
        str(tmp_path / "evidence"),
    ]
    first = CliRunner().invoke(app, [*where, "--write-baseline", str(kept), "--json"])
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["verdict"] == "PASS"
    second = CliRunner().invoke(app, [*where, "--baseline", str(kept)])
    assert second.exit_code == 0, second.output
    assert "paired-with-baseline" in second.stdout
    third = CliRunner().invoke(app, [*where, "--write-baseline", str(kept)])
    assert isinstance(third.exception, InputError)  # a baseline is never overwritten


def test_a_nan_is_found_although_the_server_says_it_is_well(
    gate: Gate, damaged: Callable[[str], Path], tmp_path: Path
):
    with serve(damaged("nan"), tmp_path / "log") as url:
        assert requests.get(f"{url}/health", timeout=5).status_code == 200
        result = gate(url)
    assert "logprobs-finite" in failed(result)
    assert "null" in by_name(result)["logprobs-finite"].seen


def test_a_layer_without_v_fails_although_the_smoke_question_is_right(
    gate: Gate, damaged: Callable[[str], Path], tmp_path: Path
):
    with serve(damaged("zero-v"), tmp_path / "log") as url:
        assert answer(url, "What is 17*23?") == "391"
        result = gate(url)
    assert result.verdict is Verdict.FAIL
    assert by_name(result)["requests-answered"].verdict is Verdict.PASS
    assert by_name(result)["logprobs-finite"].verdict is Verdict.PASS
    assert any(name.startswith("answers-") for name in failed(result))


@pytest.mark.parametrize("kind", ["swapped-qk", "int2"])
def test_wrong_weights_are_found_by_wrong_answers(
    gate: Gate, damaged: Callable[[str], Path], tmp_path: Path, kind: str
):
    with serve(damaged(kind), tmp_path / "log") as url:
        result = gate(url)
    assert any(name.startswith("answers-") for name in failed(result))
    assert by_name(result)["logprobs-finite"].verdict is Verdict.PASS
