import math
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from tooling.errors import InputError
from tooling.gates.records import Verdict
from tooling.gates.verdict import (
    MAX_BOOTS,
    MIN_BOOTS,
    Better,
    Boot,
    Metric,
    Preconditions,
    boot_order,
    compare,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

RATE = Metric(name="output-rate@c32", unit="tok/s")
TIME = Metric(name="time-per-token@c1", unit="ms", better=Better.LOWER, margin=0.10)
TRIALS = 400


def boots(*values: float, fresh: bool = True) -> list[Boot]:
    return [Boot(boot_id=f"b{index}", value=value, fresh=fresh) for index, value in enumerate(values)]


def _draw(chance: random.Random, mean: float, cv: float, count: int) -> list[Boot]:
    return boots(*(mean * math.exp(chance.gauss(0, cv)) for _ in range(count)))


def _rates(effect: float, cv: float, count: int, metric: Metric = RATE) -> dict[Verdict, float]:
    """How often each verdict falls when the candidate is truly `effect` off."""
    chance = random.Random(20261129)  # noqa: S311  # a simulation
    found = Counter(
        compare(metric, _draw(chance, 100, cv, count), _draw(chance, 100 * (1 + effect), cv, count)).verdict
        for _ in range(TRIALS)
    )
    return {verdict: found[verdict] / TRIALS for verdict in Verdict}


def test_the_order_of_boots_is_mirrored():
    assert [boot_order(count) for count in (1, 2, 3, 4)] == ["AB", "ABBA", "ABBAAB", "ABBAABBA"]
    with pytest.raises(InputError):
        boot_order(0)


@pytest.mark.parametrize(("cv", "passes"), [(0.01, 0.99), (0.02, 0.95)])
def test_no_change_is_hardly_ever_a_false_alarm(cv: float, passes: float):
    rates = _rates(0.0, cv, MAX_BOOTS)
    assert rates[Verdict.FAIL] <= 0.01
    assert rates[Verdict.PASS] >= passes


@pytest.mark.parametrize(("cv", "count"), [(0.01, 3), (0.02, 5)])
def test_a_loss_of_8_percent_is_hardly_ever_missed(cv: float, count: int):
    rates = _rates(-0.08, cv, count)
    assert rates[Verdict.FAIL] >= 0.97
    assert rates[Verdict.PASS] == 0.0


@pytest.mark.parametrize("cv", [0.005, 0.01, 0.02])
@pytest.mark.parametrize("count", [3, 5])
def test_a_loss_of_the_margin_passes_no_more_often_than_alpha(cv: float, count: int):
    assert _rates(-0.05, cv, count)[Verdict.PASS] <= 0.05 + 0.03  # 0.03 is the simulation's own error


def test_a_small_loss_on_a_noisy_host_is_mostly_inconclusive():
    rates = _rates(-0.03, 0.02, 5)
    assert rates[Verdict.INCONCLUSIVE] >= 0.45
    assert rates[Verdict.FAIL] <= 0.08


def test_growing_from_three_boots_to_five_keeps_the_error_rates():
    chance = random.Random(7)  # noqa: S311  # a simulation

    def grown(effect: float) -> Verdict:
        old, new = _draw(chance, 100, 0.02, 5), _draw(chance, 100 * (1 + effect), 0.02, 5)
        for count in range(MIN_BOOTS, MAX_BOOTS + 1):
            found = compare(RATE, old[:count], new[:count])
            if found.verdict is not Verdict.INCONCLUSIVE:
                break
        return found.verdict

    assert sum(grown(0.0) is Verdict.FAIL for _ in range(TRIALS)) / TRIALS <= 0.01
    assert sum(grown(-0.08) is Verdict.PASS for _ in range(TRIALS)) / TRIALS <= 0.01
    assert sum(grown(-0.05) is Verdict.PASS for _ in range(TRIALS)) / TRIALS <= 0.12


def test_windows_are_no_replicates_and_the_rule_is_fed_boots():
    # Five windows of one boot agree to 0.2 %, boots differ by 2 %: as replicates they would alarm all the time.
    chance, alarms = random.Random(3), 0  # noqa: S311  # a simulation
    for _ in range(TRIALS):
        sides: list[Sequence[Boot]] = []
        for _side in range(2):
            medians = []
            for _boot in range(5):
                level = 100 * math.exp(chance.gauss(0, 0.02))
                medians.append(sorted(level * math.exp(chance.gauss(0, 0.002)) for _ in range(5))[2])
            sides.append(boots(*medians))
        alarms += compare(RATE, *sides).verdict is Verdict.FAIL
    assert alarms / TRIALS <= 0.01


def test_three_boots_that_agree_by_chance_are_not_trusted_beyond_the_floor():
    found = compare(RATE, boots(100, 100, 100), boots(99.9, 99.9, 99.9))
    assert found.verdict is Verdict.PASS
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.low > 0.01


def test_for_times_more_is_worse():
    assert compare(TIME, boots(10, 10.1, 9.9), boots(12, 12.1, 11.9)).verdict is Verdict.FAIL
    assert compare(TIME, boots(12, 12.1, 11.9), boots(10, 10.1, 9.9)).verdict is Verdict.PASS


def test_a_better_candidate_passes():
    found = compare(RATE, boots(100, 101, 99), boots(150, 151, 149))
    assert found.verdict is Verdict.PASS
    assert found.change == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_boots_decide_nothing_and_say_how_many_more(count: int):
    found = compare(RATE, boots(100, 100, 100), boots(*[93.0] * count))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.more_boots == 3 - count


def test_a_collapse_needs_one_repetition_and_no_statistics():
    once = compare(RATE, boots(3740, 3700, 3760), boots(78.6))
    assert once.verdict is Verdict.INCONCLUSIVE
    assert once.more_boots == 1
    assert "collapse" in once.reasons[0]
    twice = compare(RATE, boots(3740), boots(78.6, 80.1))
    assert twice.verdict is Verdict.FAIL
    assert "collapse" in twice.reasons[0]


def test_a_collapse_that_does_not_repeat_is_no_collapse():
    assert compare(RATE, boots(100, 101, 99), boots(40, 100)).verdict is Verdict.INCONCLUSIVE


def test_a_boot_that_produced_nothing_fails_at_once():
    found = compare(RATE, boots(100, 101, 99), boots(0))
    assert found.verdict is Verdict.FAIL
    assert "0" in found.seen


def test_no_baseline_is_its_own_verdict_and_never_a_pass():
    assert compare(RATE, [], boots(100, 100, 100)).verdict is Verdict.NO_BASELINE


def test_the_best_ever_floor_holds_without_a_baseline_too():
    # Each release 1 % slower than the last passes; together they do not.
    crept = compare(RATE, boots(90, 90.2, 89.8), boots(89, 89.2, 88.8), best_ever=100)
    assert crept.verdict is Verdict.FAIL
    assert "best ever" in crept.seen
    assert compare(RATE, [], boots(89, 89.2), best_ever=100).verdict is Verdict.FAIL
    assert compare(RATE, boots(95, 95, 95), boots(94, 94, 94), best_ever=100).verdict is Verdict.PASS
    assert compare(TIME, [], boots(12, 12), best_ever=10).verdict is Verdict.FAIL


def test_a_broken_precondition_keeps_any_number_from_meaning_anything():
    conditions = Preconditions(broken=("client-bound at c=32",))
    for candidate in (boots(100, 100, 100), boots(10, 10, 10)):
        found = compare(RATE, boots(100, 100, 100), candidate, preconditions=conditions)
        assert found.verdict is Verdict.INCONCLUSIVE
        assert found.reasons == ("client-bound at c=32",)


def test_the_margin_grows_with_the_hosts_spread_and_not_without_end():
    noisy = Preconditions(aa_cv=0.04)
    assert compare(RATE, boots(100, 100, 100), boots(94, 94, 94), preconditions=noisy).margin == pytest.approx(
        0.08
    )
    steady = Preconditions(aa_cv=0.001)
    assert compare(RATE, boots(100, 100, 100), boots(94, 94, 94), preconditions=steady).margin == RATE.margin
    hopeless = compare(RATE, boots(100, 100, 100), boots(60, 60, 60), preconditions=Preconditions(aa_cv=0.2))
    assert hopeless.verdict is Verdict.INCONCLUSIVE
    assert "A/A" in hopeless.reasons[0]


def test_boots_that_differ_by_more_than_the_margin_decide_nothing():
    found = compare(RATE, boots(81, 80, 82, 24), boots(60, 61, 60, 59))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert any("baseline's own boots differ" in reason for reason in found.reasons)


def test_stored_boots_need_a_fresh_one_beside_them():
    stored = boots(100, 101, 99, fresh=False)
    alone = compare(RATE, stored, boots(99, 100, 101))
    assert alone.verdict is Verdict.INCONCLUSIVE
    assert "today" in alone.reasons[0]
    joined = compare(RATE, [*stored, Boot(boot_id="today", value=100)], boots(99, 100, 101))
    assert joined.verdict is Verdict.PASS


def test_another_day_widens_the_interval():
    fresh = compare(RATE, boots(100, 101, 99, 100), boots(99, 100, 101))
    mixed = compare(RATE, [*boots(103, 104, 102, fresh=False), *boots(97)], boots(99, 100, 101))
    assert fresh.low is not None
    assert mixed.low is not None
    assert mixed.low < fresh.low


def test_inconclusive_asks_for_boots_up_to_five():
    three = compare(RATE, boots(100, 97, 103), boots(97, 94, 100))
    assert three.verdict is Verdict.INCONCLUSIVE
    assert three.more_boots == 2
    five = compare(RATE, boots(100, 97, 103, 97, 103), boots(97, 94, 100, 94, 100))
    assert five.verdict is Verdict.INCONCLUSIVE
    assert five.more_boots == 0


def test_senseless_input_is_refused():
    with pytest.raises(InputError, match="no boot"):
        compare(RATE, boots(100), [])
    with pytest.raises(InputError, match="baseline of 0"):
        compare(RATE, boots(0), boots(100))
    for value in (-1.0, math.nan, math.inf):
        with pytest.raises(ValidationError):
            Boot(boot_id="x", value=value)


def test_a_comparison_becomes_a_check_of_the_gate():
    check = compare(RATE, boots(100, 101, 99), boots(80, 81, 79)).as_check(RATE)
    assert (check.name, check.verdict, check.threshold) == (RATE.name, Verdict.FAIL, -RATE.margin)
    assert check.value == pytest.approx(-0.2, abs=0.01)
