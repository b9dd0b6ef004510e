"""From findings to one verdict: what is cause, what is consequence, what the engine got over."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.triage.records import Finding, Outcome, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.triage.signatures import Signature

_FATAL = (Outcome.FAIL, Outcome.REFUSE)
#: A process is announced dead at most this many lines before the traceback that tells why has ended.
_TRACEBACK_LINES = 120
#: An exception with no more lines than this after it was the last thing that the process did.
_LAST_WORDS = 3
#: How a process ended by SIGKILL is told: by Python, by a shell or Docker, in words.
_KILLED = re.compile(r"(?:exit )?(?:code|status):? (?:-9|137)\b|SIGKILL|signal:? 9\b|\bKilled\b")


@dataclass(frozen=True)
class Seen:
    """What a log showed of one boot; line numbers as in its findings."""

    findings: tuple[Finding, ...]
    lines: int
    last_line: int
    ready_at: int = 0
    died: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The verdict, with findings in the light of it."""

    outcome: Outcome
    diagnosis: str
    advice: str
    root: Finding | None
    findings: tuple[Finding, ...]


def diagnose(seen: Seen, signatures: Mapping[str, Signature]) -> Diagnosis:
    """Choose the root cause.

    A cause that fails the boot comes before one that only may; among equals the first line wins; a cause that
    another one explains is a consequence. Symptoms are named only when nothing explains them.
    """
    findings = tuple(_weighed(finding, seen, signatures) for finding in seen.findings)
    symptoms = [f for f in findings if f.role is Role.SYMPTOM and f.outcome in _FATAL]
    hard = [f for f in findings if f.role is Role.CAUSE and f.outcome in _FATAL]
    if not (symptoms or hard or seen.died or _ends_in_exception(findings, seen)):
        return _undamaged(findings, seen)
    root = _root(hard, findings, symptoms, seen, signatures)
    if root is not None:
        outcome = root.outcome if root.outcome is Outcome.REFUSE else Outcome.FAIL
        return Diagnosis(outcome, root.meaning, root.advice, root, findings)
    return _unexplained(findings, symptoms, seen)


def _weighed(finding: Finding, seen: Seen, signatures: Mapping[str, Signature]) -> Finding:
    """A failure that the engine got over (it got ready afterwards and nothing died) is a warning."""
    if finding.outcome not in _FATAL or not seen.ready_at or finding.last_line > seen.ready_at:
        return finding
    if not signatures[finding.signature].survives or finding.signature == "engine-restarted":
        return finding
    fatal_later = any(
        other.role is Role.SYMPTOM and other.outcome in _FATAL and other.last_line > seen.ready_at
        for other in seen.findings
    )
    if fatal_later or seen.died:
        return finding
    return finding.model_copy(update={"outcome": Outcome.WARN})


def _root(
    hard: list[Finding],
    findings: tuple[Finding, ...],
    symptoms: list[Finding],
    seen: Seen,
    signatures: Mapping[str, Signature],
) -> Finding | None:
    if hard:
        named = {
            name
            for finding in hard
            for name in signatures[finding.signature].explains
            if name not in ("*", finding.signature)
        }
        return next((f for f in hard if f.signature not in named), hard[0])
    latent = [f for f in findings if f.role is Role.CAUSE and f.outcome is Outcome.WARN]
    for wildcard in (False, True):
        for finding in latent:
            explains = signatures[finding.signature].explains
            if ("*" in explains) is not wildcard:
                continue
            follows = [
                s
                for s in symptoms
                if (wildcard or s.signature in explains)
                and s.last_line >= finding.first_line - _TRACEBACK_LINES
            ]
            last_words = finding.last_line >= seen.last_line - _LAST_WORDS
            if follows or (wildcard and (seen.died or last_words)):
                return finding
    return None


def _ends_in_exception(findings: tuple[Finding, ...], seen: Seen) -> bool:
    return any(
        finding.signature in ("unrecognised-exception", "python-module-missing")
        and finding.last_line >= seen.last_line - _LAST_WORDS
        and finding.last_line > seen.ready_at
        for finding in findings
    )


def _unexplained(findings: tuple[Finding, ...], symptoms: list[Finding], seen: Seen) -> Diagnosis:
    said = [f"the process ended ({seen.died})"] if seen.died else []
    said += [finding.meaning.rstrip(".") for finding in symptoms]
    if not symptoms:
        said.append("its log does not say why")
    advice = next((finding.advice for finding in symptoms if finding.advice), "")
    if _KILLED.search(seen.died) and not symptoms:
        # No line can come from a process that SIGKILL ends: the silence is the finding.
        advice = (
            "SIGKILL leaves no line. Look for the out-of-memory killer in dmesg and at the container's memory "
            "limit, then for whoever else ends processes there."
        )
    return Diagnosis(
        Outcome.FAIL,
        "; ".join(dict.fromkeys(said)),
        advice or "Read the lines before it; no known cause stands there, and none is guessed.",
        symptoms[0] if symptoms else None,
        findings,
    )


def _undamaged(findings: tuple[Finding, ...], seen: Seen) -> Diagnosis:
    warning = next((f for f in findings if f.outcome is Outcome.WARN), None)
    progress = [f for f in findings if f.role is Role.PROGRESS]
    started = any(f.signature in ("engine-start", "weights-begin", "weights-end") for f in progress)
    answered = any(f.signature == "engine-answered" for f in progress)
    if not seen.lines:
        return Diagnosis(
            Outcome.INCONCLUSIVE,
            "no line of this boot was read",
            "Check that the log is the one of this boot and that `since` is not in the future.",
            None,
            findings,
        )
    if started and not (seen.ready_at or answered):
        last = max(progress, key=lambda finding: finding.last_line)
        return Diagnosis(
            Outcome.NOT_READY,
            f"this boot is still on its way; the last that it said: {last.meaning}",
            "Wait, or read on later; nothing in the lines of this boot is wrong so far.",
            None,
            findings,
        )
    if warning is not None:
        return Diagnosis(Outcome.WARN, warning.meaning, warning.advice, warning, findings)
    if not (seen.ready_at or answered):
        return Diagnosis(
            Outcome.INCONCLUSIVE,
            "nothing in these lines tells how the boot went",
            "Give the whole log of one boot.",
            None,
            findings,
        )
    return Diagnosis(
        Outcome.OK,
        "no known fault in the lines of this boot; whether it answers, only an answer tells",
        "",
        None,
        findings,
    )
