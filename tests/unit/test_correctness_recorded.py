import json
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from tooling.commands import judge as judge_command
from tooling.errors import InputError
from tooling.gates.correctness.recorded import judge_bodies, judge_launches, judge_scores
from tooling.gates.records import Verdict

CASES = Path(__file__).parents[1] / "cases"


def case(name: str) -> str:
    return str(yaml.safe_load((CASES / f"correctness-{name}.yaml").read_text())["input"]["text"])


def test_the_answer_under_reasoning_from_the_case_as_it_stands():
    (check,) = judge_bodies(case("answer-in-the-reasoning-field"))
    assert check.verdict is Verdict.FAIL
    assert "answer-in-the-reasoning-field" in check.seen
    assert any("system prompt" in line for line in check.details)


def test_the_launches_from_the_case_as_they_stand():
    lines = case("differs-from-launch-to-launch").splitlines()
    (four,) = judge_launches(lines[0])
    assert four.verdict is Verdict.INCONCLUSIVE
    checks = {check.name: check for check in judge_launches("\n".join(lines[1:]))}
    assert checks["patched, MTP on against base + MTP"].verdict is Verdict.PASS
    assert "better" in checks["patched, MTP on against base + MTP"].seen
    one_each = judge_launches("before: 30/30\nafter: 24/30")
    assert {check.verdict for check in one_each} == {Verdict.INCONCLUSIVE}


def test_the_scores_from_the_case_as_they_stand():
    checks = judge_scores(case("gsm8k-half-of-reference"))
    by_verdict = {check.name: check.verdict for check in checks}
    assert by_verdict["score-GSM8K (0-shot) 8 x RTX 5090"] is Verdict.FAIL
    assert by_verdict["score-MMLU-Pro 8 x RTX 5090"] is Verdict.FAIL
    assert by_verdict["scores-together"] is Verdict.FAIL
    # IFEval's difference is smaller; with the suite's real size it is a loss as well.
    real = {check.name: check.verdict for check in judge_scores(case("gsm8k-half-of-reference"), 541)}
    assert real["score-IFEval 8 x RTX 5090"] is Verdict.FAIL


def test_percentages_and_a_reference_without_a_label():
    same = "ours 90.0% 81.0%\nH100 90.5% 80.0%"
    assert {check.verdict for check in judge_scores(same, 2000)} == {Verdict.PASS}
    assert judge_scores("ours: 52.0\nreference: 89.0", 1319)[0].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("function", "text", "message"),
    [
        (judge_bodies, "nothing here", "no line holds"),
        (judge_launches, "nothing here", "no row of launches"),
        (judge_launches, "base 15 15 12", "number of questions"),
        (judge_launches, "base 15/24 15/25", "different numbers"),
        (judge_scores, "ours 0.5", "no two rows"),
        (judge_scores, "ours 0.5\nreference 0.5 0.6", "no two rows"),
    ],
)
def test_text_that_cannot_be_judged_is_refused(function: object, text: str, message: str):
    assert callable(function)
    with pytest.raises(InputError, match=message):
        function(text)


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    judge_command.register(app)
    return app


def test_the_command_prints_checks_and_its_exit_code_says_the_verdict(app: typer.Typer, tmp_path: Path):
    good = tmp_path / "good.json"
    good.write_text(json.dumps({"choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}]}))
    done = CliRunner().invoke(app, ["answers", str(good), "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)[0]["verdict"] == "PASS"
    good.write_text(json.dumps({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}))
    done = CliRunner().invoke(app, ["answers", str(good)])
    assert done.exit_code == 1
    assert "empty-answer" in done.stdout


def test_the_command_judges_a_reader_of_a_stream(app: typer.Typer, tmp_path: Path):
    stream, taken = tmp_path / "stream.sse", tmp_path / "taken.txt"
    stream.write_text(case("stream-reader-drops-text").splitlines()[0] + "\n\n")
    taken.write_text("The \\\n")
    done = CliRunner().invoke(app, ["stream", str(stream), "--extracted", str(taken)])
    assert done.exit_code == 1
    assert "INCONCLUSIVE" in done.stdout
    assert "the reader is wrong" in done.stdout
    missing = CliRunner().invoke(app, ["stream", str(stream)])
    assert isinstance(missing.exception, InputError)
