import re
from pathlib import Path

import pytest
import yaml

from tooling.gates.power import (
    GpuLoad,
    GpuSample,
    StallEvidence,
    judge_energy,
    judge_idle,
    judge_power,
    judge_stall,
    summarise_gpus,
)
from tooling.gates.records import Verdict

CASES = Path(__file__).parents[1] / "cases"


def load(
    power_w: float | None, util: float = 100, limit_w: float | None = 600, samples: int = 20, **more: float
) -> GpuLoad:
    return GpuLoad(gpu=0, samples=samples, utilization_percent=util, power_w=power_w, limit_w=limit_w, **more)


def test_busy_and_cold_under_load_is_a_spin_wait():
    # 78.6 tok/s at 100 % and 125 W of 600 W with fusion on; 3740 tok/s at 250 W with it off.
    check = judge_power([load(125)] * 8, 32)
    assert check.verdict is Verdict.FAIL
    assert "spin-wait" in check.seen
    assert judge_power([load(250)] * 8, 32).verdict is Verdict.PASS


def test_one_spinning_gpu_of_eight_is_enough():
    assert judge_power([*[load(250)] * 7, load(120)], 64).verdict is Verdict.FAIL


def test_a_light_load_may_draw_little():
    assert judge_power([load(125)] * 8, 1).verdict is Verdict.PASS
    assert judge_power([load(90, util=30)] * 8, 32).verdict is Verdict.PASS


def test_a_known_healthy_power_replaces_an_unknown_limit():
    assert judge_power([load(26, util=96, limit_w=None)], 32, healthy_w=45).verdict is Verdict.FAIL
    assert judge_power([load(44, util=96, limit_w=None)], 32, healthy_w=45).verdict is Verdict.PASS


def test_what_cannot_be_judged_is_not_passed():
    assert judge_power([], 32).verdict is Verdict.INCONCLUSIVE
    assert judge_power([load(250, samples=1)], 32).verdict is Verdict.INCONCLUSIVE
    assert judge_power([load(None)], 32).verdict is Verdict.INCONCLUSIVE
    assert judge_power([load(250, limit_w=None)], 32).verdict is Verdict.INCONCLUSIVE


def test_throttled_gpus_measure_the_cooling():
    hot = load(300).model_copy(update={"throttle": ("HwThermalSlowdown",)})
    check = judge_power([hot], 32)
    assert check.verdict is Verdict.INCONCLUSIVE
    assert "HwThermalSlowdown" in check.seen


def test_gpus_must_be_idle_before_the_run():
    assert judge_idle([load(20, util=0)]).verdict is Verdict.PASS
    wedged = judge_idle([load(20, util=0), load(120, util=100)])
    assert wedged.verdict is Verdict.INCONCLUSIVE
    assert "wedged or shared" in wedged.seen
    assert judge_idle([]).verdict is Verdict.INCONCLUSIVE


def test_energy_per_token_is_the_sharpest_number():
    spinning = judge_energy(8 * 125 * 10, 786, baseline_j_per_token=0.535)
    assert spinning.verdict is Verdict.FAIL
    assert spinning.value == pytest.approx(12.7, abs=0.1)
    assert judge_energy(8 * 250 * 10, 37400, 0.535).verdict is Verdict.PASS
    assert judge_energy(100, 10, None).verdict is Verdict.NO_BASELINE
    assert judge_energy(100, 0, None).verdict is Verdict.FAIL


def _deadlock() -> StallEvidence:
    text = yaml.safe_load((CASES / "throughput-busy-but-cold-deadlock.yaml").read_text(encoding="utf-8"))[
        "input"
    ]["text"]
    util = [float(number) for number in re.findall(r"utilization ([\d.]+)-([\d.]+)", text)[0]]
    power = [float(number) for number in re.findall(r"power ([\d.]+)-([\d.]+) W", text)[0]]
    samples = [
        GpuSample(
            at_s=30.0 * index,
            gpu=gpu,
            utilization_percent=util[index % 2],
            power_w=power[index % 2],
            temperature_c=60.0 - index,
        )
        for gpu in range(8)
        for index in range(20)
    ]
    return StallEvidence(
        duration_s=600,
        tokens=0,
        running=float(re.findall(r"num_requests_running (\d+)", text)[0]),
        loads=summarise_gpus(samples),
        healthy_w=float(re.findall(r"healthy (\d+) W", text)[0]),
    )


def test_frozen_counter_running_requests_and_cold_gpus_are_a_deadlock():
    check = judge_stall(_deadlock())
    assert check.verdict is Verdict.FAIL
    assert "deadlocked engine: 3 requests running" in check.seen
    assert any("spin-waiting" in line for line in check.details)
    assert any("cooled by 19 degrees" in line for line in check.details)


def test_a_board_that_cools_is_cold_where_no_normal_power_is_known():
    check = judge_stall(_deadlock().model_copy(update={"healthy_w": None}))
    assert check.verdict is Verdict.FAIL
    assert "deadlocked" in check.seen


def test_a_long_prefill_draws_normal_power():
    evidence = _deadlock().model_copy(update={"loads": (load(46, util=96, limit_w=None),)})
    check = judge_stall(evidence)
    assert check.verdict is Verdict.INCONCLUSIVE
    assert "long prefill" in check.seen


def test_tokens_that_come_are_progress_however_cold():
    assert judge_stall(_deadlock().model_copy(update={"tokens": 12.0})).verdict is Verdict.PASS


def test_without_gpus_a_stall_is_still_a_failure_and_says_what_is_unknown():
    check = judge_stall(StallEvidence(duration_s=120, tokens=0, running=4))
    assert check.verdict is Verdict.FAIL
    assert any("without power samples" in line for line in check.details)


def test_a_stall_that_no_counter_shows_cannot_be_named():
    assert judge_stall(StallEvidence(duration_s=120, tokens=None, running=None)).verdict is Verdict.INCONCLUSIVE
    idle = judge_stall(StallEvidence(duration_s=120, tokens=0, running=0))
    assert idle.verdict is Verdict.INCONCLUSIVE
    assert "never reached the engine" in idle.seen


def test_samples_are_summed_up_by_gpu():
    samples = [
        GpuSample(
            at_s=0, gpu=1, utilization_percent=90, power_w=100, limit_w=600, temperature_c=50, throttle=("X",)
        ),
        GpuSample(at_s=1, gpu=1, utilization_percent=100, power_w=None, limit_w=600, temperature_c=47),
        GpuSample(at_s=0, gpu=0, utilization_percent=1),
    ]
    first, second = summarise_gpus(samples)
    assert (first.gpu, first.power_w, first.limit_w) == (0, None, None)
    assert (second.utilization_percent, second.power_w, second.cooling_c) == (95, 100, 3)
    assert second.throttle == ("X",)
    assert summarise_gpus([]) == ()
