"""Log triage: what the lines of one boot mean, which feature is really on, and the root cause of a failure."""

from tooling.triage.log import LogTriage, triage
from tooling.triage.records import Effect, Finding, Outcome, Role, TriageReport
from tooling.triage.signatures import Signature, load_signatures

__all__ = [
    "Effect",
    "Finding",
    "LogTriage",
    "Outcome",
    "Role",
    "Signature",
    "TriageReport",
    "load_signatures",
    "triage",
]
