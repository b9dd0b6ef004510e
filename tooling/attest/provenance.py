"""How an image was built, in the shape of SLSA Provenance v1. The shape only: no SLSA level is claimed."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from tooling.attest.statement import DigestSet, Predicate, ResourceDescriptor, Statement, WireRecord
from tooling.records import Record

#: How to read `externalParameters` and `internalParameters`.
BUILD_TYPE = "urn:blackwell-stacks:build:v1"
#: Whoever ran this toolkit; there is no hosted builder to name.
BUILDER_ID = "urn:blackwell-stacks:self-run-builder"


class InputKind(StrEnum):
    """What kind of thing went into the image."""

    BASE = "base"
    LOCK = "lock"
    PATCH = "patch"
    KERNEL = "kernel"
    DOCKERFILE = "dockerfile"
    STACK = "stack"


class BuildInput(Record):
    """One pinned input.

    Attributes:
        kind: What it is.
        name: Path in the repository, or name of the base.
        sha256: Hash of its content.
    """

    kind: InputKind
    name: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class BuildFacts(Record):
    """What a build knows about itself; the build's own record is turned into this.

    Attributes:
        stack: Name of the stack.
        engine: Name of the inference engine.
        engine_version: Its version.
        targets: GPU architectures that were compiled for, e.g. `sm_120`; empty for a CPU stack.
        inputs: Every pinned input; at least base and lock.
        drifted_packages: Base packages whose version is no longer the locked one.
        source_commit: Commit of the repository, `-dirty` appended when it was changed.
        builder: Programs and versions that built it, e.g. `{"docker": "20.10.24"}`.
        tool_version: Version of this toolkit.
        started: ISO 8601, UTC.
        ended: ISO 8601, UTC.
    """

    stack: str
    engine: str
    engine_version: str
    targets: tuple[str, ...] = ()
    inputs: tuple[BuildInput, ...] = Field(min_length=1)
    drifted_packages: tuple[str, ...] = ()
    source_commit: str = ""
    builder: dict[str, str] = Field(default_factory=dict)
    tool_version: str
    started: str
    ended: str


class _BuildDefinition(WireRecord):
    build_type: str = BUILD_TYPE
    external_parameters: dict[str, Any]
    internal_parameters: dict[str, Any] = Field(default_factory=dict)
    resolved_dependencies: tuple[ResourceDescriptor, ...] = Field(min_length=1)


class _Builder(WireRecord):
    id: str = BUILDER_ID
    version: dict[str, str] = Field(default_factory=dict)


class _BuildMetadata(WireRecord):
    started_on: str
    finished_on: str


class _RunDetails(WireRecord):
    builder: _Builder
    metadata: _BuildMetadata


class Provenance(WireRecord, Predicate):
    """SLSA Provenance v1."""

    PREDICATE_TYPE: ClassVar[str] = "https://slsa.dev/provenance/v1"

    model_config = ConfigDict(**WireRecord.model_config)

    build_definition: _BuildDefinition
    run_details: _RunDetails

    @classmethod
    def of(cls, facts: BuildFacts) -> Provenance:
        """Arrange the facts of a build in the shape of SLSA."""
        return cls(
            build_definition=_BuildDefinition(
                external_parameters={"stack": facts.stack, "targets": list(facts.targets)},
                internal_parameters={
                    "engine": facts.engine,
                    "engineVersion": facts.engine_version,
                    "driftedPackages": list(facts.drifted_packages),
                    "sourceCommit": facts.source_commit,
                    "toolVersion": facts.tool_version,
                },
                resolved_dependencies=tuple(
                    ResourceDescriptor(
                        name=item.name,
                        digest=DigestSet(sha256=item.sha256),
                        annotations={"kind": item.kind.value},
                    )
                    for item in facts.inputs
                ),
            ),
            run_details=_RunDetails(
                builder=_Builder(version=facts.builder),
                metadata=_BuildMetadata(started_on=facts.started, finished_on=facts.ended),
            ),
        )

    @property
    def stack(self) -> str:
        """Name of the stack that was built."""
        return str(self.build_definition.external_parameters.get("stack", ""))

    @property
    def drifted_packages(self) -> tuple[str, ...]:
        """Base packages that were not the locked ones."""
        return tuple(self.build_definition.internal_parameters.get("driftedPackages", ()))

    def inputs(self, kind: InputKind) -> tuple[ResourceDescriptor, ...]:
        """The pinned inputs of one kind."""
        return tuple(
            item
            for item in self.build_definition.resolved_dependencies
            if item.annotations.get("kind") == kind.value
        )


def build_statement(facts: BuildFacts, *, image: str, digest: str) -> Statement:
    """The statement of a build about the image it made.

    Args:
        facts: What the build knows about itself.
        image: Repository or file that holds the image, for people.
        digest: Digest of the image manifest, `sha256:<64 hex>`.
    """
    return Statement.about(image, digest, Provenance.of(facts))
