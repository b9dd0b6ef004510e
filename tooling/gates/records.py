"""What every gate returns: checks with the numbers they saw, one verdict, and what could not be checked."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable


class Verdict(StrEnum):
    """The answer of a check or a gate; everything but PASS keeps a release from existing."""

    PASS = "PASS"  # noqa: S105  # not a password
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_BASELINE = "NO_BASELINE"


#: The limitation of a result for which something only played the hardware: no policy lets it count.
SIMULATION = "simulation: true; a stand-in played the driver, and this qualifies nothing"

#: From worst to best: a gate is as good as its worst check.
_SEVERITY = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.NO_BASELINE, Verdict.PASS)


class Check(Record):
    """One thing that was looked at.

    Attributes:
        name: Stable identifier, e.g. `logprobs-finite`.
        verdict: What it means.
        seen: What was really seen, one sentence.
        value: The measured number, in `unit`.
        unit: Unit of value and threshold.
        threshold: The bound that the value was held against.
        details: Lines worth reading, e.g. the wrong answers.
    """

    name: str
    verdict: Verdict
    seen: str
    value: float | None = None
    unit: str = ""
    threshold: float | None = None
    details: tuple[str, ...] = ()


class Evidence(Record):
    """A raw file that a gate read or wrote, kept beside its record."""

    path: str
    sha256: str


class GateResult(Record):
    """The record of one gate on one boot (or one image).

    Attributes:
        gate: Name of the gate.
        verdict: The worst verdict of its checks; derived, never typed.
        checks: At least one: a gate that looked at nothing is no gate.
        limitations: What this run could not check, one sentence each.
        configuration_sha256: Hash of what the gate was told (questions, thresholds, concurrencies).
        started: ISO 8601, UTC.
        ended: ISO 8601, UTC.
        evidence: Raw files.
    """

    gate: str
    verdict: Verdict
    checks: tuple[Check, ...] = Field(min_length=1)
    limitations: tuple[str, ...] = ()
    configuration_sha256: str
    started: str
    ended: str
    evidence: tuple[Evidence, ...] = ()

    @model_validator(mode="after")
    def _verdict_is_the_worst(self) -> GateResult:
        if self.verdict is not worst(check.verdict for check in self.checks):
            raise ValueError(f"verdict {self.verdict} of gate {self.gate} is not the worst of its checks")
        return self


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of some verdicts; of none it is FAIL, since nothing was checked."""
    found = set(verdicts)
    return next((verdict for verdict in _SEVERITY if verdict in found), Verdict.FAIL)
