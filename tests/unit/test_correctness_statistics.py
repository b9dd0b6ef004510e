import re
from pathlib import Path

import pytest
import yaml

from tooling.gates.correctness.statistics import (
    compare_launches,
    compare_paired,
    compare_score,
    compare_scores,
    judge_repeatability,
    mcnemar,
    permutation_p,
)
from tooling.gates.records import Verdict

CASES = Path(__file__).parents[1] / "cases"
RATIO = re.compile(r"(\d+)/(\d+)")


def case_text(name: str) -> str:
    return str(yaml.safe_load((CASES / f"{name}.yaml").read_text())["input"]["text"])


@pytest.mark.parametrize(
    ("lost", "won", "p"), [(0, 0, 1.0), (1, 0, 0.5), (6, 0, 1 / 64), (5, 5, 0.623), (10, 2, 0.0193)]
)
def test_mcnemar_against_the_binomial_table(lost: int, won: int, p: float):
    assert mcnemar(lost, won) == pytest.approx(p, rel=2e-3)


def test_the_field_case_of_launches_that_differ():
    lines = case_text("correctness-differs-from-launch-to-launch").splitlines()
    four = [int(a) for a, _ in RATIO.findall(lines[0])]
    assert four == [30, 30, 30, 24]
    repeat = judge_repeatability(four, 30)
    assert repeat.verdict is Verdict.INCONCLUSIVE
    assert "between launches" in repeat.seen
    assert compare_launches([30], [24], 30).verdict is Verdict.INCONCLUSIVE  # one launch a side
    assert compare_launches([24], [30], 30).verdict is Verdict.INCONCLUSIVE  # nor is it an improvement
    base, patched, off = ([int(n) for n in line.split()[-8:]] for line in lines[2:5])
    better = compare_launches(base, patched, 24)
    assert better.verdict is Verdict.PASS
    assert "better" in better.seen
    assert compare_launches(off, patched, 24).verdict is Verdict.PASS  # speculation costs nothing
    worse = compare_launches(patched, base, 24)
    assert worse.verdict is Verdict.FAIL
    assert "worse" in worse.seen


def test_launches_that_cannot_decide_say_so():
    assert compare_launches([30, 24, 30], [24, 30, 25], 30).verdict is Verdict.INCONCLUSIVE
    assert compare_launches([], [30, 30, 30], 30).verdict is Verdict.FAIL
    assert compare_launches([31, 30, 30], [30, 30, 30], 30).verdict is Verdict.FAIL


def test_launches_that_agree_repeat_well():
    assert judge_repeatability([23, 24, 23, 24, 23], 24).verdict is Verdict.PASS
    assert judge_repeatability([24, 24], 24).verdict is Verdict.INCONCLUSIVE
    assert judge_repeatability([], 24).verdict is Verdict.FAIL


def test_three_launches_a_side_reach_one_in_twenty_and_no_less():
    assert permutation_p([1, 2, 3], [4, 5, 6]) == pytest.approx(1 / 20)
    assert permutation_p([4, 5, 6], [1, 2, 3]) == 1.0


def test_many_launches_are_sampled_and_still_decided():
    low, high = [float(n) for n in range(12)], [float(n) for n in range(30, 42)]
    assert permutation_p(low, high) < 0.001


def test_the_field_case_of_half_a_reference():
    table = case_text("correctness-gsm8k-half-of-reference").splitlines()
    ours = re.findall(r"\d\.\d+(?:-\d\.\d+)?", table[1])
    theirs = re.findall(r"\d\.\d+", table[2])
    rows = {
        name: (float(a.split("-")[-1]), float(b))
        for name, a, b in zip(("gsm8k", "mmlu-pro", "ifeval"), ours, theirs, strict=True)
    }
    assert rows["gsm8k"] == (0.52, 0.89)  # the best of its range
    checks = {check.name: check for check in compare_scores(rows, questions=500)}
    assert checks["score-gsm8k"].verdict is Verdict.FAIL
    assert "no more samples" in checks["score-gsm8k"].seen
    assert any("template" in line and "token budget" in line for line in checks["score-gsm8k"].details)
    assert checks["scores-together"].verdict is Verdict.FAIL
    # GSM8K alone, with nobody telling how many questions there were
    assert compare_score(0.52, 0.89, None, None).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("score", "reference", "questions", "verdict"),
    [
        (0.90, 0.91, 1319, Verdict.PASS),
        (0.95, 0.91, 1319, Verdict.PASS),
        (0.86, 0.91, 1319, Verdict.FAIL),
        (0.88, 0.91, 200, Verdict.INCONCLUSIVE),  # 200 questions cannot show a loss of 3 points
        (0.91, 0.91, 20, Verdict.INCONCLUSIVE),  # 20 questions show nothing at all
        (1.0, 1.0, 200, Verdict.PASS),
    ],
)
def test_a_score_against_a_reference(score: float, reference: float, questions: int, verdict: Verdict):
    assert compare_score(score, reference, questions, 1319).verdict is verdict


def answers(right: int, n: int) -> dict[str, bool]:
    return {f"q{i:04}": i < right for i in range(n)}


@pytest.mark.parametrize(
    ("before", "now", "n", "verdict"),
    [
        (24, 24, 24, Verdict.PASS),
        (190, 189, 200, Verdict.PASS),
        (30, 24, 30, Verdict.INCONCLUSIVE),  # one launch a side: the field case
        (190, 180, 200, Verdict.INCONCLUSIVE),  # p = 0.001, but launches differ by as much
        (178, 104, 200, Verdict.FAIL),  # a collapse
    ],
)
def test_one_launch_against_one_on_the_same_questions(before: int, now: int, n: int, verdict: Verdict):
    assert compare_paired(answers(before, n), answers(now, n)).verdict is verdict


def test_a_baseline_of_other_questions_is_a_failure():
    check = compare_paired({"a": True}, {"b": True})
    assert check.verdict is Verdict.FAIL
    assert "none of these questions" in check.seen
