"""The two numbers of a boot that are gated, and the regression rule applied to them."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from tooling.errors import InputError
from tooling.gates.baselines import Match, MetricBaseline, record_baseline
from tooling.gates.host import host_fingerprint
from tooling.gates.records import Check, Verdict, worst
from tooling.gates.throughput.checks import boot_value
from tooling.gates.verdict import Better, Boot, Metric, Preconditions, compare
from tooling.records import now, sha256_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tooling.gates.baselines import Lookup
    from tooling.gates.records import GateResult
    from tooling.gates.throughput.plan import Throughput, ThroughputPlan

#: Smallest losses that matter.
RATE_MARGIN = 0.05
TIME_MARGIN = 0.10


def gated_metrics(plan: ThroughputPlan) -> tuple[Metric, Metric]:
    """Output rate at the highest level, time per token at the lowest. Two, so that alpha needs no division."""
    low, top = plan.concurrencies[0], plan.concurrencies[-1]
    return (
        Metric(name=f"output-rate@c{top}", unit="tok/s", margin=RATE_MARGIN),
        Metric(name=f"time-per-token@c{low}", unit="ms", better=Better.LOWER, margin=TIME_MARGIN),
    )


def boot_of(measured: Throughput, boot_id: str) -> dict[str, Boot]:
    """The values of one boot by metric name; a metric that was not measured is left out."""
    low, top = measured.plan.concurrencies[0], measured.plan.concurrencies[-1]
    rate, time = gated_metrics(measured.plan)
    boots = {}
    if measured.at(top):
        boots[rate.name] = Boot(boot_id=boot_id, value=boot_value(measured.at(top)))
    times = [window.tpot_ms.p50 for window in measured.at(low) if window.tpot_ms.count]
    if times:
        boots[time.name] = Boot(boot_id=boot_id, value=statistics.median(times))
    return boots


def baseline_pins(measured: Throughput, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """What has to be equal before two runs may be compared.

    Args:
        measured: A run; gives the client's and the plan's hash, the engine and the kind of token count.
        more: What only the caller knows: driver, model digest, engine arguments, clocks policy.
    """
    return {
        "client": measured.client.sha256,
        "plan": sha256_of(measured.plan),
        "engine": measured.engine,
        "usage": measured.usage.value,
        **(more or {}),
    }


def judge_regression(
    measured: Throughput,
    *,
    broken: Sequence[str],
    boot_id: str,
    baseline: Lookup | None,
    fresh_baseline: Mapping[str, Sequence[Boot]],
    earlier_boots: Mapping[str, Sequence[Boot]],
) -> list[Check]:
    """One check a gated metric.

    Args:
        measured: This boot.
        broken: Preconditions that do not hold, one sentence each.
        boot_id: This boot.
        baseline: What was found on disk; None when nobody looked.
        fresh_baseline: Boots of the baseline from this session, by metric.
        earlier_boots: Earlier boots of the candidate in this session, by metric.
    """
    mine, found = boot_of(measured, boot_id), []
    aa_cv = baseline.baseline.aa_cv if baseline and baseline.baseline else None
    for metric in gated_metrics(measured.plan):
        if metric.name not in mine:
            found.append(
                Check(name=metric.name, verdict=Verdict.FAIL, seen="it was not measured", unit=metric.unit)
            )
            continue
        stored = baseline.boots_of(metric.name) if baseline else ()
        comparison = compare(
            metric,
            [*stored, *fresh_baseline.get(metric.name, ())],
            [*earlier_boots.get(metric.name, ()), mine[metric.name]],
            preconditions=Preconditions(broken=tuple(broken), aa_cv=aa_cv),
            best_ever=baseline.best_of(metric.name) if baseline else None,
        )
        check = comparison.as_check(metric)
        if check.verdict is Verdict.NO_BASELINE and baseline and baseline.match is not Match.FOUND:
            check = check.model_copy(
                update={
                    "seen": f"{check.seen}: {baseline.message}",
                    "details": (*check.details, *baseline.differences),
                }
            )
        found.append(check)
    return found


def judge_again(
    result: GateResult,
    measured: Throughput,
    *,
    boot_id: str,
    fresh_baseline: Mapping[str, Sequence[Boot]],
    earlier_boots: Mapping[str, Sequence[Boot]],
    broken: Sequence[str] = (),
) -> GateResult:
    """The same result with its regression checks made anew, now that boots of the baseline came after it.

    Args:
        result: The gate's result on the last boot of the candidate.
        measured: That boot.
        boot_id: Its id.
        fresh_baseline: Boots of the baseline from this session, by metric.
        earlier_boots: Earlier boots of the candidate in this session, by metric.
        broken: What makes the baseline's boots useless, one sentence each.
    """
    names = {metric.name for metric in gated_metrics(measured.plan)}
    others = [check for check in result.checks if check.name not in names]
    unsound = [f"{check.name} is {check.verdict}" for check in others if check.verdict is not Verdict.PASS]
    checks = others + judge_regression(
        measured,
        broken=[*unsound, *broken],
        boot_id=boot_id,
        baseline=None,
        fresh_baseline=fresh_baseline,
        earlier_boots=earlier_boots,
    )
    return result.model_copy(
        update={"checks": tuple(checks), "verdict": worst(check.verdict for check in checks), "ended": now()}
    )


def save_baseline(
    folder: Path,
    result: GateResult,
    measured: Throughput,
    *,
    pins: Mapping[str, str] | None = None,
    subject: str = "",
    boots: Mapping[str, Sequence[Boot]] | None = None,
) -> Path:
    """Record a run as the baseline of this host, model and pins.

    Args:
        folder: Where baselines lie.
        result: The gate's result on that run; only its regression checks may be other than PASS.
        measured: The run.
        pins: As given to `run_throughput`.
        subject: What was measured, e.g. an image digest.
        boots: All boots by metric name, when there were several; by default this run alone.

    Raises:
        InputError: The run itself was not sound.
    """
    metrics = gated_metrics(measured.plan)
    names = {metric.name for metric in metrics}
    unsound = [
        f"{check.name}: {check.seen}"
        for check in result.checks
        if check.name not in names and check.verdict not in {Verdict.PASS, Verdict.NO_BASELINE}
    ]
    if unsound:
        raise InputError("an unsound run cannot become a baseline", fix="see its checks", details=unsound)
    mine = boot_of(measured, result.started)
    values = boots or {name: (boot,) for name, boot in mine.items()}
    return record_baseline(
        folder,
        host_fingerprint(),
        measured.model,
        baseline_pins(measured, pins),
        [MetricBaseline(metric=metric, boots=tuple(values[metric.name])) for metric in metrics],
        subject=subject or measured.model,
    )
