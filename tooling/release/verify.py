"""Is this image the release that it claims to be? Signatures, digests, named evidence, the policy again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tooling.attest.gate import TestResult
from tooling.errors import ToolkitError
from tooling.gates.records import Verdict
from tooling.records import Record
from tooling.release.errors import (
    ContradictionError,
    ExpiredWaiverError,
    MissingRecordError,
    MovedTagError,
    ReleaseRefusedError,
)
from tooling.release.evidence import Collected, Source, collect_referrers, only_foreign_keys
from tooling.release.names import parse_release_name
from tooling.release.policy import assess
from tooling.release.records import (
    Assessment,
    ReleasePolicy,
    ReleaseRecord,
    Status,
    Waiver,
    instant,
)
from tooling.sign.errors import TamperedError, WrongKeyError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tooling.sign.bundle import Signed
    from tooling.sign.keys import Trust


class Verification(Record):
    """A release whose records hold.

    Attributes:
        source: Registry and repository, or directory.
        digest: The image; use this from now on, never the tag.
        record_sha256: Hash of the signed release record.
        key_id: Who signed it.
        release: The record itself.
        expired_waivers: What it rests on and has run out since.
        notes: What is known about the image and was not when it was released: later runs that did not pass.
    """

    source: str
    digest: str
    record_sha256: str
    key_id: str
    release: ReleaseRecord
    expired_waivers: tuple[Waiver, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        """How far the image is proved."""
        return self.release.assessment.status


class Listed(Record):
    """One line of a list of releases.

    Attributes:
        name: The tag.
        stack: Name of the stack.
        created: When it was released.
        digest: What it points to now.
        status: None when it does not hold.
        hardware: What the evidence was measured on.
        waivers: One line each.
        problem: Why it does not hold; empty when it does.
    """

    name: str
    stack: str = ""
    created: str = ""
    digest: str = ""
    status: Status | None = None
    hardware: tuple[str, ...] = ()
    waivers: tuple[str, ...] = ()
    problem: str = ""


def verify(
    source: Source,
    name: str,
    trust: Trust,
    *,
    now: datetime,
    policy: ReleasePolicy | None = None,
    allow_expired_waivers: bool = False,
) -> Verification:
    """Check a release.

    Args:
        source: Holds it.
        name: Release tag, any other tag, or digest.
        trust: Whose signatures are believed.
        now: The present.
        policy: A policy of one's own, beside the one that the release was made under.
        allow_expired_waivers: Report waivers that ran out instead of refusing.

    Raises:
        MovedTagError: The tag is a release's name and points elsewhere.
        MissingRecordError: There is no release record, or a record that it names is gone.
        TamperedError: A record was changed.
        WrongKeyError: Only strangers have signed.
        ContradictionError: The records do not agree.
        ExpiredWaiverError: A waiver that the release rests on has run out.
        ReleaseRefusedError: The caller's own policy is not met.
    """
    digest = source.manifest(name).digest
    parsed = parse_release_name(name)
    if parsed is not None and not parsed.fits(digest):
        raise MovedTagError(
            f"tag {name} was moved: it names an image {parsed.digest_prefix}..., and points to another",
            where=f"{source.name}:{name}",
            details=[f"points to {digest}"],
            fix="do not use the tag; deploy by digest, and ask the registry's owner who moved it",
        )
    collected = collect_referrers(source, digest, trust)
    signed, record = _release_record(source, name if parsed else "", digest, collected)
    evidence = [_attestation(source, collected, item.payload_sha256, item.name) for item in record.attestations]
    _check_agreement(record, digest, evidence, now)
    if policy is not None:
        own = assess(policy, digest, evidence, record.facts, now=instant(record.created))
        if not own.satisfied:
            raise refused(own, f"{record.name} does not meet this policy")
    expired = tuple(waiver for waiver in record.waivers if now >= instant(waiver.expires))
    if expired and not allow_expired_waivers:
        raise ExpiredWaiverError(
            f"{record.name} rests on a waiver that has expired",
            where=f"{source.name}@{digest}",
            details=[waiver.describe() for waiver in expired],
            fix="release again with the missing evidence, or with a new waiver",
        )
    return Verification(
        source=source.name,
        digest=digest,
        record_sha256=signed.payload_sha256,
        key_id=signed.key_id,
        release=record,
        expired_waivers=expired,
        notes=_later_failures(collected, record),
    )


def _later_failures(collected: Collected, record: ReleaseRecord) -> tuple[str, ...]:
    """Runs of trusted machines that did not pass and that the release does not know of."""
    known = {item.payload_sha256 for item in record.attestations}
    runs = [
        item.statement.read(TestResult).measured
        for item in collected.of(TestResult)
        if item.payload_sha256 not in known
    ]
    return tuple(
        f"after the release gate {run.result.gate} was {run.result.verdict.value}"
        f" ({run.result.ended}, {run.hardware.describe()})"
        for run in runs
        if run.result.verdict is not Verdict.PASS
    )


def _release_record(
    source: Source, name: str, digest: str, collected: Collected
) -> tuple[Signed, ReleaseRecord]:
    """The newest release record of an image; of this name when the tag is one."""
    records = [(signed, signed.statement.read(ReleaseRecord)) for signed in collected.of(ReleaseRecord)]
    fitting = [item for item in records if not name or item[1].name == name]
    if fitting:
        return max(fitting, key=lambda item: (instant(item[1].created), item[0].payload_sha256))
    _raise_rejected(source, collected)
    raise MissingRecordError(
        f"no signed release record names this image{f' {name}' if name else ''}",
        where=f"{source.name}@{digest}",
        details=[f"released as {record.name}" for _, record in records],
        fix="it was never released, or its record was removed: release it, or import it from an export",
    )


def _attestation(source: Source, collected: Collected, payload_sha256: str, name: str) -> Signed:
    found = collected.named(payload_sha256)
    if found is not None:
        return found
    _raise_rejected(source, collected)
    raise MissingRecordError(
        f"the evidence of {name} that the release names is gone",
        where=f"{source.name}, statement {payload_sha256[:12]}",
        fix="attach it again from where it was made, or import the release from an export",
    )


def _raise_rejected(source: Source, collected: Collected) -> None:
    """When something is missing and something else was not believed, that is the reason to tell."""
    lines = [f"{item.source}: {item.reason}" for item in collected.rejected]
    if any(item.error is TamperedError for item in collected.rejected):
        raise TamperedError(
            "a record of this image was changed after it was signed",
            where=source.name,
            details=lines,
            fix="attach the records again from where they were made",
        )
    if only_foreign_keys(collected):
        raise WrongKeyError(
            "every record of this image is signed by keys that are not trusted here",
            where=source.name,
            details=lines,
            fix="add the signer's public key to the directory of trust, if it is one of yours",
        )
    if lines:
        raise MissingRecordError(
            "a record of this image is missing, and others do not count",
            where=source.name,
            details=lines,
            fix="attach the records again from where they were made",
        )


def _check_agreement(record: ReleaseRecord, digest: str, evidence: list[Signed], now: datetime) -> None:
    """Take the decision again, as of the moment of the release, from the evidence itself."""
    problem = ""
    parsed = parse_release_name(record.name)
    if parsed is None or not parsed.fits(digest) or record.assessment.digest != digest:
        problem = "its name or its checklist is of another image"
    elif instant(record.created) > now + timedelta(seconds=record.policy.clock_skew_s):
        problem = f"it was made at {record.created}, which is in the future: a clock is wrong"
    else:
        again = assess(
            record.policy,
            digest,
            evidence,
            record.facts,
            waivers=record.waivers,
            now=instant(record.created),
        )
        if again.open_items:
            problem = "; ".join(f"{item.requirement}: {item.text}" for item in again.open_items)
        elif again.status is not record.assessment.status:
            problem = f"it says {record.assessment.status.value}, its evidence says {again.status.value}"
    if problem:
        raise ContradictionError(
            f"the release record of {record.name} does not agree with its evidence",
            where=digest,
            details=[problem],
            fix="do not use this release; release the image again",
        )


def refused(assessment: Assessment, what: str, rejected: tuple[str, ...] = ()) -> ReleaseRefusedError:
    """The refusal with its checklist: every requirement, what was found, and what would meet it."""
    lines = []
    for item in assessment.items:
        lines.append(f"[{item.state.value}] {item.requirement}: {item.text}")
        if item.to_do:
            lines.append(f"    -> {item.to_do}")
    lines.extend(f"[does not count] {line}" for line in rejected)
    count = len(assessment.open_items)
    return ReleaseRefusedError(
        f"{what}: {count} requirement{'s' if count != 1 else ''} open",
        where=assessment.digest,
        details=lines,
        fix="bring the missing evidence, or a waiver with a name and an end",
    )


def list_releases(
    source: Source, trust: Trust, *, now: datetime, tags: Sequence[str] | None = None
) -> tuple[Listed, ...]:
    """Every release of a repository, those that do not hold first, then by age, the newest last.

    Args:
        source: Holds them.
        trust: Whose signatures are believed.
        now: The present.
        tags: Look at these only.
    """
    listed = []
    for tag in source.tags() if tags is None else tags:
        parsed = parse_release_name(tag)
        if parsed is None:
            continue
        try:
            found = verify(source, tag, trust, now=now, allow_expired_waivers=True)
        except ToolkitError as error:
            listed.append(Listed(name=tag, problem=f"{type(error).__name__}: {error.what}"))
            continue
        expired = [f"EXPIRED {waiver.describe()}" for waiver in found.expired_waivers]
        valid = [item.describe() for item in found.release.waivers if item not in found.expired_waivers]
        listed.append(
            Listed(
                name=tag,
                stack=found.release.stack,
                created=found.release.created,
                digest=found.digest,
                status=found.status,
                hardware=found.release.assessment.hardware,
                waivers=(*expired, *valid),
            )
        )
    return tuple(sorted(listed, key=lambda item: (item.created, item.name)))
