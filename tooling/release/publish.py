"""Making a release: decide, write every record, read all of it back, and only then write the tag."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.attest.gate import TestResult
from tooling.attest.inventory import Inventory
from tooling.attest.provenance import Provenance
from tooling.attest.sbom import Sbom
from tooling.attest.statement import Statement
from tooling.errors import InputError
from tooling.records import Record
from tooling.registry.attach import attach_manifests, pin
from tooling.registry.errors import NotFoundError, TagConflictError
from tooling.release.evidence import (
    Collected,
    collect_directory,
    collect_referrers,
    merge,
    name_attestations,
    upload_bundle,
)
from tooling.release.names import parse_release_name, release_name
from tooling.release.policy import assess
from tooling.release.records import ReleaseFacts, ReleasePolicy, ReleaseRecord, Waiver
from tooling.release.verify import Listed, Verification, list_releases, refused, verify
from tooling.sign.bundle import sign
from tooling.sign.bundle import verify as verify_bundle
from tooling.sign.errors import WrongKeyError

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from tooling.registry.manifest import Manifest
    from tooling.registry.repository import Repository
    from tooling.sign.bundle import Signed
    from tooling.sign.keys import SigningKey, Trust


@dataclass(frozen=True)
class ReleaseRequest:
    """What should be released.

    Attributes:
        stack: Name of the stack.
        engine_version: Version of its engine.
        policy: What the release needs.
        tool_version: Version of this toolkit.
        evidence: Directory with signed evidence, from this machine or from others; None: only what is attached
            to the image in the registry.
        facts: What was found out without running the image.
        waivers: What may pass for a while.
    """

    stack: str
    engine_version: str
    policy: ReleasePolicy
    tool_version: str
    evidence: Path | None = None
    facts: ReleaseFacts = field(default_factory=ReleaseFacts)
    waivers: tuple[Waiver, ...] = ()


class Released(Record):
    """A release that exists.

    Attributes:
        name: Its immutable tag.
        image: `repository@digest`, what hosts pull.
        verification: The records as they were read back from the registry.
        rejected: Evidence that was found and does not count, one line each.
    """

    name: str
    image: str
    verification: Verification
    rejected: tuple[str, ...] = ()


def release(
    request: ReleaseRequest,
    repository: Repository,
    image_name: str,
    *,
    key: SigningKey,
    trust: Trust,
    now: datetime,
) -> Released:
    """Release an image that was pushed before.

    Every step can be repeated: after a failure run it again. The tag is the last write, so there is no time at
    which a release has a name and not all of its records.

    Args:
        request: What should be released.
        repository: Holds the image.
        image_name: Digest, or a tag that is resolved once.
        key: Signs the release record.
        trust: Whose evidence is believed; the key must be one of them.
        now: The present.

    Raises:
        ReleaseRefusedError: The policy is not met; the checklist says what is missing.
        TagConflictError: The release's tag exists with another digest.
        RegistryError: The registry failed; no tag was written.
    """
    if trust.get(key.id) is None:
        raise WrongKeyError(
            "the signing key is not among the trusted keys: nobody could verify this release",
            where=f"key {key.id[:12]}",
            fix="add its .pub file to the directory of trust",
        )
    image = repository.manifest(image_name)
    _check_complete(repository, image)
    collected = _collect(request, repository, image, trust)
    rejected = tuple(f"{item.source}: {item.reason}" for item in collected.rejected)
    facts = with_previous(request, repository, image, trust, now)
    assessment = assess(request.policy, image.digest, collected.signed, facts, waivers=request.waivers, now=now)
    if not assessment.satisfied:
        raise refused(assessment, f"stack {request.stack} is not released", rejected)
    name = release_name(request.stack, request.engine_version, now, image.digest)
    found = repository.digest_of_tag(name)
    if found not in {None, image.digest}:
        raise TagConflictError(
            f"tag {name} exists already with another digest",
            where=repository.name,
            details=[f"there: {found}", f"image: {image.digest}"],
            fix="somebody moved a release tag: find out who before anything else",
        )
    evidence = _evidence(request.policy, collected)
    record = ReleaseRecord(
        name=name,
        stack=request.stack,
        engine_version=request.engine_version,
        created=now.isoformat(timespec="seconds"),
        policy=request.policy,
        facts=facts,
        assessment=assessment,
        attestations=name_attestations(evidence),
        waivers=request.waivers,
        tool_version=request.tool_version,
    )
    pin(repository, image)
    evidence.append(_signed_record(record, collected, repository, key, trust))
    manifests = [upload_bundle(repository, image, signed) for signed in evidence]
    attach_manifests(repository, image.digest, manifests)
    # Read back by digest what a stranger will read, before the name makes it a release.
    verify(repository, image.digest, trust, now=now)
    repository.tag_once(image, name)
    verification = verify(repository, name, trust, now=now)
    return Released(
        name=name, image=f"{repository.name}@{image.digest}", verification=verification, rejected=rejected
    )


def _check_complete(repository: Repository, image: Manifest) -> None:
    if image.is_index:
        raise InputError(
            "the name points to an index of several images",
            where=f"{repository.name}@{image.digest}",
            details=[f"it lists {child.digest}" for child in image.manifests],
            fix="release each image by its own digest",
        )
    for blob in image.blobs:
        if not repository.has_blob(blob.digest):
            raise NotFoundError(
                "the image is not complete in the registry",
                where=f"{repository.name}, blob {blob.digest}",
                fix="push the image again",
            )


def _collect(request: ReleaseRequest, repository: Repository, image: Manifest, trust: Trust) -> Collected:
    attached = collect_referrers(repository, image.digest, trust)
    if request.evidence is None:
        return attached
    return merge(collect_directory(request.evidence, image.digest, trust), attached)


def with_previous(
    request: ReleaseRequest, repository: Repository, image: Manifest, trust: Trust, now: datetime
) -> ReleaseFacts:
    """Complete the facts by the previous release of the stack: which one, and how many bytes are new.

    A census that was compared with nothing, or with another release, counts as not compared.
    """
    facts = request.facts
    previous = previous_release(repository, request.stack, trust, now=now, besides=image.digest)
    if previous is None:
        return facts
    changes: dict[str, object] = {
        "previous": previous.digest,
        "bytes_new": bytes_new(image, repository.manifest(previous.digest)),
    }
    if facts.previous != previous.digest:
        changes["census_worse"] = None
    return facts.model_copy(update=changes)


def previous_release(
    repository: Repository, stack: str, trust: Trust, *, now: datetime, besides: str = ""
) -> Listed | None:
    """The newest release of a stack whose records hold.

    Args:
        repository: Holds it.
        stack: Name of the stack.
        trust: Whose signatures are believed.
        now: The present.
        besides: Digest that does not count, since it is the one being released.
    """
    names = [name for tag in repository.tags() if (name := parse_release_name(tag)) and name.stack == stack]
    for date in sorted({name.date for name in names if not name.fits(besides)}, reverse=True):
        tags = [name.tag for name in names if name.date == date and not name.fits(besides)]
        ours = [
            item for item in list_releases(repository, trust, now=now, tags=tags) if item.status is not None
        ]
        if ours:
            return ours[-1]
    return None


def bytes_new(image: Manifest, previous: Manifest) -> int:
    """Compressed bytes that a host with the previous image has to pull for this one."""
    have = {blob.digest for blob in previous.blobs}
    return sum(blob.size for blob in image.blobs if blob.digest not in have)


def _evidence(policy: ReleasePolicy, collected: Collected) -> list[Signed]:
    """Every statement that the decision was taken on, the runs that failed before others passed included."""
    required = {gate.gate for gate in policy.gates}
    runs = [
        item
        for item in collected.of(TestResult)
        if item.statement.read(TestResult).measured.result.gate in required
    ]
    return [*runs, *collected.of(Provenance), *collected.of(Sbom), *collected.of(Inventory)]


def _signed_record(
    record: ReleaseRecord, collected: Collected, repository: Repository, key: SigningKey, trust: Trust
) -> Signed:
    """The release record, signed; a try that broke off before may have left the same one already."""
    for signed in collected.of(ReleaseRecord):
        if signed.statement.read(ReleaseRecord).model_copy(update={"created": record.created}) == record:
            return signed
    statement = Statement.about(repository.name, record.assessment.digest, record)
    return verify_bundle(sign(statement, key), trust)
