"""Why a boot failed: names for the kinds, and the pure rules that tell them apart."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tooling.errors import CheckError
from tooling.triage.records import Outcome, TriageReport

if TYPE_CHECKING:
    from tooling.boot.state import ContainerState


class Reason(StrEnum):
    """Kinds of failed boots."""

    EXITED = "exited"
    OOM_KILLED = "oom-killed"
    CRASH_LOOP = "crash-loop"
    REMOVED = "removed"
    PORT_IN_USE = "port-in-use"
    MODEL_MISSING = "model-missing"
    WRONG_ARCHITECTURE = "wrong-architecture"
    BAD_COMMAND = "bad-command"
    NO_SPACE = "no-space"
    NO_GPUS = "no-gpus"
    IMAGE_MISSING = "image-missing"
    NOT_STARTED = "not-started"
    HOPELESS = "hopeless"
    NEVER_LISTENED = "never-listened"
    NEVER_ANSWERED = "never-answered"
    EMPTY_ANSWER = "empty-answer"
    STOPPED_ANSWERING = "stopped-answering"
    WRONG_ENDPOINT = "wrong-endpoint"


@dataclass
class BootError(CheckError):
    """A boot that failed, with its kind and what its log says.

    Attributes:
        reason: Kind of failure.
        report: Triage of the log of this boot, if there is one.
        log: File that keeps the log.
    """

    reason: Reason = Reason.EXITED
    report: TriageReport | None = None
    log: str = ""

    def as_record(self) -> dict[str, object]:
        """The message as data."""
        report = None if self.report is None else self.report.model_dump(mode="json")
        return {**super().as_record(), "reason": self.reason.value, "log": self.log, "triage": report}


#: Exit codes that a shell or the kernel gives, and what they mean.
_EXIT_CODES = {
    125: "Docker itself failed",
    126: "the command cannot be executed",
    127: "the command was not found",
    132: "illegal instruction: a library uses CPU instructions that this host lacks",
    134: "aborted by native code",
    135: "bus error, often a /dev/shm that is too small",
    137: "killed; Docker saw no memory limit at work, so the host's out-of-memory killer or a person did it",
    139: "segmentation fault",
    143: "terminated by a request from outside",
}
#: Which kind of failure a signature stands for.
_REASONS = {
    "port-in-use": Reason.PORT_IN_USE,
    "model-files-missing": Reason.MODEL_MISSING,
    "hub-offline": Reason.MODEL_MISSING,
    "hub-not-found": Reason.MODEL_MISSING,
    "hub-gated": Reason.MODEL_MISSING,
    "mount-source-missing": Reason.MODEL_MISSING,
    "wrong-architecture": Reason.WRONG_ARCHITECTURE,
    "binary-as-script": Reason.BAD_COMMAND,
    "entry-point-missing": Reason.BAD_COMMAND,
    "unrecognised-argument": Reason.BAD_COMMAND,
    "disk-full": Reason.NO_SPACE,
    "download-disk-full": Reason.NO_SPACE,
    "docker-without-gpus": Reason.NO_GPUS,
    "no-driver-in-container": Reason.NO_GPUS,
    "driver-too-old": Reason.NO_GPUS,
    "no-gpu-visible": Reason.NO_GPUS,
    "image-missing": Reason.IMAGE_MISSING,
    "host-out-of-memory": Reason.OOM_KILLED,
}


def describe_exit(code: int) -> str:
    """One clause on an exit code."""
    meaning = _EXIT_CODES.get(code)
    if meaning is None and 128 < code < 160:  # noqa: PLR2004  # 128 + signal
        meaning = f"signal {code - 128}"
    return f"exit code {code}" + (f", {meaning}" if meaning else "")


def reason_of(report: TriageReport | None, otherwise: Reason) -> Reason:
    """The kind of failure that a triage report points to."""
    if report is None or report.root is None:
        return otherwise
    return _REASONS.get(report.root.signature, otherwise)


def not_the_architecture(both: str) -> tuple[Reason, str, str]:
    """An exec format error where image and host agree: kind, one sentence, and what to do."""
    return (
        Reason.BAD_COMMAND,
        (
            f"the kernel cannot run the entry point; image and host are both {both}, so the file is a script "
            "without its first line, or damaged"
        ),
        "look at the file that the message names",
    )


def explain_end(
    state: ContainerState, report: TriageReport, *, host_architecture: str, image_architecture: str
) -> tuple[Reason, str, str]:
    """Why a container that was started is not running any more.

    Args:
        state: State after its end.
        report: Triage of its log.
        host_architecture: As Go writes it, e.g. `amd64`.
        image_architecture: Same, of the image.

    Returns:
        Kind, one sentence, and what to do.
    """
    ended = describe_exit(state.exit_code)
    known = report.root is not None and report.outcome in (Outcome.FAIL, Outcome.REFUSE)
    if state.oom_killed:
        return (
            Reason.OOM_KILLED,
            f"the engine ran past the container's memory limit and was killed ({ended})",
            "raise memory_bytes of the run contract, or load the weights with less host memory",
        )
    reason = reason_of(report, Reason.EXITED)
    if reason is Reason.WRONG_ARCHITECTURE and host_architecture == image_architecture:
        return not_the_architecture(host_architecture)
    if state.error and not known:
        return Reason.NOT_STARTED, f"Docker could not start the engine: {state.error}", "read Docker's message"
    if known:
        return reason, f"the engine ended ({ended}): {report.diagnosis}", report.advice
    return Reason.EXITED, f"the engine ended ({ended}): {report.diagnosis}", report.advice
