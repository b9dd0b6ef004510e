"""Signed evidence from a directory or a registry, sorted into what counts and what does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tooling.attest.gate import TestResult
from tooling.attest.inventory import Inventory
from tooling.attest.provenance import Provenance
from tooling.attest.sbom import SBOM_PREDICATE_TYPE
from tooling.attest.statement import Predicate, StatementError
from tooling.errors import InputError
from tooling.records import sha256_of
from tooling.registry.attach import upload_record
from tooling.registry.errors import ContentError, NotFoundError
from tooling.release.records import ChannelEntry, NamedAttestation, ReleaseRecord
from tooling.sign.bundle import BUNDLE_MEDIA_TYPE, Signed, sign, verify
from tooling.sign.errors import SignatureError, WrongKeyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tooling.attest.statement import Statement
    from tooling.registry.manifest import Descriptor, Manifest
    from tooling.registry.repository import Repository
    from tooling.sign.keys import SigningKey, Trust

#: How evidence files end.
SUFFIX = ".sigstore.json"
#: A bundle with the numbers of one gate is some kilobytes; an SBOM some megabytes.
_BUNDLE_MAX_BYTES = 32 * 1024 * 1024


class Source(Protocol):
    """Where a release and its records are: a repository of a registry, or an OCI layout directory."""

    @property
    def name(self) -> str:
        """For messages."""

    def tags(self) -> list[str]:
        """Every tag."""

    def manifest(self, name: str) -> Manifest:
        """A manifest by tag or digest, checked."""

    def blob(self, descriptor: Descriptor) -> bytes:
        """A small blob, checked."""

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """What is attached to an image."""


@dataclass(frozen=True)
class Rejected:
    """A record that does not count.

    Attributes:
        source: File, or digest in the registry.
        reason: Why, one sentence.
        error: The kind of the reason.
    """

    source: str
    reason: str
    error: type[Exception]


@dataclass(frozen=True)
class Collected:
    """Everything that was found about one image.

    Attributes:
        signed: What counts: right signature, trusted key, this image, a shape that is known here.
        rejected: What does not, and why.
    """

    signed: tuple[Signed, ...]
    rejected: tuple[Rejected, ...]

    def of(self, kind: type[Predicate]) -> list[Signed]:
        """What counts and is of one kind."""
        return [item for item in self.signed if item.statement.predicate_type == kind.PREDICATE_TYPE]

    def named(self, payload_sha256: str) -> Signed | None:
        """The statement of this hash."""
        return next((item for item in self.signed if item.payload_sha256 == payload_sha256), None)


def write_evidence(statement: Statement, key: SigningKey, directory: Path) -> Path:
    """Sign a statement and write it as `<what>-<12 hex of its hash>.sigstore.json`.

    Args:
        statement: What is said.
        key: Who says it.
        directory: Where evidence is collected.

    Returns:
        The file.
    """
    what = "statement"
    if statement.predicate_type == TestResult.PREDICATE_TYPE:
        what = statement.read(TestResult).measured.result.gate
    elif statement.predicate_type == Provenance.PREDICATE_TYPE:
        what = "provenance"
    elif statement.predicate_type == SBOM_PREDICATE_TYPE:
        what = "sbom"
    elif statement.predicate_type == Inventory.PREDICATE_TYPE:
        what = "inventory"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{what}-{sha256_of(statement.payload())[:12]}{SUFFIX}"
    path.write_bytes(sign(statement, key))
    return path


def collect_directory(place: Path, digest: str, trust: Trust) -> Collected:
    """Read the evidence about one image from a file or a directory; it may come from any machine.

    Raises:
        InputError: The place cannot be read, or holds no evidence file.
    """
    return _sort(_files(place), trust, digest)


def read_directory(place: Path, trust: Trust) -> Collected:
    """Read the evidence of a file or a directory, whatever image it is about.

    Raises:
        InputError: The place cannot be read, or holds no evidence file.
    """
    return _sort(_files(place), trust, "")


def _files(place: Path) -> list[tuple[str, bytes]]:
    try:
        files = sorted(place.glob(f"*{SUFFIX}")) if place.is_dir() else [place] if place.is_file() else []
        bundles = [(str(file), file.read_bytes()) for file in files]
    except OSError as error:
        raise InputError(f"the evidence cannot be read: {error.strerror}", where=str(error.filename)) from error
    if not bundles:
        raise InputError(
            f"no evidence (*{SUFFIX}) is there",
            where=str(place),
            fix="run the gates, or name another place",
        )
    return bundles


def collect_referrers(source: Source, digest: str, trust: Trust) -> Collected:
    """Read every bundle that is attached to an image."""
    bundles: list[tuple[str, bytes]] = []
    damaged: list[Rejected] = []
    for descriptor in source.referrers(digest):
        try:
            manifest = source.manifest(descriptor.digest)
            if manifest.artifact_type != BUNDLE_MEDIA_TYPE:
                continue
            bundles.append((descriptor.digest, source.blob(manifest.layers[0])))
        except (NotFoundError, ContentError, IndexError) as error:
            what = error.what if isinstance(error, (NotFoundError, ContentError)) else "it has no layer"
            damaged.append(Rejected(descriptor.digest, what, type(error)))
    sorted_ = _sort(bundles, trust, digest)
    return Collected(sorted_.signed, (*sorted_.rejected, *damaged))


def merge(*collections: Collected) -> Collected:
    """Several collections as one, each statement once."""
    signed = {item.payload_sha256: item for one in collections for item in reversed(one.signed)}
    return Collected(tuple(signed.values()), tuple(item for one in collections for item in one.rejected))


def _sort(bundles: Iterable[tuple[str, bytes]], trust: Trust, digest: str) -> Collected:
    """What counts of some bundles; an empty digest takes those about any image."""
    signed: list[Signed] = []
    rejected: list[Rejected] = []
    for source, content in bundles:
        try:
            signed.append(_read(content, trust, digest))
        except (SignatureError, StatementError) as error:
            rejected.append(Rejected(source, error.what, type(error)))
    return Collected(tuple(signed), tuple(rejected))


def _read(content: bytes, trust: Trust, digest: str) -> Signed:
    if len(content) > _BUNDLE_MAX_BYTES:
        raise StatementError(f"a record of {len(content)} bytes is not read")
    signed = verify(content, trust)
    if digest and signed.statement.digest != digest:
        raise StatementError(f"it is about {signed.statement.digest}, another image")
    for kind in (TestResult, Provenance, Inventory, ReleaseRecord, ChannelEntry):
        if signed.statement.predicate_type == kind.PREDICATE_TYPE:
            signed.statement.read(kind)  # a shape that is not known here must not count
    return signed


def upload_bundle(repository: Repository, image: Manifest, signed: Signed) -> Manifest:
    """Write a bundle's blobs, annotated as cosign does, and make the manifest that attaches it to an image."""
    return upload_record(
        repository,
        image,
        signed.bundle,
        artifact_type=BUNDLE_MEDIA_TYPE,
        annotations={
            "dev.sigstore.bundle.content": "dsse-envelope",
            "dev.sigstore.bundle.predicateType": signed.statement.predicate_type,
        },
    )


def name_attestations(signed: Sequence[Signed]) -> tuple[NamedAttestation, ...]:
    """The list of statements that a release record names, in a stable order."""
    named = []
    for item in signed:
        common = {"payload_sha256": item.payload_sha256, "key_id": item.key_id}
        if item.statement.predicate_type == TestResult.PREDICATE_TYPE:
            gate = item.statement.read(TestResult).measured.result.gate
            named.append(NamedAttestation(kind="gate", name=gate, **common))
        elif item.statement.predicate_type == Provenance.PREDICATE_TYPE:
            named.append(NamedAttestation(kind="provenance", name="provenance", **common))
        elif item.statement.predicate_type == SBOM_PREDICATE_TYPE:
            named.append(NamedAttestation(kind="sbom", name="sbom", **common))
        elif item.statement.predicate_type == Inventory.PREDICATE_TYPE:
            named.append(NamedAttestation(kind="inventory", name="inventory", **common))
    return tuple(sorted(named, key=lambda entry: (entry.kind, entry.name, entry.payload_sha256)))


def only_foreign_keys(collected: Collected) -> bool:
    """Whether records are there, and every one is signed by a key that is not trusted here."""
    reasons = {item.error for item in collected.rejected}
    return not collected.signed and WrongKeyError in reasons
