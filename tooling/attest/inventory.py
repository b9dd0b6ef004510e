"""What a later release is compared with: the device code of an image, and its unjudged arch gates."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from tooling.archgates.records import Polarity
from tooling.attest.statement import Predicate, Statement
from tooling.census.compare import compare
from tooling.census.records import CensusRecord
from tooling.gates.records import Verdict
from tooling.records import Record, sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tooling.archgates.records import Hit, PackageScan

#: Hex digits of a gate's hash; thousands of gates need no more to be told apart.
_DIGITS = 16


class UnjudgedGates(Record):
    """The unjudged arch gates of one package.

    Attributes:
        package: Distribution name.
        version: Its version.
        gates: Short hash of each, which stays the same when lines move.
    """

    package: str
    version: str
    gates: tuple[str, ...] = ()


class Inventory(Predicate):
    """The inventory of an image.

    Attributes:
        census: Its device code.
        unjudged: Arch gates of its packages.
    """

    PREDICATE_TYPE: ClassVar[str] = "urn:blackwell-stacks:inventory:v1"

    census: CensusRecord
    unjudged: tuple[UnjudgedGates, ...] = Field(min_length=1)


def inventory(census: CensusRecord, scans: Iterable[PackageScan]) -> Inventory:
    """Arrange what the inspection read.

    Args:
        census: Device code of the image.
        scans: Arch gates of its packages.
    """
    return Inventory(
        census=census,
        unjudged=tuple(
            UnjudgedGates(
                package=scan.package,
                version=scan.version,
                gates=tuple(sorted({_key(hit) for hit in _unjudged(scan)})),
            )
            for scan in scans
        ),
    )


def inventory_statement(found: Inventory, *, image: str, digest: str) -> Statement:
    """The inventory as a statement about the image."""
    return Statement.about(image, digest, found)


def new_unjudged(scans: Sequence[PackageScan], before: Inventory | None) -> tuple[str, ...]:
    """Arch gates that came with this image and that nobody has judged, one line each.

    Without an earlier release there is nothing that a gate is new against; how many are unjudged in all stands
    among the inspection's limitations.

    Args:
        scans: Arch gates of this image.
        before: Inventory of the previous release.
    """
    if before is None:
        return ()
    old = {entry.package: set(entry.gates) for entry in before.unjudged}
    return tuple(
        f"{scan.package} {scan.version}: {hit.path}:{hit.line} {hit.code}"
        for scan in scans
        for hit in _unjudged(scan)
        if _key(hit) not in old.get(scan.package, set())
    )


def lost_code(before: CensusRecord, after: CensusRecord, devices: Iterable[str]) -> tuple[str, ...]:
    """Device code that the previous release had and this image lacks, one line each."""
    failed = [check for check in compare(before, after, devices) if check.verdict is not Verdict.PASS]
    return tuple(line for check in failed for line in (check.details or (check.seen,)))


def _unjudged(scan: PackageScan) -> list[Hit]:
    return [gate.hit for gate in scan.gates if gate.polarity is Polarity.UNJUDGED]


def _key(hit: Hit) -> str:
    return sha256_of(list(hit.key))[:_DIGITS]
