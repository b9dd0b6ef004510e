import re
import statistics
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tooling.errors import InputError
from tooling.gates.records import Verdict
from tooling.gates.spread import Summary, judge_spread, summarise

CASES = Path(__file__).parents[1] / "cases"
LINE = re.compile(
    r"(\w+)\s+mean=\s*([\d.]+)(?:ms)? std=\s*([\d.]+)(?:ms)?.*?min=\s*([\d.]+)(?:ms)? max=\s*([\d.]+)(?:ms)?"
)


def _from_the_field() -> dict[str, Summary]:
    case = yaml.safe_load((CASES / "throughput-one-outlier-run.yaml").read_text(encoding="utf-8"))
    found = {}
    for line in case["input"]["text"].splitlines():
        match = LINE.match(line)
        if match:
            mean, std, low, high = (float(match[group]) for group in range(2, 6))
            found[match[1]] = Summary(metric=match[1], runs=5, mean=mean, std=std, low=low, high=high)
    return found


def test_one_slow_run_of_five_is_no_regression_and_is_named():
    field = _from_the_field()
    assert set(field) == {"wall_TPS", "decode_TPS", "TTFT"}
    check = judge_spread(field["wall_TPS"], 0.05, (field["decode_TPS"], field["TTFT"]))
    assert check.verdict is Verdict.INCONCLUSIVE
    assert check.value == pytest.approx(0.363, abs=0.001)
    told = " ".join(check.details)
    assert "outlier (23.65" in told
    assert "decode_TPS is steady at 81.28" in told
    assert "cold prefill" in told
    assert "warm-up" in told


def test_the_steady_metric_of_the_same_runs_passes():
    assert judge_spread(_from_the_field()["decode_TPS"], 0.05).verdict is Verdict.PASS


def test_runs_that_all_disagree_have_no_outlier_to_blame():
    check = judge_spread(summarise("rate", [50, 80, 110, 140, 95]), 0.05)
    assert check.verdict is Verdict.INCONCLUSIVE
    assert not any("outlier" in line for line in check.details)


def test_of_two_runs_neither_is_the_outlier():
    check = judge_spread(summarise("rate", [50, 100]), 0.05)
    assert check.verdict is Verdict.INCONCLUSIVE
    assert not any("outlier" in line for line in check.details)


def test_a_fast_outlier_is_one_too_and_its_run_is_numbered():
    check = judge_spread(summarise("rate", [80, 81, 400, 80.5], "tok/s"), 0.05)
    assert check.details[0].startswith("run 3 is the outlier (400 tok/s)")


@given(st.lists(st.floats(1, 1000), min_size=3, max_size=12))
def test_leaving_out_the_extreme_needs_no_single_values(values: list[float]):
    summary = summarise("x", values)
    mean, std = summary.without_extreme()
    assert summary.extreme_run is not None
    rest = [value for index, value in enumerate(values) if index != summary.extreme_run]
    if summary.extreme == values[summary.extreme_run]:  # two may be equally far off
        assert mean == pytest.approx(statistics.fmean(rest), rel=1e-6)
        assert std == pytest.approx(statistics.stdev(rest), rel=1e-3, abs=1e-2)


def test_one_run_has_no_spread():
    with pytest.raises(InputError, match="no spread"):
        summarise("rate", [1.0])


def test_figures_that_contradict_each_other_are_refused():
    with pytest.raises(ValidationError, match="not between"):
        Summary(metric="x", runs=3, mean=5, std=1, low=6, high=7)
