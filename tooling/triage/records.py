"""Records of log triage: signatures (facts), findings (what one log showed) and the report on one boot."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from tooling.records import Record


class Outcome(StrEnum):
    """What a log says about the boot that wrote it."""

    OK = "OK"
    WARN = "WARN"
    NOT_READY = "NOT_READY"
    INCONCLUSIVE = "INCONCLUSIVE"
    REFUSE = "REFUSE"
    FAIL = "FAIL"


class Role(StrEnum):
    """What a line is to a diagnosis."""

    CAUSE = "cause"  # explains itself and, perhaps, later lines
    SYMPTOM = "symptom"  # follows from something else; named only when no cause is found
    HINT = "hint"  # advice that the engine prints for every cause
    NOISE = "noise"  # looks like an error and is none
    PROGRESS = "progress"  # shows how far a boot is
    EVIDENCE = "evidence"  # shows what a feature really does


class Effect(StrEnum):
    """What a line proves about its feature."""

    NONE = ""
    PREPARED = "prepared"  # set up; proves nothing about use
    ACTIVE = "active"
    DISABLED = "disabled"


class Finding(Record):
    """All lines of one boot that one signature explains.

    Attributes:
        signature: Id of the signature.
        outcome: What it means for the boot.
        role: Cause, symptom, hint, noise, progress or evidence.
        count: Matching lines.
        first_line: Number of the first matching line, from 1, in what was read.
        last_line: Number of the last one.
        text: The first matching line, shortened.
        meaning: What it says, with the values of that line.
        advice: What to do.
        feature: Feature that it concerns, or empty.
        effect: What it proves about the feature.
        ranks: Worker ranks that printed it, e.g. `TP0`.
        hopeless: The engine neither goes on nor exits after it.
    """

    signature: str
    outcome: Outcome
    role: Role
    count: int = Field(ge=1)
    first_line: int = Field(ge=1)
    last_line: int = Field(ge=1)
    text: str
    meaning: str
    advice: str = ""
    feature: str = ""
    effect: Effect = Effect.NONE
    ranks: tuple[str, ...] = ()
    hopeless: bool = False


class TriageReport(Record):
    """What the log of one boot says.

    Attributes:
        outcome: The verdict on this boot's log; never a proof of readiness.
        diagnosis: The root cause, or what is known instead of one.
        advice: What to do next.
        root: Finding that the diagnosis rests on, if one does.
        findings: Everything recognised, in order of first appearance.
        lines_read: Lines that belong to this boot.
        lines_of_other_boots: Lines left out since an earlier boot wrote them.
        restarts: Engine starts seen after the first within the lines of this boot.
        ready_line: The engine said that it is ready (it says so before it listens).
        engine: Name of the engine, as given or recognised.
        version: Version of the engine, as given or recognised.
        notes: What limits the report, one sentence each.
    """

    outcome: Outcome
    diagnosis: str
    advice: str = ""
    root: Finding | None = None
    findings: tuple[Finding, ...] = ()
    lines_read: int
    lines_of_other_boots: int = 0
    restarts: int = 0
    ready_line: bool = False
    engine: str = ""
    version: str = ""
    notes: tuple[str, ...] = ()
