"""NVIDIA fat binaries: containers of device code for several targets, one after the other in a section.

NVIDIA does not document the format. The layout was read off files of nvcc 11 to 13 whose content is known and
is held against `cuobjdump` over whole images (`blackwell-stacks bench-census`):

    container   u32 magic, u16 version = 1, u16 header size, u64 size of all that follows
    entry       u16 kind, u16 version, u32 header size, u64 payload size with padding, u32 size when compressed,
                u32, u16 minor, u16 major, u32 architecture, u32, u32, u64 flags, u64, u64 size when expanded
                ... further fields up to the header size; then the payload
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tooling.census.reader.span import MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.census.reader.span import Span

MAGIC = b"\x50\xed\x55\xba"
#: Device code that the CUDA runtime loads.
LOADABLE_SECTION = ".nv_fatbin"
#: Input of the device linker. It stays behind in linked libraries, where nothing loads it.
RELOCATABLE_SECTION = "__nv_relfatbin"
SECTIONS = (LOADABLE_SECTION, RELOCATABLE_SECTION)
#: Where NVIDIA's libraries keep containers among other data and load them on their own (cuFFT: .ldata;
#: cuBLASLt, cuDNN, cuSPARSELt: .cask_resource). `cuobjdump` does not look there.
EMBEDDING_SECTIONS = (".cask_resource", ".ldata")
#: More entries than any real library has (the largest seen has 5,424); bounds the work of a hostile file.
MAX_ENTRIES = 1_000_000

_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
#: The first 8 bytes of every container of version 1.
_PREAMBLE = MAGIC + b"\1\0\x10\0"
_KINDS = {1: "ptx", 2: "sass"}
_PADDING_CHUNK = 1 << 20

FLAG_LZ4 = 1 << 13
FLAG_ZSTD = 1 << 15
FLAG_ARCH_SPECIFIC = 1 << 20
FLAG_FAMILY_SPECIFIC = 1 << 21


class Entry(NamedTuple):
    """Device code for one target. Offsets are absolute in the file, sizes in bytes.

    Attributes:
        kind: `sass`, `ptx`, or `kind-N` for a number that this reader does not know.
        arch: Target with suffix, e.g. `12.0a`.
        version: PTX ISA version of PTX; code version of SASS.
        flags: The 64 flag bits as stored.
        header_offset: Where the entry begins.
        header_size: Bytes before the payload.
        payload_size: Bytes of the payload with its padding; 0 after pruning.
        stored_size: Bytes of the payload that mean something.
        expanded_size: Bytes of the payload when expanded.
        compression: ``, `lz4` or `zstd`.
    """

    kind: str
    arch: str
    version: tuple[int, int]
    flags: int
    header_offset: int
    header_size: int
    payload_size: int
    stored_size: int
    expanded_size: int
    compression: str

    @property
    def payload_offset(self) -> int:
        """Where the payload begins."""
        return self.header_offset + self.header_size

    @property
    def end(self) -> int:
        """One past the padding: where the next entry begins."""
        return self.payload_offset + self.payload_size


class Container(NamedTuple):
    """A run of entries under one header. A bare cubin or PTX file is a container with a header of 0 bytes.

    Attributes:
        section: Section of the host file, `` outside of one.
        member: Member of a static archive, `` outside of one.
        offset: Absolute offset of the header.
        header_size: Bytes.
        size: Bytes of all entries, without the header.
        entries: In file order.
    """

    section: str
    member: str
    offset: int
    header_size: int
    size: int
    entries: tuple[Entry, ...]


def arch_name(number: int, flags: int) -> str:
    """The target as people write it: 120 with the arch-specific flag is `12.0a`."""
    suffix = "a" if flags & FLAG_ARCH_SPECIFIC else "f" if flags & FLAG_FAMILY_SPECIFIC else ""
    return f"{number // 10}.{number % 10}{suffix}"


def _entries(span: Span, budget: int) -> Iterator[Entry]:
    at = span.start
    while at < span.end:
        if budget <= 0:
            raise MalformedError(f"more than {MAX_ENTRIES} fat binary entries")
        budget -= 1
        fields = span.unpack(_ENTRY, at, "fat binary entry")
        kind, _, header, payload, compressed, _, minor, major, number, _, _, flags, _, expanded = fields
        if header < _ENTRY.size:
            raise MalformedError(f"fat binary entry at {at:#x} has a header of {header} bytes")
        if at + header + payload > span.end:
            raise MalformedError(
                f"payload of the fat binary entry at {at:#x} ends at {at + header + payload:#x}, "
                f"its container at {span.end:#x}"
            )
        if compressed > payload:
            raise MalformedError(f"fat binary entry at {at:#x}: {compressed} bytes stored in {payload}")
        yield Entry(
            _KINDS.get(kind) or f"kind-{kind}",
            arch_name(number, flags),
            (major, minor),
            flags,
            at,
            header,
            payload,
            compressed or payload,
            expanded or payload,
            "zstd" if flags & FLAG_ZSTD else "lz4" if flags & FLAG_LZ4 else "",
        )
        at += header + payload


def read_containers(span: Span, section: str = "", member: str = "") -> Iterator[Container]:
    """The containers of a section or of a `.fatbin` file, in file order.

    Raises:
        MalformedError: Something other than zero padding lies between containers, or one is cut off.
    """
    at = span.start
    budget = MAX_ENTRIES
    while (at := _skip_padding(span, at)) < span.end:
        magic, version, header, size = span.unpack(_CONTAINER, at, "fat binary container")
        if magic != int.from_bytes(MAGIC, "little"):
            raise MalformedError(f"no fat binary container at {at:#x}: magic {magic:#010x}")
        if version != 1 or header < _CONTAINER.size:
            raise MalformedError(f"fat binary container at {at:#x}: version {version}, header of {header}")
        body = span.within(at + header, size, "fat binary container")
        entries = tuple(_entries(body, budget))
        budget -= len(entries) + 1
        yield Container(section, member, at, header, size, entries)
        at = body.end


def find_containers(span: Span, section: str, member: str = "") -> Iterator[Container]:
    """The containers that lie among other data, in file order. What only looks like one is passed over."""
    at = span.start
    budget = MAX_ENTRIES
    while (at := span.data.find(_PREAMBLE, at, span.end)) >= 0:
        size = int.from_bytes(span.data[at + 8 : at + _CONTAINER.size], "little")
        end = at + _CONTAINER.size + size
        entries: tuple[Entry, ...] = ()
        if end <= span.end:
            with suppress(MalformedError):
                entries = tuple(
                    _entries(span.within(at + _CONTAINER.size, size, "fat binary container"), budget)
                )
        if entries:
            budget -= len(entries)
            yield Container(section, member, at, _CONTAINER.size, size, entries)
        at = end if entries else at + 8


def _skip_padding(span: Span, at: int) -> int:
    """The offset of the next byte that is not zero; containers start on a multiple of 8, zeros lie between."""
    step = 64
    while at < span.end and not span.data[at]:
        chunk = span.data[at : min(at + step, span.end)]
        at += len(chunk) - len(chunk.lstrip(b"\0"))
        step = min(step * 16, _PADDING_CHUNK)
    return at
