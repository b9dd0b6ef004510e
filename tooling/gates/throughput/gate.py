"""The throughput gate: load a server, hold the numbers against everything else that knows, give one verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.gates.baselines import find_baseline
from tooling.gates.host import host_fingerprint
from tooling.gates.limits import default_limits
from tooling.gates.power import judge_energy, judge_idle, judge_power
from tooling.gates.records import Check, GateResult, Verdict, worst
from tooling.gates.throughput import checks
from tooling.gates.throughput.counters import fetch_counters, wants_fresh_connections
from tooling.gates.throughput.load import LoadClient, fallback_client, load_client
from tooling.gates.throughput.measure import Session, idle_gpus, measure, request_headers, served_model
from tooling.gates.throughput.plan import (
    ClientKind,
    Endpoint,
    Route,
    Throughput,
    ThroughputPlan,
    UsageStyle,
)
from tooling.gates.throughput.regression import baseline_pins, judge_regression
from tooling.gates.throughput.sampling import gpu_reader
from tooling.gates.throughput.usage import ask_usage_style, compiled_client_reads
from tooling.records import now, sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tooling.gates.verdict import Boot

GATE = "throughput"


def run_throughput(
    endpoint: Endpoint,
    plan: ThroughputPlan,
    *,
    baselines: Path | None = None,
    pins: Mapping[str, str] | None = None,
    fresh_baseline: Mapping[str, Sequence[Boot]] | None = None,
    earlier_boots: Mapping[str, Sequence[Boot]] | None = None,
    boot_id: str = "",
    healthy_w: float | None = None,
    baseline_j_per_token: float | None = None,
    say: Callable[[str], None] = lambda _message: None,
) -> tuple[GateResult, Throughput]:
    """Load a running server and judge what came back.

    Args:
        endpoint: The server.
        plan: The load.
        baselines: Folder of baseline files; None compares with nothing and gives NO_BASELINE.
        pins: What only the caller knows and must be equal: driver, model digest, engine arguments, ...
        fresh_baseline: Boots of the baseline made in this session, by metric name.
        earlier_boots: Earlier boots of the same candidate in this session, by metric name.
        boot_id: Which boot of the candidate this is (container id).
        healthy_w: Mean power of one GPU at a healthy load, watts.
        baseline_j_per_token: Energy per token of the baseline.
        say: Told what happens.

    Returns:
        The gate's result and everything that was measured.

    Raises:
        InputError: The server cannot be reached or serves no model.
        NoCompiledClientError: The plan insists on a client that cannot run here.
    """
    started = now()
    headers = request_headers(endpoint)
    chosen = endpoint.model_copy(
        update={"url": endpoint.url.rstrip("/"), "model": endpoint.model or served_model(endpoint, headers)}
    )
    usage = ask_usage_style(chosen, headers)
    counters = fetch_counters(chosen.url, headers)
    if counters and wants_fresh_connections(counters.engine):
        headers["Connection"] = "close"
    client = _choose_client(
        plan, usage, chosen.route, counted=bool(counters and counters.generated is not None)
    )
    session = Session(chosen, plan, client, headers, gpu_reader(), healthy_w, say)
    limitations = [client.limitation] if client.limitation else []
    if session.gpus is None:
        limitations.append("no GPU was sampled on this host: power and energy are not judged")
    idle = idle_gpus(session.gpus)
    measured = Throughput(
        model=chosen.model,
        engine=counters.engine if counters else "",
        client=client.build,
        plan=plan,
        usage=usage,
        tokens_assumed=client.is_compiled and not compiled_client_reads(usage, chosen.route),
        idle=idle,
    )
    measured = measure(session, measured)
    found = _checks(session, measured, limitations)
    found += _energy(measured, baseline_j_per_token)
    lookup = None
    if baselines is not None:
        lookup = find_baseline(baselines, host_fingerprint(), measured.model, baseline_pins(measured, pins))
    # Energy without a baseline to hold it against says nothing against the numbers.
    fine = {Verdict.PASS, Verdict.NO_BASELINE}
    broken = tuple(f"{check.name} is {check.verdict}" for check in found if check.verdict not in fine)
    found += judge_regression(
        measured,
        broken=broken,
        boot_id=boot_id or session.nonce,
        baseline=lookup,
        fresh_baseline=fresh_baseline or {},
        earlier_boots=earlier_boots or {},
    )
    result = GateResult(
        gate=GATE,
        verdict=worst(check.verdict for check in found),
        checks=tuple(found),
        limitations=tuple(limitations),
        configuration_sha256=sha256_of({"plan": sha256_of(plan), "limits": sha256_of(default_limits())}),
        started=started,
        ended=now(),
    )
    return result, measured


def _choose_client(plan: ThroughputPlan, usage: UsageStyle, route: Route, *, counted: bool) -> LoadClient:
    """The client that can really count this server's tokens.

    The compiled one takes the requested length for granted where it cannot read usage. The server's own counter
    may confirm that; with neither, the fallback reads every style.
    """
    if plan.client is ClientKind.AUTO and not counted and not compiled_client_reads(usage, route):
        return fallback_client(
            "measured with the fallback client: the compiled one cannot read this server's usage"
        )
    return load_client(plan.client)


def _checks(session: Session, measured: Throughput, limitations: list[str]) -> list[Check]:
    plan = session.plan
    everything = [*measured.windows, *([measured.open_loop] if measured.open_loop else [])]
    found = [session.interrupted] if session.interrupted else []
    found += [
        checks.judge_completed(everything),
        checks.judge_content(everything),
        checks.judge_length(everything, plan.output_tokens),
        checks.judge_freeze(everything, plan.freeze_ms),
    ]
    counter = checks.judge_counter(everything, required=plan.require_counter or measured.tokens_assumed)
    cold = checks.judge_cold(everything)
    if measured.tokens_assumed:
        limitations.append("answers' lengths are known only in total, from the server's counter")
    if counter is None:
        limitations.append("the server has no token counter: nothing confirms the client's tokens")
    if cold is None:
        limitations.append("the server does not count prefix-cache hits: prompts were unique, no more is known")
    found += [check for check in (counter, cold) if check]
    found += [
        check for check in (checks.judge_windows(measured.at(level)) for level in plan.concurrencies) if check
    ]
    if plan.calibrate:
        found.append(checks.judge_calibration(measured.calibrations))
    else:
        limitations.append("the load client was not calibrated on this host")
    if measured.idle:
        found.append(judge_idle(measured.idle))
    loaded = [window for window in measured.at(plan.concurrencies[-1]) if window.gpus]
    found += [
        judge_power(window.gpus, window.concurrency, healthy_w=session.healthy_w) for window in loaded[-1:]
    ]
    return found


def _energy(measured: Throughput, baseline_j_per_token: float | None) -> list[Check]:
    """Energy per token over all windows of the highest level, where it was measured."""
    windows = measured.at(measured.plan.concurrencies[-1])
    readings = [window.energy_j for window in windows if window.energy_j is not None]
    if not readings or len(readings) != len(windows):
        return []
    return [judge_energy(sum(readings), sum(window.output_tokens for window in windows), baseline_j_per_token)]
