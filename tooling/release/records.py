"""What a release needs, what was decided, and what is written down about it: all data."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tooling.attest.hardware import Device
from tooling.attest.statement import Digest, Predicate, Sha256
from tooling.records import Record


def instant(text: str) -> datetime:
    """Read an ISO 8601 moment.

    Raises:
        ValueError: It is none, or has no time zone: such a moment cannot be compared.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment


def _check_instant(text: str) -> str:
    instant(text)
    return text


#: ISO 8601 with a time zone.
Moment = Annotated[str, AfterValidator(_check_instant)]


class Status(StrEnum):
    """How far an image is proved.

    A number always carries the hardware it was measured on, and so does a status: it holds for the hardware
    that the policy names.
    """

    QUALIFIED = "qualified"  # all gates on the target
    SOURCE_QUALIFIED = "source-qualified"  # built and inspected, not run on the target
    UNTESTED = "untested"


class Place(StrEnum):
    """Where a gate must run."""

    IMAGE = "image"  # looks at the image alone: any machine will do
    TARGET = "target"  # needs the hardware that the stack is for


class Enough(StrEnum):
    """Which verdict of a gate a release can do with."""

    PASS = "pass"  # noqa: S105  # not a password
    NO_FAILURE = "no-failure"  # it ran and found nothing wrong; it proves nothing and raises no status


class GateRequirement(Record):
    """One gate that a release needs.

    Attributes:
        gate: Name of the gate.
        place: Where it must run.
        checks: Checks that its record must hold; a record without them looked at less than is needed.
        configuration_sha256: What the gate must have been told; None: anything.
        hardware_classes: Classes of machines, each of which needs a passing run; empty: any one target machine.
        max_age_days: Evidence older than this does not count; None: the policy's own limit.
        minimum_boots: How many boots the record must cover.
        enough: Which verdict is enough; less than a pass is for gates whose number has nothing to be held
            against, e.g. the speed of whichever CPU is at hand.
    """

    gate: str = Field(min_length=1)
    place: Place = Place.TARGET
    enough: Enough = Enough.PASS
    checks: tuple[str, ...] = ()
    configuration_sha256: Sha256 | None = None
    hardware_classes: tuple[str, ...] = ()
    max_age_days: float | None = Field(default=None, gt=0)
    minimum_boots: int = Field(default=0, ge=0)


class ReleasePolicy(Record):
    """What a release needs; part of a stack.

    Attributes:
        device: What the stack computes on.
        compute_capabilities: GPUs that count as the target, e.g. `12.0`; not empty for CUDA.
        gates: At least one.
        driver_min: Lowest driver that evidence may come from, e.g. `580.65.06`; it is also recorded for hosts.
        driver_below: Drivers from here on do not count.
        max_age_days: How old evidence may be.
        clock_skew_s: How far a clock of another machine may be ahead, in seconds.
        allow_drifted_base: Base packages may differ from the locked ones.
        census_not_worse: Device code that the previous release had may not be missing.
        arch_gates_judged: No architecture gate may be new and unjudged.
        bytes_new_max: Most bytes that a host with the previous release has to pull; None: no limit.
        waiver_max_days: Longest life of a waiver.
    """

    device: Device
    compute_capabilities: tuple[str, ...] = ()
    gates: tuple[GateRequirement, ...] = Field(min_length=1)
    driver_min: str = Field(default="", pattern=r"^(\d+(\.\d+)*)?$")
    driver_below: str = Field(default="", pattern=r"^(\d+(\.\d+)*)?$")
    max_age_days: float = Field(default=30, gt=0)
    clock_skew_s: float = Field(default=300, ge=0)
    allow_drifted_base: bool = False
    census_not_worse: bool = True
    arch_gates_judged: bool = True
    bytes_new_max: int | None = Field(default=None, ge=0)
    waiver_max_days: float = Field(default=90, gt=0)

    @model_validator(mode="after")
    def _target_is_named(self) -> Self:
        if self.device is Device.CUDA and not self.compute_capabilities:
            raise ValueError("a CUDA stack names the compute capabilities that count as its target")
        names = [gate.gate for gate in self.gates]
        if len(set(names)) != len(names):
            raise ValueError("a gate is required twice")
        return self


class Waiver(Record):
    """One requirement that somebody lets pass for a while; shown wherever the release is shown.

    Attributes:
        requirement: Id of the item in the checklist, or its first part (`gate:throughput` covers every
            hardware class of that gate).
        reason: Why.
        by: Who takes the responsibility.
        dated: Since when.
        expires: From then on it does not count.
    """

    requirement: str = Field(min_length=1)
    reason: str = Field(min_length=10)
    by: str = Field(min_length=1)
    dated: Moment
    expires: Moment

    @model_validator(mode="after")
    def _ends_after_it_began(self) -> Self:
        if instant(self.expires) <= instant(self.dated):
            raise ValueError("the waiver expires before it begins")
        return self

    def describe(self) -> str:
        """One line for people."""
        return f"{self.requirement} waived by {self.by} until {self.expires}: {self.reason}"


class ReleaseFacts(Record):
    """What was found out about the image without running it, beside the signed evidence.

    None means that nobody looked, which is not the same as an empty list.

    Attributes:
        census_worse: Device code that the previous release had and this one lacks, one line each.
        unjudged_arch_gates: Architecture gates that nobody has judged yet, one line each.
        previous: Digest of the release that was compared with; empty for the first one.
        bytes_new: Compressed bytes of the layers that the previous release does not have.
    """

    census_worse: tuple[str, ...] | None = None
    unjudged_arch_gates: tuple[str, ...] | None = None
    previous: Digest | Literal[""] = ""
    bytes_new: int | None = Field(default=None, ge=0)


class State(StrEnum):
    """How one requirement stands."""

    MET = "met"
    MISSING = "missing"
    FAILED = "failed"
    WAIVED = "waived"


class ChecklistItem(Record):
    """One requirement and how it stands.

    Attributes:
        requirement: Stable id, e.g. `gate:throughput@rtx-pro-6000-x8`.
        state: How it stands.
        text: What was found, one sentence.
        to_do: What would meet it.
        evidence_sha256: Hash of the signed statement that meets it, or speaks against it.
        waiver: Why it may pass anyway.
    """

    requirement: str
    state: State
    text: str
    to_do: str = ""
    evidence_sha256: Sha256 | None = None
    waiver: Waiver | None = None


class Assessment(Record):
    """The whole checklist of one image under one policy.

    Attributes:
        digest: The image.
        status: How far it is proved.
        items: Every requirement.
        limitations: What the evidence says it could not check, and what is worth knowing beside it.
        hardware: What the target evidence was measured on, one line each.
    """

    digest: Digest
    status: Status
    items: tuple[ChecklistItem, ...] = Field(min_length=1)
    limitations: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()

    @property
    def open_items(self) -> tuple[ChecklistItem, ...]:
        """What keeps the release from existing."""
        return tuple(item for item in self.items if item.state in {State.MISSING, State.FAILED})

    @property
    def satisfied(self) -> bool:
        """Whether a release may exist."""
        return not self.open_items


class NamedAttestation(Record):
    """A signed statement that a release rests on.

    Attributes:
        kind: `gate`, `provenance`, `sbom` or `inventory`.
        name: Name of the gate, else the kind again.
        payload_sha256: Hash of the signed bytes.
        key_id: Who signed it.
    """

    kind: Literal["gate", "provenance", "sbom", "inventory"]
    name: str
    payload_sha256: Sha256
    key_id: Sha256


class ReleaseRecord(Predicate):
    """The signed record of one release: it binds name, digest, policy, evidence and waivers.

    Attributes:
        name: The immutable tag.
        stack: Name of the stack.
        engine_version: Version of the inference engine.
        created: When it was released.
        policy: The policy that was met, whole, so that it can be checked again.
        facts: What the policy was held against beside the evidence.
        assessment: The checklist.
        attestations: Every statement that was used.
        waivers: What was let pass.
        tool_version: Version of this toolkit.
    """

    PREDICATE_TYPE: ClassVar[str] = "urn:blackwell-stacks:release:v1"

    name: str = Field(min_length=1)
    stack: str
    engine_version: str
    created: Moment
    policy: ReleasePolicy
    facts: ReleaseFacts
    assessment: Assessment
    attestations: tuple[NamedAttestation, ...] = Field(min_length=1)
    waivers: tuple[Waiver, ...] = ()
    tool_version: str


class ChannelEntry(Predicate):
    """One signed move of a channel: a channel is a pointer, and this is its log.

    Attributes:
        channel: Name, e.g. `stable`.
        sequence: 1 for the first move, then one more each time.
        release: Name of the release that it points to from now on.
        previous_sha256: Hash of the signed bytes of the entry before; None for the first.
        created: When.
        reason: Why, e.g. `rollback: p99 doubled`.
    """

    PREDICATE_TYPE: ClassVar[str] = "urn:blackwell-stacks:channel:v1"

    channel: str = Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")
    sequence: int = Field(ge=1)
    release: str = Field(min_length=1)
    previous_sha256: Sha256 | None = None
    created: Moment
    reason: str = ""

    @model_validator(mode="after")
    def _first_has_no_predecessor(self) -> Self:
        if (self.sequence == 1) is not (self.previous_sha256 is None):
            raise ValueError("exactly the first entry of a channel has no predecessor")
        return self
