"""What power, utilisation and token counters say together. A busy GPU that stays cold does no work.

Utilisation means that a kernel is resident, not that it gets anywhere: ranks that spin in a barrier show 100 %.
Energy per token and power tell the difference. Pure rules; who samples is elsewhere.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from tooling.gates.limits import default_limits
from tooling.gates.records import Check, Verdict
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.gates.limits import PowerLimits


class GpuSample(Record):
    """One look at one GPU.

    Attributes:
        at_s: Monotonic time, seconds.
        gpu: Index.
        utilization_percent: Share of time with a kernel resident.
        power_w: Board power, watts; None where the driver does not tell.
        limit_w: Enforced power limit, watts; None where the driver does not tell.
        temperature_c: Degrees Celsius.
        throttle: Names of active throttle reasons other than idle and the configured power cap.
    """

    at_s: float
    gpu: int
    utilization_percent: float
    power_w: float | None = None
    limit_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()


class GpuLoad(Record):
    """All samples of one GPU over a steady window.

    Attributes:
        gpu: Index.
        samples: How many.
        utilization_percent: Mean.
        power_w: Mean, None when unknown.
        limit_w: Power limit, None when unknown.
        cooling_c: First minus last temperature, positive while cooling down.
        throttle: Every throttle reason seen.
    """

    gpu: int
    samples: int
    utilization_percent: float
    power_w: float | None
    limit_w: float | None
    cooling_c: float = 0.0
    throttle: tuple[str, ...] = ()


def summarise_gpus(samples: Sequence[GpuSample]) -> tuple[GpuLoad, ...]:
    """One record a GPU; empty when nothing was sampled."""
    loads = []
    for gpu in sorted({sample.gpu for sample in samples}):
        own = [sample for sample in samples if sample.gpu == gpu]
        watts = [sample.power_w for sample in own if sample.power_w is not None]
        limits = [sample.limit_w for sample in own if sample.limit_w is not None]
        heat = [sample.temperature_c for sample in own if sample.temperature_c is not None]
        loads.append(
            GpuLoad(
                gpu=gpu,
                samples=len(own),
                utilization_percent=statistics.fmean(sample.utilization_percent for sample in own),
                power_w=statistics.fmean(watts) if watts else None,
                limit_w=min(limits) if limits else None,
                cooling_c=heat[0] - heat[-1] if heat else 0.0,
                throttle=tuple(sorted({reason for sample in own for reason in sample.throttle})),
            )
        )
    return tuple(loads)


def _is_cold(load: GpuLoad, healthy_w: float | None, limits: PowerLimits) -> bool | None:
    """Whether its power is near idle; None when there is nothing to compare with."""
    if load.power_w is None or (healthy_w is None and load.limit_w is None):
        return None
    if healthy_w is not None and load.power_w < limits.cold_share_of_healthy * healthy_w:
        return True
    return load.limit_w is not None and load.power_w < limits.cold_share_of_limit * load.limit_w


def judge_power(
    loads: Sequence[GpuLoad],
    concurrency: int,
    *,
    healthy_w: float | None = None,
    limits: PowerLimits | None = None,
) -> Check:
    """Busy and cold at a real load: spinning, whatever the token rate says.

    Args:
        loads: The GPUs of the engine over the steady window.
        concurrency: Requests in flight during that window.
        healthy_w: Mean power of a GPU in a healthy run of the same load, watts.
        limits: Thresholds.
    """
    bounds = limits or default_limits().power
    name = "power"
    if not loads or any(load.samples < bounds.min_samples for load in loads):
        return Check(name=name, verdict=Verdict.INCONCLUSIVE, seen="too few power samples to judge")
    described = tuple(_describe(load) for load in loads)
    reasons = sorted({reason for load in loads for reason in load.throttle})
    states = [_is_cold(load, healthy_w, bounds) for load in loads]
    spinning = [
        load for load, cold in zip(loads, states, strict=True)
        if cold and load.utilization_percent >= bounds.busy_percent
    ]  # fmt: skip
    if spinning and concurrency >= bounds.min_concurrency:
        return Check(
            name=name,
            verdict=Verdict.FAIL,
            seen=f"spin-wait suspected: {len(spinning)} of {len(loads)} GPUs busy and cold at c={concurrency}",
            details=(*described, "utilisation means a kernel is resident, not that work is done"),
        )
    if reasons:
        return Check(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            seen=f"the GPUs were throttled: {', '.join(reasons)}",
            details=described,
        )
    if all(cold is None for cold in states):
        return Check(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            seen="this driver reports no power, or no limit to hold it against",
            details=described,
        )
    return Check(name=name, verdict=Verdict.PASS, seen="power fits the load", details=described)


def _describe(load: GpuLoad) -> str:
    watts = "power unknown" if load.power_w is None else f"{load.power_w:.0f} W"
    limit = "" if load.limit_w is None else f" of {load.limit_w:.0f} W"
    cooling = f", cooled by {load.cooling_c:.0f} degrees" if load.cooling_c > 0 else ""
    return f"GPU {load.gpu}: {load.utilization_percent:.0f} % busy, {watts}{limit}{cooling}"


def judge_idle(loads: Sequence[GpuLoad], limits: PowerLimits | None = None) -> Check:
    """Before a run every GPU has to be free: a hung kernel of an earlier process keeps one at 100 %."""
    bounds = limits or default_limits().power
    busy = [load for load in loads if load.utilization_percent >= bounds.idle_percent]
    if not loads:
        return Check(name="gpus-idle-before", verdict=Verdict.INCONCLUSIVE, seen="no GPU was sampled")
    if busy:
        return Check(
            name="gpus-idle-before",
            verdict=Verdict.INCONCLUSIVE,
            seen=f"{len(busy)} of {len(loads)} GPUs are busy before the run: wedged or shared",
            details=tuple(_describe(load) for load in busy),
        )
    return Check(name="gpus-idle-before", verdict=Verdict.PASS, seen=f"all {len(loads)} GPUs are idle")


def judge_energy(
    joules: float, tokens: int, baseline_j_per_token: float | None, limits: PowerLimits | None = None
) -> Check:
    """Joules per generated token against the baseline's.

    Args:
        joules: Energy of all GPUs over the window.
        tokens: Tokens generated in it.
        baseline_j_per_token: The baseline's figure, None when there is none.
        limits: Thresholds.
    """
    bounds = limits or default_limits().power
    if tokens <= 0:
        return Check(
            name="energy", verdict=Verdict.FAIL, seen=f"{joules:.0f} J and not one token", unit="J/token"
        )
    value = joules / tokens
    if baseline_j_per_token is None:
        return Check(
            name="energy", verdict=Verdict.NO_BASELINE, seen=f"{value:.3g} J/token", value=value, unit="J/token"
        )
    threshold = bounds.energy_ratio * baseline_j_per_token
    ratio = value / baseline_j_per_token
    return Check(
        name="energy",
        verdict=Verdict.FAIL if value > threshold else Verdict.PASS,
        seen=f"{value:.3g} J/token, {ratio:.2f} times the baseline's {baseline_j_per_token:.3g}",
        value=value,
        unit="J/token",
        threshold=threshold,
    )


class StallEvidence(Record):
    """What was seen while no token came.

    Attributes:
        duration_s: How long.
        tokens: Tokens generated meanwhile, by the server's own counter; None when it has none.
        running: Requests that the server says it runs; None when it does not tell.
        loads: The GPUs meanwhile; empty when not sampled.
        healthy_w: Mean power of a GPU at a healthy load, watts; None when unknown.
    """

    duration_s: float
    tokens: float | None
    running: float | None
    loads: tuple[GpuLoad, ...] = ()
    healthy_w: float | None = None


def judge_stall(evidence: StallEvidence, limits: PowerLimits | None = None) -> Check:
    """Name a stall: deadlock, long prefill, or nothing to run.

    Three signals together make a deadlock: the token counter stands still, requests are running, and power is
    near idle. A frozen counter alone also fits a long prefill, which draws normal power.
    """
    bounds = limits or default_limits().power
    name = "progress"
    details = tuple(_describe(load) for load in evidence.loads)
    span = f"{evidence.duration_s:.0f} s"
    if evidence.tokens:
        return Check(
            name=name, verdict=Verdict.PASS, seen=f"{evidence.tokens:.0f} tokens in {span}", details=details
        )
    if evidence.tokens is None:
        return Check(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            seen=f"the server has no token counter, so {span} of silence cannot be named",
            details=details,
        )
    if evidence.running == 0:
        return Check(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            seen=f"no token in {span}, and the server runs no request: they never reached the engine",
            details=details,
        )
    states = [_is_cold_while_stalled(load, evidence.healthy_w, bounds) for load in evidence.loads]
    running = "requests" if evidence.running is None else f"{evidence.running:.0f} requests"
    if states and all(states):
        busy = any(load.utilization_percent >= bounds.busy_percent for load in evidence.loads)
        why = "a spin-waiting kernel is resident" if busy else "nothing runs on the GPUs"
        return Check(
            name=name,
            verdict=Verdict.FAIL,
            seen=f"deadlocked engine: {running} running, no token in {span}, GPUs near idle power",
            details=(*details, f"{why}; a long prefill would draw normal power; /health says nothing about it"),
        )
    if any(state is False for state in states):
        return Check(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            seen=f"no token in {span} with {running} running, at normal power: a long prefill or a compilation",
            details=details,
        )
    return Check(
        name=name,
        verdict=Verdict.FAIL,
        seen=f"the server stands still: {running} running and no token in {span}",
        details=(*details, "without power samples a deadlock cannot be told from a very long prefill"),
    )


def _is_cold_while_stalled(load: GpuLoad, healthy_w: float | None, limits: PowerLimits) -> bool | None:
    """As `_is_cold`; where nothing says what power is normal, a board that cools down does not work."""
    cold = _is_cold(load, healthy_w, limits)
    return True if cold is None and load.cooling_c >= limits.cooling_c else cold
