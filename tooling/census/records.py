"""What a census says, and what a library can do for a device."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from tooling.census.architecture import parse_architecture, ptx_release, runs_on, version_key
from tooling.records import Record

if TYPE_CHECKING:
    from tooling.census.architecture import Architecture


class Target(Record):
    """Device code of one kind for one architecture in one file.

    Attributes:
        kind: `sass`, `ptx`, or `kind-N` for entries that the reader does not know.
        arch: E.g. `12.0a`.
        ptx_isa: Version of the PTX ISA, of PTX only.
        compression: ``, `lz4` or `zstd`.
        place: `loadable` by the CUDA runtime; `embedded` in other data, for the library to load on its own; or
            `relocatable`, input of the device linker that nothing loads.
        entries: Number of entries.
        stored_bytes: Bytes of their payloads in the file.
    """

    kind: str
    arch: str
    ptx_isa: str = ""
    compression: str = ""
    place: Literal["loadable", "embedded", "relocatable"] = "loadable"
    entries: int = Field(ge=1)
    stored_bytes: int = Field(ge=0)


class Service(StrEnum):
    """How a library serves a device, best first."""

    SASS = "sass"
    PTX = "ptx"
    NONE = "none"


class Coverage(Record):
    """What a library has for one device.

    Attributes:
        service: The best that it has.
        sass_entries: Entries of machine code that run there.
        ptx_entries: Entries of PTX that the driver can compile for it.
        least_driver: For PTX alone: the least driver that compiles all of it; `unknown` when our table lacks a
            PTX ISA version.
    """

    service: Service
    sass_entries: int
    ptx_entries: int
    least_driver: str = ""


class Library(Record):
    """A file that can carry device code.

    Attributes:
        path: Relative to the root of the census.
        kind: `elf`, `object`, `archive`, `cubin`, `fatbin` or `ptx`.
        size: Bytes.
        containers: Fat binary containers, a bare cubin or PTX file counting as one.
        targets: Empty when there is no device code in it.
    """

    path: str
    kind: Literal["elf", "object", "archive", "cubin", "fatbin", "ptx"]
    size: int
    containers: int
    targets: tuple[Target, ...]

    def loadable(self) -> tuple[Target, ...]:
        """The code that counts: the device linker's input does in an archive or object, nowhere else."""
        links = self.kind in ("archive", "object")
        return tuple(target for target in self.targets if links or target.place != "relocatable")

    def coverage(self, device: Architecture) -> Coverage:
        """What this library has for a device."""
        fitting = [
            target
            for target in self.loadable()
            if runs_on(target.kind, parse_architecture(target.arch), device)
        ]
        sass = sum(target.entries for target in fitting if target.kind == "sass")
        ptx = [target for target in fitting if target.kind == "ptx"]
        service = Service.SASS if sass else Service.PTX if ptx else Service.NONE
        return Coverage(
            service=service,
            sass_entries=sass,
            ptx_entries=sum(target.entries for target in ptx),
            least_driver=least_driver({target.ptx_isa for target in ptx}) if service is Service.PTX else "",
        )


class Unread(Record):
    """A file that begins like one with device code and could not be read, or a folder that could not."""

    path: str
    reason: str


class CensusRecord(Record):
    """The device code of a folder or of an image.

    Attributes:
        source: The folder, or the image as it was named.
        image_digest: `sha256:...` of an image's configuration; empty for a folder.
        files_seen: Regular files, looked into or not.
        libraries: Sorted by path.
        unread: Sorted by path.
        taken: ISO 8601, UTC.
    """

    format: Literal[1] = 1
    source: str
    image_digest: str = ""
    files_seen: int
    libraries: tuple[Library, ...]
    unread: tuple[Unread, ...]
    taken: str

    @model_validator(mode="after")
    def _paths_are_unique(self) -> Self:
        paths = [library.path for library in self.libraries]
        if len(set(paths)) != len(paths):
            raise ValueError("a path is listed twice")
        return self

    def with_device_code(self) -> tuple[Library, ...]:
        """The libraries that carry any."""
        return tuple(library for library in self.libraries if library.targets)


def least_driver(isas: set[str]) -> str:
    """The least driver that compiles all of some PTX ISA versions, `unknown` when one is not in our table."""
    releases = [ptx_release(isa) for isa in isas]
    drivers = [release.driver for release in releases if release is not None]
    if len(drivers) < len(releases) or not drivers:
        return "unknown"
    return max(drivers, key=version_key)
