"""Program headers and sections of a shared library, and the same library with ranges of its file taken out.

Sources: System V ABI (gABI), chapters 4 and 5; its AMD64 and AArch64 supplements for the page sizes; the loader
of the GNU C library (`elf/dl-load.c`, `elf/dl-map-segments.h`) for what it accepts. No address changes: a
segment is split around each range, and the loader fills the gap with zero pages as it does for `.bss`, which
the GNU loader does for read-only segments too.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tooling.prune.refusal import NotUnderstoodError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.census.reader.span import Span

#: Largest page of the systems that a machine's code runs on, bytes: x86-64, AArch64.
PAGE_SIZES = {62: 4096, 183: 65536}
ET_DYN = 3
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_PHDR = 1, 2, 3, 6
SHT_NULL, SHT_PROGBITS, SHT_NOBITS = 0, 1, 8
SHF_WRITE, SHF_ALLOC = 1, 2
PF_WRITE, PF_READ = 2, 4
#: From the next number on the ELF header cannot hold the count itself.
_MAX_SEGMENTS = 0xFFFE
_TABLE_ALIGNMENT = 8
_IDENT_64_LITTLE = b"\x7fELF\x02\x01\x01"
#: The ELF header; `Header` names its fields.
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
#: A row of the program headers, and one of the section table.
SEGMENT = struct.Struct("<IIQQQQQQ")
SECTION = struct.Struct("<IIQQQQIIQQ")


class Header(NamedTuple):
    """The ELF header, fields by the names of the gABI."""

    ident: bytes
    type: int
    machine: int
    version: int
    entry: int
    phoff: int
    shoff: int
    flags: int
    ehsize: int
    phentsize: int
    phnum: int
    shentsize: int
    shnum: int
    shstrndx: int


class Segment(NamedTuple):
    """A program header; offset in the file, addresses relative to the load address, sizes in bytes."""

    type: int
    flags: int
    offset: int
    address: int
    physical: int
    file_size: int
    memory_size: int
    alignment: int

    @property
    def file_end(self) -> int:
        """One past the last byte in the file."""
        return self.offset + self.file_size


class SectionRow(NamedTuple):
    """A row of the section table; offset in the file, sizes in bytes."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int

    @property
    def file_end(self) -> int:
        """One past the last byte in the file."""
        return self.offset + (0 if self.type == SHT_NOBITS else self.size)


class Range(NamedTuple):
    """Bytes `start` to `end` of the old file."""

    start: int
    end: int


class Layout(NamedTuple):
    """Where everything is in a file of `size` bytes."""

    size: int
    header: Header
    segments: tuple[Segment, ...]
    sections: tuple[SectionRow, ...]

    @property
    def page(self) -> int:
        """Largest page size of the machine, bytes."""
        return PAGE_SIZES[self.header.machine]

    def loads(self) -> tuple[Segment, ...]:
        """The segments that are mapped, by rising address."""
        return tuple(segment for segment in self.segments if segment.type == PT_LOAD)


class Shrunk(NamedTuple):
    """The tables of the new file and where its parts come from.

    Attributes:
        layout: Of the new file.
        holes: Ranges of the old file that are gone, in rising order.
    """

    layout: Layout
    holes: tuple[Range, ...]

    def moved(self, offset: int) -> int:
        """Where a byte of the old file is in the new one."""
        return offset - _gone(self.holes, offset)

    def tables(self) -> tuple[tuple[int, bytes], ...]:
        """The new tables as bytes, each with its offset in the new file."""
        return pack_tables(self.layout)


def pack_tables(layout: Layout) -> tuple[tuple[int, bytes], ...]:
    """Header, program headers and section table as bytes, each with its offset in the file."""
    header = layout.header
    return (
        (0, HEADER.pack(*header)),
        (header.phoff, b"".join(SEGMENT.pack(*segment) for segment in layout.segments)),
        (header.shoff, b"".join(SECTION.pack(*section) for section in layout.sections)),
    )


def read_layout(span: Span) -> Layout:
    """Read the tables of a shared library for a little-endian 64-bit machine.

    Raises:
        MalformedError: A table is cut off.
        NotUnderstoodError: It is something else, or its segments are not laid out as loaders want them.
    """
    header = Header(*span.unpack(HEADER, 0, "ELF header"))
    if not header.ident.startswith(_IDENT_64_LITTLE) or header.machine not in PAGE_SIZES:
        raise NotUnderstoodError(f"machine {header.machine} is neither x86-64 nor AArch64")
    if header.type != ET_DYN:
        raise NotUnderstoodError("not a shared library")
    if header.phentsize != SEGMENT.size or header.shentsize != SECTION.size or not header.shnum:
        raise NotUnderstoodError("its tables have rows of another size, or more rows than their count can say")
    segments = span.bytes_at(header.phoff, header.phnum * SEGMENT.size, "program headers")
    sections = span.bytes_at(header.shoff, header.shnum * SECTION.size, "section table")
    layout = Layout(
        span.end,
        header,
        tuple(Segment(*row) for row in SEGMENT.iter_unpack(segments)),
        tuple(SectionRow(*row) for row in SECTION.iter_unpack(sections)),
    )
    _check_segments(layout)
    return layout


def _check_segments(layout: Layout) -> None:
    loads = layout.loads()
    if not loads:
        raise NotUnderstoodError("nothing in it is mapped")
    for segment in loads:
        if segment.file_end > layout.size or segment.memory_size < segment.file_size:
            raise NotUnderstoodError(f"segment at {segment.address:#x} is larger than the file or its memory")
        if (segment.address - segment.offset) % layout.page:
            raise NotUnderstoodError(f"segment at {segment.address:#x} does not begin where its page does")
    for before, after in pairwise(loads):
        if before.address + before.memory_size > after.address:
            raise NotUnderstoodError(f"segments at {before.address:#x} and {after.address:#x} overlap")


def mapped_parts(layout: Layout, section: SectionRow) -> list[tuple[Range, int]]:
    """Where a read-only section is in memory: ranges of the file with the address that each begins at.

    One, except after an earlier pruning, which split the segment.

    Raises:
        NotUnderstoodError: It can be written to, or is not mapped as a whole from its address on.
    """
    parts = []
    at = section.offset
    for segment in layout.loads():
        if segment.offset <= at < min(segment.file_end, section.file_end):
            if (section.flags & (SHF_WRITE | SHF_ALLOC)) != SHF_ALLOC or segment.flags & PF_WRITE:
                raise NotUnderstoodError(f"the section at {section.offset:#x} can be written to")
            end = min(segment.file_end, section.file_end)
            parts.append((Range(at, end), at - segment.offset + segment.address))
            at = end
    if at != section.file_end or not parts or parts[0][1] != section.address:
        raise NotUnderstoodError(f"the section at {section.offset:#x} is not mapped where it says")
    return parts


def shrink(layout: Layout, free: Sequence[Range], least: int) -> Shrunk:
    """Take page-aligned parts of unused ranges out of a library.

    Args:
        layout: The library.
        free: Ranges of the file that will be zero and that nothing needs, in rising order, each in a section
            that `mapped_parts` found to be read-only.
        least: Smallest range that is worth a segment of its own, bytes.

    Raises:
        NotUnderstoodError: Nothing is large enough, or something else lies in a range.
    """
    if any(segment.type == PT_INTERP for segment in layout.segments):
        raise NotUnderstoodError("a program, which the kernel loads and not the GNU loader")
    page = layout.page
    aligned = [Range(-(-start // page) * page, end // page * page) for start, end in free]
    holes = tuple(hole for hole in aligned if hole.end - hole.start >= max(least, page))
    if not holes:
        raise NotUnderstoodError(f"no unused range is as large as {least} bytes")
    _check_free(layout, holes)
    return _shrunk(layout, holes)


def _check_free(layout: Layout, ranges: Sequence[Range]) -> None:
    """Hold everything that has a place in the file against the ranges that are to be used otherwise."""
    header = layout.header
    taken = [
        Range(0, header.ehsize),
        Range(header.phoff, header.phoff + header.phnum * SEGMENT.size),
        Range(header.shoff, header.shoff + header.shnum * SECTION.size),
        *(Range(s.offset, s.file_end) for s in layout.segments if s.type != PT_LOAD),
    ]
    holders = [
        *(Range(s.offset, s.file_end) for s in layout.loads()),
        *(Range(s.offset, s.file_end) for s in layout.sections),
    ]
    ordered = sorted(ranges)
    starts = [item.start for item in ordered]
    for start, end in taken:
        index = bisect_right(starts, end - 1) - 1
        if end > start and index >= 0 and ordered[index].end > start:
            raise NotUnderstoodError(f"something at {start:#x} lies in a range that seemed unused")
    for item in ordered:
        around = [holder for holder in holders if holder.start < item.end and item.start < holder.end]
        if len(around) != 2 or any(h.start > item.start or h.end < item.end for h in around):  # noqa: PLR2004
            raise NotUnderstoodError(
                f"the unused range at {item.start:#x} is not in one section of one segment"
            )


def _gone(holes: Sequence[Range], offset: int) -> int:
    return sum(hole.end - hole.start for hole in holes[: bisect_right(holes, (offset, 0))])


def _shrunk(layout: Layout, holes: tuple[Range, ...]) -> Shrunk:
    def moved(offset: int) -> int:
        return offset - _gone(holes, offset)

    segments: list[Segment] = []
    for segment in layout.segments:
        if segment.type == PT_LOAD:
            segments.extend(_split(segment, holes, layout.page))
        else:
            segments.append(segment._replace(offset=moved(segment.offset)))
    if max(s.alignment for s in segments if s.type == PT_LOAD) != max(s.alignment for s in layout.loads()):
        raise NotUnderstoodError("its largest alignment would be lost")
    # A section with holes keeps one row: it is in one piece in the file, where tools look for it; only the
    # segments say that its parts have gaps between them in memory.
    rows = tuple(
        row
        if row.type == SHT_NULL
        else row._replace(
            offset=moved(row.offset),
            size=row.size if row.type == SHT_NOBITS else moved(row.file_end) - moved(row.offset),
        )
        for row in layout.sections
    )
    header = layout.header
    end = moved(layout.size)
    if _table_is_last(layout):
        end = moved(header.shoff)
    phoff = -(-end // _TABLE_ALIGNMENT) * _TABLE_ALIGNMENT
    segments = _with_table(layout, segments, phoff)
    if len(segments) > _MAX_SEGMENTS:
        raise NotUnderstoodError(f"{len(segments)} segments are too many")
    shoff = phoff + len(segments) * SEGMENT.size
    new = header._replace(phoff=phoff, phnum=len(segments), shoff=shoff)
    return Shrunk(Layout(shoff + len(rows) * SECTION.size, new, tuple(segments), rows), holes)


def _with_table(layout: Layout, segments: list[Segment], offset: int) -> list[Segment]:
    """The program headers with one more, behind all others in memory, that maps them themselves.

    The loader would make do with headers that are not mapped, but some programs look for them in memory.
    """
    size = (len(segments) + 1) * SEGMENT.size
    end = max(segment.address + segment.memory_size for segment in layout.loads())
    address = -(-end // layout.page) * layout.page + offset % layout.page
    place = {"offset": offset, "address": address, "physical": address, "file_size": size, "memory_size": size}
    table = Segment(PT_LOAD, PF_READ, 0, 0, 0, 0, 0, layout.page)._replace(**place)
    last = max(index for index, segment in enumerate(segments) if segment.type == PT_LOAD)
    moved = [segment._replace(**place) if segment.type == PT_PHDR else segment for segment in segments]
    return [*moved[: last + 1], table, *moved[last + 1 :]]


def _split(segment: Segment, holes: Sequence[Range], page: int) -> list[Segment]:
    """A mapped segment as one for each run of bytes that is left of it, each with zero pages for its gap."""
    inside = [hole for hole in holes if segment.offset <= hole.start and hole.end <= segment.file_end]
    starts = [segment.offset, *(hole.end for hole in inside)]
    ends = [*(hole.start for hole in inside), segment.file_end]
    parts = []
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        last = index == len(inside)
        behind = segment.memory_size - segment.file_size if last else inside[index].end - inside[index].start
        step = start - segment.offset
        offset = start - _gone(holes, start)
        difference = segment.address + step - offset
        parts.append(
            segment._replace(
                offset=offset,
                address=segment.address + step,
                physical=segment.physical + step,
                file_size=end - start,
                memory_size=end - start + behind,
                # Address and offset must agree modulo the alignment, which is a power of two.
                alignment=min(segment.alignment, difference & -difference) if difference else segment.alignment,
            )
        )
        if parts[-1].alignment < page:
            raise NotUnderstoodError(f"segment at {segment.address:#x} is aligned to less than a page")
    return parts


def _table_is_last(layout: Layout) -> bool:
    """Whether the section table may give up its place: it is not mapped, and nothing follows."""
    start = layout.header.shoff
    end = start + len(layout.sections) * SECTION.size
    return end == layout.size and not any(s.offset < end and start < s.file_end for s in layout.loads())
