"""The regression rule: is the candidate worse than the baseline, not worse, or can nobody say?

The unit is one boot (a fresh container): its value is the median over the windows measured in it. Windows of
one boot agree with each other far better than boots do; counting them as replicates would raise false alarms.

    d      = mean(log candidate) - mean(log baseline), its sign turned so that negative is worse
    se     = Welch's, no side's standard deviation below `SD_FLOOR`
    [l, u] = d -+ t(alpha, Welch-Satterthwaite df) * se
    FAIL   if u < 0 and exp(d) - 1 <= -margin        surely worse, and by enough
    PASS   if l > log(1 - margin)                    surely not worse than the margin
    else INCONCLUSIVE, and more boots may decide

Everything here is a pure function of records.
"""

from __future__ import annotations

import math
import statistics
from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic import Field

from tooling.errors import InputError
from tooling.gates.records import Check, Verdict
from tooling.gates.student import t_quantile
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

#: No side is trusted to be steadier than this (standard deviation of the logarithm): three boots that agree by
#: chance would otherwise make any difference significant.
SD_FLOOR = 0.005
#: Boots of a side before the rule decides at all, and when it gives up asking for more.
MIN_BOOTS = 3
MAX_BOOTS = 5
#: Below this share of the baseline a boot is a collapse: no statistics are needed, only a repetition.
COLLAPSE_RATIO = 0.5
COLLAPSE_BOOTS = 2
#: The margin grows with the host's own spread, up to this many times itself; a noisier host can decide nothing.
MARGIN_GROWTH = 2.0
#: Loss against the best value ever seen on this host: baselines that creep by 1 % a release end here.
BEST_EVER_LOSS = 0.10


class Better(StrEnum):
    """Which way a metric is good."""

    HIGHER = "higher"
    LOWER = "lower"


class Metric(Record):
    """A number that is gated.

    Attributes:
        name: E.g. `output-tokens-per-second@c32`.
        unit: E.g. `tok/s`.
        better: Which way is good.
        margin: Smallest loss that matters, as a fraction; 0.05 for throughput, 0.10 for times and energy.
    """

    name: str
    unit: str
    better: Better = Better.HIGHER
    margin: float = Field(default=0.05, gt=0, lt=1)


class Boot(Record):
    """The value of a metric in one boot.

    Attributes:
        boot_id: Which boot (container id).
        value: Median over its windows; 0 when nothing was produced.
        fresh: Measured in this session; False for a boot read from a stored baseline.
    """

    boot_id: str
    value: float = Field(ge=0, allow_inf_nan=False)
    fresh: bool = True


class Comparison(Record):
    """What the rule found for one metric.

    Attributes:
        verdict: The answer.
        seen: One sentence with the numbers.
        change: exp(d) - 1, the relative change of the candidate, negative is worse; None when not computed.
        low: Lower end of its one-sided confidence bound, relative.
        high: Upper end, relative.
        margin: The margin that was used, after the host's spread.
        more_boots: Boots of each side still worth making before giving up.
        reasons: What kept it from deciding, or what to look at.
    """

    verdict: Verdict
    seen: str
    change: float | None = None
    low: float | None = None
    high: float | None = None
    margin: float
    more_boots: int = 0
    reasons: tuple[str, ...] = ()

    def as_check(self, metric: Metric) -> Check:
        """The same as a check of a gate; its value is the relative change, its threshold the margin."""
        return Check(
            name=metric.name,
            verdict=self.verdict,
            seen=self.seen,
            value=self.change,
            unit="relative change",
            threshold=-self.margin,
            details=self.reasons,
        )


class Preconditions(Record):
    """What must hold before numbers may be compared.

    Attributes:
        broken: A sentence for each thing that does not hold (failed requests, client-bound, throttled, ...).
        aa_cv: Spread of this host when the same thing is booted again and again, coefficient of variation; None
            when the host never measured it.
    """

    broken: tuple[str, ...] = ()
    aa_cv: float | None = Field(default=None, ge=0)


def boot_order(boots_per_side: int) -> str:
    """The order of boots, A for baseline and B for candidate: `ABBA`, `ABBAAB`, ...

    Mirrored pairs cancel a drift of the host (heat, clocks) that A A B B would call a regression.
    """
    if boots_per_side < 1:
        raise InputError("a comparison needs at least one boot of each side")
    return "".join("AB" if pair % 2 == 0 else "BA" for pair in range(boots_per_side))


def compare(
    metric: Metric,
    baseline: Sequence[Boot],
    candidate: Sequence[Boot],
    *,
    preconditions: Preconditions | None = None,
    best_ever: float | None = None,
    alpha: float = 0.05,
) -> Comparison:
    """Judge one metric; see the head of this module for the rule.

    Args:
        metric: What is compared.
        baseline: Boots of the baseline; none gives NO_BASELINE.
        candidate: Boots of the candidate.
        preconditions: What was found about the run.
        best_ever: Best value ever recorded on this host for this model.
        alpha: One-sided error rate of each bound; divide it by their number if more than two metrics are gated.

    Raises:
        InputError: There is no boot of the candidate, or a baseline boot is 0.
    """
    conditions = preconditions or Preconditions()
    if not candidate:
        raise InputError(f"{metric.name}: no boot of the candidate was measured", fix="measure one first")
    if any(boot.value <= 0 for boot in baseline):
        raise InputError(f"{metric.name}: a baseline of 0 compares with nothing", fix="record it again")
    margin, noise = _margin(metric, conditions)
    broken = (*conditions.broken, *noise)
    if broken:
        return Comparison(
            verdict=Verdict.INCONCLUSIVE, seen="a precondition does not hold", margin=margin, reasons=broken
        )
    special = _nothing_produced(metric, candidate, margin) or _below_best_ever(metric, candidate, best_ever)
    if special:
        return special
    if not baseline:
        value = statistics.median(boot.value for boot in candidate)
        return Comparison(
            verdict=Verdict.NO_BASELINE,
            seen=f"{value:.4g} {metric.unit}, and nothing to hold it against",
            margin=margin,
            reasons=("record this run as the baseline of this host, model and pins",),
        )
    return _collapse(metric, baseline, candidate, margin) or _by_confidence(
        metric, baseline, candidate, margin, alpha
    )


def _margin(metric: Metric, conditions: Preconditions) -> tuple[float, tuple[str, ...]]:
    """The margin, raised to twice the host's own spread, and the complaint when that is too much."""
    if conditions.aa_cv is None:
        return metric.margin, ()
    wanted, most = 2 * conditions.aa_cv, MARGIN_GROWTH * metric.margin
    if wanted > most:
        complaint = (
            f"this host repeats {metric.name} only within {conditions.aa_cv:.1%} (A/A); "
            f"a margin of {metric.margin:.0%} needs {most / 2:.1%} or better"
        )
        return metric.margin, (complaint,)
    return max(metric.margin, wanted), ()


def _gain(metric: Metric, value: float, reference: float) -> float:
    """Log ratio of two values, negative when `value` is the worse one."""
    ratio = math.log(value / reference)
    return ratio if metric.better is Better.HIGHER else -ratio


def _nothing_produced(metric: Metric, candidate: Sequence[Boot], margin: float) -> Comparison | None:
    empty = [boot.boot_id for boot in candidate if boot.value == 0]
    if not empty:
        return None
    return Comparison(
        verdict=Verdict.FAIL,
        seen=f"{len(empty)} of {len(candidate)} boots of the candidate have {metric.name} of 0",
        margin=margin,
        reasons=tuple(f"boot {boot}" for boot in empty),
    )


def _below_best_ever(metric: Metric, candidate: Sequence[Boot], best_ever: float | None) -> Comparison | None:
    """The absolute floor, which holds also where the baseline crept down or does not exist."""
    if best_ever is None or best_ever <= 0 or len(candidate) < COLLAPSE_BOOTS:
        return None
    gain = statistics.fmean(_gain(metric, boot.value, best_ever) for boot in candidate)
    if gain > math.log1p(-BEST_EVER_LOSS):
        return None
    return Comparison(
        verdict=Verdict.FAIL,
        seen=f"{math.expm1(gain):+.1%} against the best ever on this host, {best_ever:.4g} {metric.unit}",
        change=math.expm1(gain),
        margin=BEST_EVER_LOSS,
        reasons=(f"more than {BEST_EVER_LOSS:.0%} below the best ever, whatever the last baseline was",),
    )


def _collapse(
    metric: Metric, baseline: Sequence[Boot], candidate: Sequence[Boot], margin: float
) -> Comparison | None:
    """Less than half of the baseline, twice: no more boots are needed to know."""
    reference = statistics.median(boot.value for boot in baseline)
    gains = [_gain(metric, boot.value, reference) for boot in candidate]
    if len(candidate) < COLLAPSE_BOOTS or max(gains) >= math.log(COLLAPSE_RATIO):
        return None
    change = math.expm1(statistics.fmean(gains))
    return Comparison(
        verdict=Verdict.FAIL,
        seen=f"{change:+.0%} against the baseline's {reference:.4g} {metric.unit} in all {len(gains)} boots",
        change=change,
        margin=margin,
        reasons=(f"collapse: below {COLLAPSE_RATIO:.0%} of the baseline, and repeated",),
    )


def _by_confidence(
    metric: Metric, baseline: Sequence[Boot], candidate: Sequence[Boot], margin: float, alpha: float
) -> Comparison:
    reference = statistics.fmean(math.log(boot.value) for boot in baseline)
    old = [_gain(metric, boot.value, math.exp(reference)) for boot in baseline]
    new = [_gain(metric, boot.value, math.exp(reference)) for boot in candidate]
    change = statistics.fmean(new)
    short = MIN_BOOTS - min(len(old), len(new))
    if short > 0:
        collapsed = max(new) < math.log(COLLAPSE_RATIO)
        return Comparison(
            verdict=Verdict.INCONCLUSIVE,
            seen=f"{math.expm1(change):+.1%} in {len(old)} against {len(new)} boots, too few to decide",
            change=math.expm1(change),
            margin=margin,
            more_boots=1 if collapsed else short,
            reasons=("looks like a collapse: repeat one boot to be sure",) if collapsed else (),
        )
    if not any(boot.fresh for boot in baseline):
        return Comparison(
            verdict=Verdict.INCONCLUSIVE,
            seen="every baseline boot is from another day",
            change=math.expm1(change),
            margin=margin,
            more_boots=1,
            reasons=("boot the baseline once on this host today",),
        )
    noisy = _noisy("baseline", old, metric.margin) + _noisy("candidate", new, metric.margin)
    half = _half_width(old, new, _day_variance(baseline, old), alpha)
    low, high = change - half, change + half
    if not noisy and high < 0 and math.expm1(change) <= -margin:
        verdict = Verdict.FAIL
    elif not noisy and low > math.log1p(-margin):
        verdict = Verdict.PASS
    else:
        verdict = Verdict.INCONCLUSIVE
    seen = (
        f"{math.expm1(change):+.1%} ({math.expm1(low):+.1%} to {math.expm1(high):+.1%}) "
        f"in {len(old)} against {len(new)} boots, margin {margin:.1%}"
    )
    more = max(0, MAX_BOOTS - min(len(old), len(new))) if verdict is Verdict.INCONCLUSIVE else 0
    return Comparison(
        verdict=verdict,
        seen=seen,
        change=math.expm1(change),
        low=math.expm1(low),
        high=math.expm1(high),
        margin=margin,
        more_boots=more,
        reasons=noisy,
    )


def _noisy(side: str, gains: Sequence[float], margin: float) -> tuple[str, ...]:
    """Boots of one side that differ by more than the margin itself decide nothing.

    The bound is twice the one on a host's long-run A/A spread (half the margin): the spread of three to five
    boots is itself uncertain by that much.
    """
    spread = statistics.stdev(gains)
    if spread <= margin:
        return ()
    return (f"the {side}'s own boots differ by {spread:.1%} (standard deviation), more than the margin",)


def _day_variance(baseline: Sequence[Boot], gains: Sequence[float]) -> float:
    """Variance added for stored boots: between days a host moves by at least the floor."""
    stored = [gain for boot, gain in zip(baseline, gains, strict=True) if not boot.fresh]
    if not stored:
        return 0.0
    fresh = [gain for boot, gain in zip(baseline, gains, strict=True) if boot.fresh]
    apart = statistics.fmean(fresh) - statistics.fmean(stored)
    return max(SD_FLOOR**2, apart**2 / 2)


def _half_width(old: Sequence[float], new: Sequence[float], day_variance: float, alpha: float) -> float:
    """Half the width of the confidence interval of the difference of two means, by Welch."""
    shares = [max(statistics.variance(side), SD_FLOOR**2) / len(side) for side in (old, new)]
    df = sum(shares) ** 2 / sum(
        share**2 / (len(side) - 1) for share, side in zip(shares, (old, new), strict=True)
    )
    return t_quantile(alpha, round(df, 2)) * math.sqrt(sum(shares) + day_variance)
