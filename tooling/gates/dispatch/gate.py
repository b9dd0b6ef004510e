"""The gate `dispatch`: requested features against the kernels of a trace taken under load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.gates.records import Check, Evidence, GateResult, Verdict, worst
from tooling.records import now, sha256_of
from tooling.triage.features import FeatureState, feature_table, kernel_patterns, load_features

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    from tooling.gates.dispatch.trace import Trace
    from tooling.triage.features import FeatureRow
    from tooling.triage.records import TriageReport

GATE = "dispatch"
#: Kernels that the record shows, longest first.
_SHOWN = 12
_NAME_CHARS = 100
_VERDICTS = {
    FeatureState.ACTIVE: Verdict.PASS,
    FeatureState.DISABLED: Verdict.FAIL,
    # Nobody knows which kernels it has: the trace can neither prove nor refute it.
    FeatureState.UNKNOWN: Verdict.INCONCLUSIVE,
}


def dispatch_gate(
    trace: Trace,
    *,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    server_info: Mapping[str, Any] | None = None,
    report: TriageReport | None = None,
    also: Collection[str] = (),
    allowed: Collection[str] = (),
    started: str,
    evidence: Sequence[Evidence] = (),
) -> GateResult:
    """Judge a trace.

    Args:
        trace: Kernels that ran while the engine answered requests.
        arguments: Serve arguments.
        environment: Variables of the run.
        server_info: The engine's report on itself.
        report: Triage of its log.
        also: Features that the stack requires without an argument.
        allowed: Features that may be inactive.
        started: Start of the profile, ISO 8601.
        evidence: The traces.
    """
    rows = feature_table(
        arguments=arguments,
        environment=environment,
        server_info=server_info,
        report=report,
        kernels=trace.names,
        also=also,
        allowed=allowed,
    )
    provable = [row for row in rows if kernel_patterns(row.feature, row.value)]
    checks = [_ran(trace), *(_feature(row) for row in provable)]
    if not provable:
        checks.append(
            Check(
                name="dispatch-features",
                verdict=Verdict.INCONCLUSIVE,
                seen="no kernel names are known of what was requested, so the trace proves nothing",
            )
        )
    unproved = sorted({row.feature for row in rows} - {row.feature for row in provable})
    limitations = [f"no kernel names are known for {', '.join(unproved)}"] if unproved else []
    return GateResult(
        gate=GATE,
        verdict=worst(check.verdict for check in checks),
        checks=tuple(checks),
        limitations=tuple(limitations),
        configuration_sha256=sha256_of([feature.model_dump(mode="json") for feature in load_features()]),
        started=started,
        ended=now(),
        evidence=tuple(evidence),
    )


def _ran(trace: Trace) -> Check:
    total = sum(kernel.time_us for kernel in trace.kernels)
    if not trace.launches:
        return Check(
            name="kernels-ran",
            verdict=Verdict.FAIL,
            seen=f"no kernel in {trace.files} trace(s): nothing ran on a GPU, or the profiler saw nothing",
            value=0,
            unit="launches",
            details=("did requests run while it profiled, and may this process use CUPTI?",),
        )
    lines = tuple(
        f"{kernel.launches} x {kernel.name[:_NAME_CHARS]}, {kernel.time_us / total:.1%}"
        if total
        else f"{kernel.launches} x {kernel.name[:_NAME_CHARS]}"
        for kernel in trace.kernels[:_SHOWN]
    )
    return Check(
        name="kernels-ran",
        verdict=Verdict.PASS,
        seen=f"{trace.launches} launches of {len(trace.kernels)} kernels in {total / 1000:.1f} ms",
        value=trace.launches,
        unit="launches",
        details=lines,
    )


def _feature(row: FeatureRow) -> Check:
    fine = row.allowed and row.state is not FeatureState.ACTIVE
    permitted = ", which the stack allows" if fine else ""
    return Check(
        name=f"dispatch-{row.feature}",
        verdict=Verdict.PASS if fine else _VERDICTS[row.state],
        seen=f"{row.state}{permitted}: {row.reason} (asked for by {row.requested})",
    )
