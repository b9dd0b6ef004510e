"""A ready engine: what the gates get, whether we booted it or somebody else did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from tooling.boot.failure import BootError, Reason
from tooling.boot.readiness import Answer, Patience, ProbeState, probe
from tooling.console import say
from tooling.errors import ToolkitError
from tooling.records import Record
from tooling.triage.records import Finding, Outcome, Role, TriageReport

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tooling.boot.container import ContainerWatch
    from tooling.boot.follower import LogFollower
    from tooling.gates.records import Evidence


class BootFacts(Record):
    """What evidence of this boot belongs to.

    Attributes:
        boot_id: Random id of this boot (or of this attachment).
        stack: Name of the stack, or empty.
        url: Base of the HTTP interface.
        model: Name under which the engine serves.
        device: `gpu`, or `cpu` for a dry boot, which qualifies nothing for a GPU.
        image: Reference as given.
        image_id: Content id (`sha256:...`), or empty for an engine outside a container.
        image_digests: Registry digests that the image is known by.
        container_id: Full id, or empty.
        started_at: Start of the container, or of the attachment; ISO 8601.
        owned: We started it.
        ready_after_s: Seconds from our first look to the first answer.
        answer: The first answer.
    """

    boot_id: str
    stack: str = ""
    url: str
    model: str
    device: str = "gpu"
    image: str = ""
    image_id: str = ""
    image_digests: tuple[str, ...] = ()
    container_id: str = ""
    started_at: str
    owned: bool
    ready_after_s: float
    answer: Answer


class Endpoint:
    """An engine that answered. Leaving its `with` block stops and removes what we started, and nothing else."""

    def __init__(
        self,
        facts: BootFacts,
        *,
        patience: Patience,
        watch: ContainerWatch | None,
        follower: LogFollower | None,
    ) -> None:
        self.facts = facts
        self.evidence: Evidence | None = None
        self._patience = patience
        self._watch = watch
        self._follower = follower

    @property
    def url(self) -> str:
        """Base of the HTTP interface, without a slash at its end."""
        return self.facts.url

    @property
    def model(self) -> str:
        """Name under which the engine serves."""
        return self.facts.model

    def report(self) -> TriageReport:
        """Triage of this boot's log so far.

        Raises:
            ToolkitError: No log was given when attaching.
        """
        if self._follower is None:
            raise ToolkitError(
                "no log belongs to this endpoint", where=self.url, fix="attach with its log file or container"
            )
        return self._follower.report()

    @property
    def has_log(self) -> bool:
        """Whether `report` can say anything."""
        return self._follower is not None

    def check(self, *, answer_s: float | None = None) -> Answer:
        """Make sure that this same boot still lives and answers.

        Args:
            answer_s: Seconds for the answer; as long as for the first one if None.

        Raises:
            BootError: It ended, was restarted, or answers no more.
        """
        self.check_alive()
        # One empty answer may be the model's own choice; as at the start, several in a row are believed.
        for _ in range(max(1, self._patience.empty_answers)):
            seen = probe(self.url, model=self.model, answer_s=answer_s or self._patience.answer_s)
            if seen.state is not ProbeState.EMPTY:
                break
        if seen.state is ProbeState.READY and seen.answer is not None:
            return seen.answer
        self.check_alive()
        report = self._follower.report() if self._follower else None
        failing = report if report is not None and report.outcome is Outcome.FAIL else None
        why = failing.diagnosis if failing else seen.seen
        raise BootError(
            f"the engine stopped answering after it had been ready: {why}",
            where=self.url,
            fix=(failing.advice if failing else "") or "read the log; the process is alive but serves nothing",
            details=[seen.seen] if failing else [],
            reason=Reason.STOPPED_ANSWERING,
            report=report,
            log=str(self._follower.path) if self._follower else "",
        )

    def check_alive(self) -> None:
        """Make sure that the container of this boot still runs; says nothing where there is none.

        Raises:
            BootError: It ended or was restarted.
        """
        if self._watch is not None and self._follower is not None:
            self._watch.raise_if_ended(self._follower)

    def close(self) -> None:
        """Stop and remove the container if it is ours, and close the log. May be called twice."""
        watch, self._watch = self._watch, None
        if watch is not None and watch.owned:
            if self._follower is not None:
                self._follower.quiet()
            say(f"boot {self.facts.boot_id}: stopping the container")
        release(watch, None, self._patience)
        if self._follower is not None and self.evidence is None:
            self.evidence = self._follower.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def release(watch: ContainerWatch | None, follower: LogFollower | None, patience: Patience) -> None:
    """Let go of a boot: our container goes, its log stays."""
    try:
        if watch is not None:
            watch.release(patience.stop_s)
    finally:
        if follower is not None:
            follower.close()


def tell(boot_id: str) -> Callable[[Finding], None]:
    """Progress of a boot on stderr, one line a finding."""

    def on_new(finding: Finding) -> None:
        if finding.role is Role.PROGRESS or finding.outcome is not Outcome.OK:
            mark = "" if finding.outcome is Outcome.OK else f"{finding.outcome} "
            say(f"boot {boot_id}: {mark}{finding.meaning}")

    return on_new
