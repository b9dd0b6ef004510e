"""Do repeated measurements agree, and if not, is one of them the odd one out?"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from tooling.errors import InputError
from tooling.gates.records import Check, Verdict
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

#: One run is "the outlier" when it is this many standard deviations of the others away from their mean.
OUTLIER_DEVIATIONS = 6.0
#: Fewer runs than this have no outlier: of two that differ, either may be the wrong one.
OUTLIER_MIN_RUNS = 3


class Summary(Record):
    """Several runs of one metric in brief.

    Attributes:
        metric: Name of the metric.
        unit: Its unit.
        runs: How many runs, at least 2.
        mean: Arithmetic mean.
        std: Sample standard deviation (n - 1).
        low: Smallest value.
        high: Largest value.
        extreme_run: Position of the run farthest from the mean, from 0, when the single values are known.
    """

    metric: str
    unit: str = ""
    runs: int = Field(ge=2)
    mean: float
    std: float = Field(ge=0)
    low: float
    high: float
    extreme_run: int | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Summary:
        if not self.low <= self.mean <= self.high:
            raise ValueError(f"{self.metric}: mean {self.mean} is not between {self.low} and {self.high}")
        return self

    @property
    def cv(self) -> float:
        """Coefficient of variation, std / mean."""
        return self.std / abs(self.mean) if self.mean else math.inf

    @property
    def extreme(self) -> float:
        """The value farthest from the mean."""
        return self.low if self.mean - self.low > self.high - self.mean else self.high

    def without_extreme(self) -> tuple[float, float]:
        """Mean and sample standard deviation of the other runs.

        From the sums alone: leaving out x takes (x - mean)^2 * n / (n - 1) from the sum of squared deviations.
        Printed figures are rounded, so a slightly negative rest counts as 0.
        """
        n, off = self.runs, self.extreme - self.mean
        mean = self.mean - off / (n - 1)
        if n < OUTLIER_MIN_RUNS:
            return mean, 0.0
        rest = self.std**2 * (n - 1) - off**2 * n / (n - 1)
        return mean, math.sqrt(max(rest, 0.0) / (n - 2))


def summarise(metric: str, values: Sequence[float], unit: str = "") -> Summary:
    """Summarise single values.

    Raises:
        InputError: There are fewer than two.
    """
    if len(values) < 2:  # noqa: PLR2004  # one value has no spread
        raise InputError(f"{metric}: {len(values)} run has no spread", fix="measure at least two windows")
    mean = statistics.fmean(values)
    extreme = max(range(len(values)), key=lambda index: abs(values[index] - mean))
    return Summary(
        metric=metric,
        unit=unit,
        runs=len(values),
        mean=min(max(mean, min(values)), max(values)),
        std=statistics.stdev(values),
        low=min(values),
        high=max(values),
        extreme_run=extreme,
    )


def judge_spread(summary: Summary, limit_cv: float, others: Sequence[Summary] = ()) -> Check:
    """Refuse a verdict on runs that disagree, and say which one is odd.

    Args:
        summary: The metric in question.
        limit_cv: Largest coefficient of variation at which its mean says anything.
        others: Other metrics of the same runs (decode rate, time to first token); they tell what kind of
            outlier it is.

    Returns:
        PASS or INCONCLUSIVE, never FAIL: noise is no regression.
    """
    cv = summary.cv
    seen = (
        f"{summary.runs} runs of {summary.metric} spread by {cv:.1%} around {summary.mean:.4g} {summary.unit}"
    )
    if cv <= limit_cv:
        return Check(
            name=f"spread:{summary.metric}",
            verdict=Verdict.PASS,
            seen=seen,
            value=cv,
            unit="cv",
            threshold=limit_cv,
        )
    return Check(
        name=f"spread:{summary.metric}",
        verdict=Verdict.INCONCLUSIVE,
        seen=f"{seen}: no verdict on such a mean",
        value=cv,
        unit="cv",
        threshold=limit_cv,
        details=tuple(_explain(summary, limit_cv, others)),
    )


def _number(value: float, summary: Summary) -> str:
    return f"{value:.4g} {summary.unit}".rstrip()


def _is_outlier(summary: Summary) -> bool:
    mean, std = summary.without_extreme()
    return summary.runs >= OUTLIER_MIN_RUNS and abs(summary.extreme - mean) > OUTLIER_DEVIATIONS * std


def _explain(summary: Summary, limit_cv: float, others: Sequence[Summary]) -> list[str]:
    lines = []
    if _is_outlier(summary):
        mean, std = summary.without_extreme()
        which = "one run" if summary.extreme_run is None else f"run {summary.extreme_run + 1}"
        lines.append(
            f"{which} is the outlier ({_number(summary.extreme, summary)}); "
            f"the other {summary.runs - 1} give {_number(mean, summary)} with a deviation of {std:.3g}"
        )
    for other in others:
        if other.cv <= limit_cv:
            lines.append(f"{other.metric} is steady at {_number(other.mean, other)} ({other.cv:.1%})")
        elif _is_outlier(other):
            rest, _ = other.without_extreme()
            lines.append(
                f"{other.metric} was {_number(other.extreme, other)} in one run, {rest:.4g} in the others"
            )
    if any("first" in other.metric or "ttft" in other.metric.lower() for other in others if _is_outlier(other)):
        lines.append("a single late first token is a cold prefill or a kernel compiled in that run")
    lines.append(
        "report decode rate and time to first token apart; run again after a warm-up of the same shape"
    )
    return lines
