"""Triage and the feature table as a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.gates.records import Check, Evidence, GateResult, Verdict, worst
from tooling.records import now, sha256_of
from tooling.triage.features import FeatureRow, FeatureState
from tooling.triage.records import Finding, Outcome, Role, TriageReport
from tooling.triage.signatures import load_signatures

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Warnings are told, and keep no release from existing.
_VERDICTS = {
    Outcome.OK: Verdict.PASS,
    Outcome.WARN: Verdict.PASS,
    Outcome.NOT_READY: Verdict.INCONCLUSIVE,
    Outcome.INCONCLUSIVE: Verdict.INCONCLUSIVE,
    Outcome.REFUSE: Verdict.FAIL,
    Outcome.FAIL: Verdict.FAIL,
}


def triage_gate(
    report: TriageReport,
    features: Sequence[FeatureRow],
    *,
    started: str,
    evidence: Sequence[Evidence] = (),
    limitations: Sequence[str] = (),
) -> GateResult:
    """The gate `log-triage`.

    Args:
        report: Triage of this boot's log, after the load of the other gates.
        features: Table of the requested features.
        started: Start of the reading, ISO 8601.
        evidence: The log.
        limitations: What the boot could not show, e.g. that it was a dry one.
    """
    log = Check(
        name="log",
        verdict=_VERDICTS[report.outcome],
        seen=f"{report.outcome}: {report.diagnosis}",
        value=report.lines_read,
        unit="lines",
        details=tuple(_line(finding) for finding in report.findings if _worth_telling(finding)),
    )
    checks = (log, *(_feature_check(row) for row in features))
    return GateResult(
        gate="log-triage",
        verdict=worst(check.verdict for check in checks),
        checks=checks,
        limitations=(*limitations, *report.notes, *_unknown_but_allowed(features)),
        configuration_sha256=configuration_sha256(),
        started=started,
        ended=now(),
        evidence=tuple(evidence),
    )


def configuration_sha256() -> str:
    """Hash of the signatures that a log is held against."""
    return sha256_of([signature.model_dump(mode="json") for signature in load_signatures()])


def _feature_check(row: FeatureRow) -> Check:
    fine = row.state is FeatureState.ACTIVE or row.allowed
    permitted = ", which the stack allows" if row.allowed and row.state is not FeatureState.ACTIVE else ""
    return Check(
        name=f"feature-{row.feature}",
        verdict=Verdict.PASS if fine else Verdict.FAIL,
        seen=f"{row.state}{permitted}: {row.reason} (asked for by {row.requested})",
    )


def _unknown_but_allowed(features: Sequence[FeatureRow]) -> tuple[str, ...]:
    return tuple(
        f"feature {row.feature} is {row.state.lower()}: {row.reason}"
        for row in features
        if row.allowed and row.state is not FeatureState.ACTIVE
    )


def _worth_telling(finding: Finding) -> bool:
    return finding.outcome is not Outcome.OK or finding.role is Role.EVIDENCE


def _line(finding: Finding) -> str:
    place = f"line {finding.first_line}, {finding.count}x"
    return f"{finding.outcome} {finding.signature} ({place}): {finding.meaning}"
