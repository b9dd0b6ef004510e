import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tooling.gates.baselines import (
    HostFingerprint,
    Lookup,
    Match,
    MetricBaseline,
    find_baseline,
    record_baseline,
)
from tooling.gates.records import Check, GateResult, Verdict, worst
from tooling.gates.throughput import checks
from tooling.gates.throughput.calibration import calibration_pace, compare_with_truth
from tooling.gates.throughput.mock import Truth
from tooling.gates.throughput.pacing import Pace
from tooling.gates.throughput.plan import (
    Calibration,
    ClientBuild,
    Distribution,
    Throughput,
    ThroughputPlan,
    Window,
)
from tooling.gates.throughput.regression import boot_of, gated_metrics, judge_again, judge_regression
from tooling.gates.verdict import Boot

CASES = Path(__file__).parents[1] / "cases"
EVIDENCE = Path(__file__).parents[2] / "stacks" / "evidence"


def steady(value: float) -> Distribution:
    return Distribution(count=64, mean=value, p50=value, p90=value, p99=value, largest=value)


def window(**changes: Any) -> Window:
    base: dict[str, Any] = {
        "concurrency": 32,
        "requested": 64,
        "completed": 64,
        "duration_s": 10.0,
        "output_tokens": 8192,
        "input_tokens": 16384,
        "ttft_ms": steady(200),
        "tpot_ms": steady(10),
        "gap_ms": steady(10),
        "counted_tokens": 8192.0,
        "cached_tokens": 64.0,
    }
    return Window(**(base | changes))


def every_check(*windows: Window) -> list[Check | None]:
    return [
        checks.judge_completed(windows),
        checks.judge_content(windows),
        checks.judge_length(windows, 128),
        checks.judge_counter(windows, required=True),
        checks.judge_cold(windows),
        checks.judge_freeze(windows),
    ]


def test_a_clean_run_passes_everything():
    assert {check.verdict for check in every_check(window(), window()) if check} == {Verdict.PASS}


def test_no_window_at_all_passes_nothing():
    verdicts = [check.verdict for check in every_check() if check]
    assert Verdict.PASS not in verdicts
    assert checks.judge_cold([]) is None


def test_failed_requests_fail_although_the_client_exits_with_0():
    check = checks.judge_completed([window(completed=51, errors=("13 x connection error",))])
    assert check.verdict is Verdict.FAIL
    assert check.seen == "51 of 64 requests completed"
    assert check.details == ("c=32: 13 x connection error",)


def test_zero_requests_are_no_success():
    assert checks.judge_completed([window(requested=0, completed=0)]).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    "changes",
    [
        {"empty": 3},
        {"completed": 60, "errors": ("4 x the response contained no generated tokens",)},
        {"completed": 0},
    ],
)
def test_answers_without_text_fail(changes: dict[str, Any]):
    assert checks.judge_content([window(**changes)]).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    "changes",
    [
        {"counted_tokens": None},
        {"counted_tokens": 8184.0},  # the server gave fewer
        {"counted_tokens": 8320.0},  # somebody else was served, too: it proves nothing
        {"output_tokens": 4096},  # the client missed half: not the last tokens of some answers
        {"requested": 65},  # one failed, and its tokens are in the counter
    ],
)
def test_answers_of_other_lengths_compare_other_work(changes: dict[str, Any]):
    short: dict[str, Any] = {"wrong_length": 8, "output_tokens": 8184} | changes
    assert checks.judge_length([window(), window(**short)], 128).verdict is Verdict.INCONCLUSIVE


def test_last_tokens_without_text_are_missed_by_the_client_and_counted_by_the_server():
    # As measured on an H200 at c=32: 8 answers seem one token short, the server counted 128 x 128.
    seen = window(requested=128, completed=128, output_tokens=16376, wrong_length=8, counted_tokens=16384.0)
    check = checks.judge_length([window(), seen], 128)
    assert check.verdict is Verdict.PASS
    assert check.details == ("the client misses 8 tokens in 8 answers: it reads none that bring no text",)


def test_the_healthy_run_on_a_gpu_has_answers_of_the_requested_length():
    record = json.loads((EVIDENCE / "engine-h200.json").read_text(encoding="utf-8"))
    (stage,) = (stage for stage in record["stages"] if stage["name"] == "healthy")
    measured = Throughput.model_validate(stage["throughput"]["a1"])
    assert measured.open_loop is not None
    windows = [*measured.windows, measured.open_loop]
    assert sum(each.wrong_length for each in windows) > 300
    assert checks.judge_length(windows, measured.plan.output_tokens).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("counted", "verdict"),
    [
        (8192, Verdict.PASS),
        (8150, Verdict.PASS),
        (8000, Verdict.INCONCLUSIVE),
        (16384, Verdict.INCONCLUSIVE),
        (0, Verdict.INCONCLUSIVE),
    ],
)
def test_the_servers_counter_must_agree(counted: float, verdict: Verdict):
    check = checks.judge_counter([window(), window(counted_tokens=counted)], required=True)
    assert check is not None
    assert check.verdict is verdict


def test_a_missing_counter_is_inconclusive_or_a_limitation():
    blind = [window(counted_tokens=None)]
    required = checks.judge_counter(blind, required=True)
    assert required is not None
    assert required.verdict is Verdict.INCONCLUSIVE
    assert checks.judge_counter(blind, required=False) is None


def test_a_sweep_that_replays_its_prompts_is_not_cold():
    case = yaml.safe_load((CASES / "throughput-warm-prefix-cache.yaml").read_text(encoding="utf-8"))
    gains = re.findall(r"C=(\d+)\s+\+([\d.]+) %", case["input"]["text"])
    assert len(gains) == 3
    # 16K input; what a cell gained came from prompt tokens that were cached.
    sweep = [
        window(
            concurrency=int(level),
            requested=64,
            input_tokens=64 * 16384,
            cached_tokens=64 * 16384 * float(gain) / 100,
        )
        for level, gain in gains
    ]
    check = checks.judge_cold([window(concurrency=1, input_tokens=64 * 16384, cached_tokens=0), *sweep])
    assert check is not None
    assert check.verdict is Verdict.INCONCLUSIVE
    assert all(any(f"c={level}:" in line for line in check.details) for level, _ in gains)
    assert "never sent before" in check.details[-1]


@pytest.mark.parametrize(
    ("cached", "verdict"),
    [(0, Verdict.PASS), (0.0099, Verdict.PASS), (0.011, Verdict.INCONCLUSIVE), (0.9, Verdict.INCONCLUSIVE)],
)
def test_one_percent_of_cached_prompt_tokens_is_the_limit(cached: float, verdict: Verdict):
    tokens = 64 * 16384
    check = checks.judge_cold([window(input_tokens=tokens, cached_tokens=cached * tokens)])
    assert check is not None
    assert check.verdict is verdict


def test_the_start_token_of_short_prompts_is_no_warm_cache():
    short = window(input_tokens=64 * 32, cached_tokens=64.0 * 2)
    check = checks.judge_cold([short])
    assert check is not None
    assert check.verdict is Verdict.PASS


def test_a_server_without_a_cache_counter_cannot_be_judged_cold():
    assert checks.judge_cold([window(cached_tokens=None)]) is None


def test_a_frozen_stream_fails_whatever_the_percentiles_say():
    frozen = window(freeze_ms=3000.0, gap_ms=steady(10).model_copy(update={"largest": 3000.0}))
    check = checks.judge_freeze([window(), frozen])
    assert check.verdict is Verdict.FAIL
    assert "3000 ms" in check.details[0]


def test_a_freeze_before_the_first_token_shows_where_nothing_queues():
    late = steady(200).model_copy(update={"largest": 3200.0})
    assert checks.judge_freeze([window(concurrency=1, ttft_ms=late)]).verdict is Verdict.FAIL
    assert checks.judge_freeze([window(concurrency=32, ttft_ms=late)]).verdict is Verdict.PASS


def test_without_two_chunks_no_gap_was_seen():
    assert checks.judge_freeze([window(gap_ms=Distribution())]).verdict is Verdict.INCONCLUSIVE


def calibration(share: float, mock_speed: float = 1.0) -> Calibration:
    return Calibration(
        concurrency=32, ideal_tokens_per_s=1000, client_tokens_per_s=1000 * share, mock_speed=mock_speed,
        ttft_error_ms=1, tpot_error=0,
    )  # fmt: skip


def test_a_client_below_97_percent_of_the_ideal_is_what_was_measured():
    assert checks.judge_calibration([calibration(0.98)]).verdict is Verdict.PASS
    bound = checks.judge_calibration([calibration(0.99), calibration(0.96)])
    assert bound.verdict is Verdict.INCONCLUSIVE
    assert "client-bound" in bound.seen
    assert checks.judge_calibration([]).verdict is Verdict.INCONCLUSIVE


def test_a_late_mock_does_not_blame_the_client():
    check = checks.judge_calibration([calibration(0.5, mock_speed=0.5)])
    assert check.verdict is Verdict.INCONCLUSIVE
    assert "mock itself" in check.seen
    assert "client-bound" not in check.seen


def test_the_calibration_is_faster_than_the_engine_was():
    pace = calibration_pace([window(tokens_per_chunk=3.8)], 1.25)
    assert (pace.itl_ms, pace.ttft_ms, pace.tokens_per_chunk) == (8, 160, 4)


def test_client_and_truth_are_compared_request_by_request():
    pace = Pace(ttft_ms=200, itl_ms=50)
    truth = [Truth(received=0, first=0.2, last=3.35, tokens=64, largest_gap_s=0.05)] * 4
    seen = window(
        concurrency=2, duration_s=6.7, output_tokens=256, requested=4, completed=4, tpot_ms=steady(50.5)
    )
    found = compare_with_truth(seen, truth, pace, 64)
    assert found.share == pytest.approx(1.0)
    assert found.mock_speed == pytest.approx(1.0)
    assert found.tpot_error == pytest.approx(0.01)
    slow = [Truth(received=0, first=0.4, last=6.7, tokens=64, largest_gap_s=0.1)]
    assert compare_with_truth(seen, slow, pace, 64).mock_speed == pytest.approx(0.5)
    failed = seen.model_copy(update={"completed": 3})
    assert compare_with_truth(failed, truth, pace, 64).share == 0.0


def test_windows_that_disagree_name_the_outlier():
    slow = window(duration_s=30.0, ttft_ms=steady(200).model_copy(update={"largest": 19799.0}))
    check = checks.judge_windows([window(), window(duration_s=10.05), slow, window(duration_s=9.95)])
    assert check is not None
    assert check.verdict is Verdict.INCONCLUSIVE
    assert any("outlier" in line for line in check.details)
    assert any("cold prefill" in line for line in check.details)
    assert checks.judge_windows([window()]) is None
    empty = checks.judge_windows([window(), window(output_tokens=0)])
    assert empty is not None
    assert empty.verdict is Verdict.FAIL


PLAN = ThroughputPlan(concurrencies=(1, 32))
HOST = HostFingerprint(cpu="EPYC", cores=2)


def measured(rate: float) -> Throughput:
    return Throughput(
        model="m",
        engine="sglang",
        client=ClientBuild(name="c", version="1", sha256="0"),
        plan=PLAN,
        windows=(window(concurrency=1), window(concurrency=32, output_tokens=int(rate * 10))),
    )


def judge(now: Throughput, baseline: Lookup | None = None, **more: Any) -> dict[str, Check]:
    arguments: dict[str, Any] = {"broken": (), "fresh_baseline": {}, "earlier_boots": {}} | more
    found = judge_regression(now, boot_id="b", baseline=baseline, **arguments)
    return {check.name: check for check in found}


def test_two_numbers_of_a_boot_are_gated():
    assert [metric.name for metric in gated_metrics(PLAN)] == ["output-rate@c32", "time-per-token@c1"]
    assert boot_of(measured(800), "b")["output-rate@c32"].value == 800


def test_what_was_not_measured_fails():
    nothing = measured(800).model_copy(update={"windows": ()})
    assert {check.verdict for check in judge(nothing).values()} == {Verdict.FAIL}


def test_a_stale_baseline_is_none_and_says_what_differs(tmp_path: Path):
    metrics = [
        MetricBaseline(metric=metric, boots=(Boot(boot_id="1", value=800),)) for metric in gated_metrics(PLAN)
    ]
    record_baseline(tmp_path, HOST, "m", {"driver": "580"}, metrics, subject="s")
    stale = find_baseline(tmp_path, HOST, "m", {"driver": "590"})
    check = judge(measured(800), stale)["output-rate@c32"]
    assert check.verdict is Verdict.NO_BASELINE
    assert "stale" in check.seen
    assert "driver: baseline 580, this run 590" in check.details


def test_three_boots_against_a_stored_and_a_fresh_baseline_pass_or_fail(tmp_path: Path):
    rate, time = gated_metrics(PLAN)
    stored = tuple(Boot(boot_id=str(index), value=800 + index) for index in range(3))
    times = tuple(Boot(boot_id=str(index), value=10) for index in range(3))
    record_baseline(
        tmp_path,
        HOST,
        "m",
        {},
        [MetricBaseline(metric=rate, boots=stored), MetricBaseline(metric=time, boots=times)],
        subject="s",
    )
    found = find_baseline(tmp_path, HOST, "m", {})
    assert found.match is Match.FOUND
    fresh = {rate.name: [Boot(boot_id="f", value=801)], time.name: [Boot(boot_id="f", value=10)]}
    for now, verdict in ((800, Verdict.PASS), (680, Verdict.FAIL)):
        earlier = {rate.name: [Boot(boot_id=str(index), value=now) for index in range(2)]}
        checked = judge(measured(now), found, fresh_baseline=fresh, earlier_boots=earlier)
        assert checked[rate.name].verdict is verdict


def test_a_broken_precondition_makes_both_numbers_inconclusive():
    found = judge(measured(800), broken=("client-calibration: client-bound",))
    assert {check.verdict for check in found.values()} == {Verdict.INCONCLUSIVE}


def result_of(now: Throughput, **more: Any) -> GateResult:
    checks = (
        Check(name="all-requests-completed", verdict=more.get("other", Verdict.PASS), seen="144 of 144"),
        *judge(now).values(),
    )
    return GateResult(
        gate="throughput",
        verdict=worst(check.verdict for check in checks),
        checks=checks,
        configuration_sha256="0",
        started="2026-01-01T00:00:00Z",
        ended="2026-01-01T00:00:01Z",
    )


def again(now: Throughput, before: float, **more: Any) -> GateResult:
    rate, time = gated_metrics(PLAN)
    boots = [Boot(boot_id=str(index), value=before + index / 10) for index in range(3)]
    times = [Boot(boot_id=str(index), value=10) for index in range(3)]
    earlier = [boot_of(now, str(index))[rate.name] for index in range(2)]
    return judge_again(
        result_of(now, **more),
        now,
        boot_id="b",
        fresh_baseline={rate.name: boots, time.name: times},
        earlier_boots={rate.name: earlier, time.name: times[:2]},
        broken=more.get("broken", ()),
    )


def test_boots_of_the_baseline_that_came_last_count_too():
    assert again(measured(800), 800).verdict is Verdict.PASS
    slower = again(measured(680), 800)
    assert slower.verdict is Verdict.FAIL
    assert [check.name for check in slower.checks if check.verdict is Verdict.FAIL] == ["output-rate@c32"]


def test_an_unsound_boot_of_either_side_decides_nothing():
    assert again(measured(680), 800, other=Verdict.INCONCLUSIVE).verdict is Verdict.INCONCLUSIVE
    found = again(measured(680), 800, broken=["the baseline's boot b: client-bound"])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "the baseline's boot b: client-bound" in found.checks[-1].details
