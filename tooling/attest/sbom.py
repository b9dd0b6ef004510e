"""A software bill of materials, CycloneDX 1.5, from a package list. Information, never a proof.

Proof of the contents are the hashes of the lock and of the base in the provenance; the bill is what people's
scanners read. It is written without serial number or time, so that equal contents give equal bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from pydantic import ConfigDict, Field

from tooling.attest.statement import Predicate, Statement, WireRecord
from tooling.errors import InputError
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The predicate type under which cosign looks for CycloneDX documents.
SBOM_PREDICATE_TYPE = "https://cyclonedx.org/bom"


class PythonPackage(Record):
    """An installed distribution: normalised name, version."""

    name: str = Field(min_length=1)
    version: str = Field(min_length=1)


class DebianPackage(Record):
    """An installed Debian package."""

    name: str = Field(min_length=1)
    version: str = Field(min_length=1)
    architecture: str = Field(min_length=1)


class PackageList(Record):
    """What is installed in an image.

    Attributes:
        distribution: Name of the base distribution, e.g. `debian`.
        python: Python distributions.
        debian: Packages of the base.
    """

    distribution: str = "debian"
    python: tuple[PythonPackage, ...] = ()
    debian: tuple[DebianPackage, ...] = ()


class Sbom(WireRecord, Predicate):
    """A CycloneDX document as a predicate; its fields are CycloneDX's own."""

    PREDICATE_TYPE: ClassVar[str] = SBOM_PREDICATE_TYPE

    model_config = ConfigDict(**WireRecord.model_config)

    bom_format: str = "CycloneDX"
    spec_version: str = "1.5"
    version: int = 1
    metadata: dict[str, Any]
    components: tuple[dict[str, Any], ...] = Field(min_length=1)


def sbom(packages: PackageList, *, image: str, digest: str) -> Sbom:
    """Write the bill of an image.

    Args:
        packages: What is installed.
        image: Repository that holds the image.
        digest: Digest of the image manifest, `sha256:<64 hex>`.

    Raises:
        InputError: The list is empty: an image without packages was not looked at.
    """
    if not packages.python and not packages.debian:
        raise InputError("the package list is empty", where=digest, fix="take it from inside the image")
    root = f"pkg:oci/{quote(image.rpartition('/')[2])}@{quote(digest, safe='')}"
    component = {"type": "container", "bom-ref": root, "name": image, "version": digest, "purl": root}
    return Sbom(metadata={"component": component}, components=tuple(_components(packages)))


def sbom_statement(packages: PackageList, *, image: str, digest: str) -> Statement:
    """The bill as a statement about the image, so that it can be signed and attached like evidence."""
    return Statement.about(image, digest, sbom(packages, image=image, digest=digest))


def _components(packages: PackageList) -> Iterator[dict[str, Any]]:
    for python in sorted(packages.python, key=lambda item: item.name):
        purl = f"pkg:pypi/{quote(python.name)}@{quote(python.version, safe='')}"
        yield {
            "type": "library",
            "bom-ref": purl,
            "name": python.name,
            "version": python.version,
            "purl": purl,
        }
    for debian in sorted(packages.debian, key=lambda item: (item.name, item.architecture)):
        name = f"{packages.distribution}/{quote(debian.name, safe='')}"
        purl = f"pkg:deb/{name}@{quote(debian.version, safe='')}?arch={quote(debian.architecture)}"
        yield {
            "type": "library",
            "bom-ref": purl,
            "name": debian.name,
            "version": debian.version,
            "purl": purl,
        }


def parse_dpkg_status(text: str) -> tuple[DebianPackage, ...]:
    """Installed packages of a dpkg status file (`/var/lib/dpkg/status`, or the parts of `status.d` joined).

    Raises:
        InputError: A paragraph lacks its package, version or architecture, or nothing is installed.
    """
    packages = []
    for number, paragraph in enumerate(text.split("\n\n"), 1):
        if not paragraph.strip():
            continue
        fields = {
            name: value.strip()
            for name, separator, value in (line.partition(":") for line in paragraph.splitlines())
            if separator and not name.startswith((" ", "\t"))
        }
        if fields.get("Status", "install ok installed") != "install ok installed":
            continue
        try:
            packages.append(
                DebianPackage(
                    name=fields["Package"], version=fields["Version"], architecture=fields["Architecture"]
                )
            )
        except KeyError as error:
            raise InputError(
                f"a package in the dpkg status has no {error.args[0]}", where=f"paragraph {number}"
            ) from error
    if not packages:
        raise InputError("the dpkg status lists no installed package", fix="read it from inside the image")
    return tuple(packages)
