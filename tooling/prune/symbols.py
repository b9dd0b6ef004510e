"""Take symbol tables and debugging information out of a shared library: what no loader ever maps.

Like `strip`, with three differences that other steps rest on. No byte that is mapped changes apart from
the tables of the file itself. The section table keeps its rows: a section that is gone is marked inactive, so
that the section numbers in dynamic symbols stay true. A file that is not wholly understood is left as it is.
Sources: System V ABI (gABI), chapter 4 (SHT_NULL marks a row as inactive) and 5 (alignment of segments).

It has to come before device code is taken out: afterwards a segment lies behind the symbols.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

from tooling.census.reader import elf
from tooling.prune.layout import (
    PT_LOAD,
    SECTION,
    SEGMENT,
    SHF_ALLOC,
    SHT_NOBITS,
    SHT_NULL,
    Layout,
    Range,
    SectionRow,
    read_layout,
)
from tooling.prune.refusal import NotUnderstoodError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.census.reader.span import Span

SHT_SYMTAB, SHT_STRTAB, SHT_SYMTAB_SHNDX = 2, 3, 18
#: Fewer bytes than this are not worth a file that differs from its wheel.
LEAST_GAIN = 1 << 14
_DEBUG_PREFIXES = (".debug", ".zdebug")
_DEBUG_NAMES = frozenset({".gdb_index"})
#: Tables of the file are read faster from a multiple of this.
_TABLE_ALIGNMENT = 8
#: Bytes that are compared at a time.
_PIECE = 1 << 22


class Strip(NamedTuple):
    """What is to be done to a file.

    Attributes:
        old: Its tables now.
        new: Its tables afterwards.
        dead: Numbers of the sections that go.
        holes: Ranges that leave the file, in rising order.
        zeros: Ranges of dead sections that stay as zeros, since what follows must keep its alignment.
    """

    old: Layout
    new: Layout
    dead: frozenset[int]
    holes: tuple[Range, ...]
    zeros: tuple[Range, ...]

    @property
    def gain(self) -> int:
        """Bytes that the file loses."""
        return self.old.size - self.new.size

    def moved(self, offset: int) -> int:
        """Where a byte of the old file is in the new one."""
        return _moved(self.holes, offset)

    def tables(self) -> tuple[Range, ...]:
        """Where the old file has the tables that change."""
        header = self.old.header
        return (
            Range(0, header.ehsize),
            Range(header.phoff, header.phoff + header.phnum * SEGMENT.size),
            Range(header.shoff, header.shoff + header.shnum * SECTION.size),
        )


def plan_strip(span: Span) -> Strip | None:
    """Decide what leaves a library; None when too little would.

    Raises:
        MalformedError: A table is cut off.
        NotUnderstoodError: There is something to take out, and the file is not as we know them.
    """
    names = [section.name for section in elf.read_elf(span).sections]
    layout = read_layout(span)
    dead = dead_sections(layout, names)
    if sum(layout.sections[index].size for index in dead) < LEAST_GAIN:
        return None
    live = _live(layout, dead)
    _check(span, layout, dead, live)
    holes, zeros = [], []
    for start, end in _merged(span, layout, dead, live):
        unit = _unit(layout, dead, end)
        cut = start + (end - start) // unit * unit
        holes.append(Range(start, cut))
        zeros.append(Range(cut, end))
    holes = [hole for hole in holes if hole.end > hole.start]
    plan = _planned(layout, dead, tuple(holes), tuple(item for item in zeros if item.end > item.start))
    return plan if plan.gain >= LEAST_GAIN else None


def dead_sections(layout: Layout, names: Iterable[str]) -> frozenset[int]:
    """Numbers of the sections with symbols or debugging information that are not loaded.

    A table stays when a section that stays refers to it.
    """
    rows = dict(enumerate(layout.sections))
    loose = {i for i, row in rows.items() if row.type != SHT_NOBITS and not row.flags & SHF_ALLOC and row.size}
    named = dict(enumerate(names))
    found = {
        index
        for index in loose
        if rows[index].type in (SHT_SYMTAB, SHT_SYMTAB_SHNDX)
        or named[index].startswith(_DEBUG_PREFIXES)
        or named[index] in _DEBUG_NAMES
    }
    found |= {
        rows[index].link
        for index in found
        if rows[index].type == SHT_SYMTAB
        and rows[index].link in loose
        and rows[rows[index].link].type == SHT_STRTAB
    }
    found -= {layout.header.shstrndx}
    while wanted := {row.link for index, row in rows.items() if row.link and index not in found} & found:
        found -= wanted
    return frozenset(found)


def _live(layout: Layout, dead: frozenset[int]) -> list[Range]:
    """Everything with a place in the file that stays."""
    header = layout.header
    return [
        Range(0, header.ehsize),
        Range(header.phoff, header.phoff + header.phnum * SEGMENT.size),
        Range(header.shoff, header.shoff + header.shnum * SECTION.size),
        *(Range(s.offset, s.file_end) for s in layout.segments if s.file_size),
        *(Range(s.offset, s.file_end) for i, s in enumerate(layout.sections) if i not in dead),
    ]


def _check(span: Span, layout: Layout, dead: frozenset[int], live: list[Range]) -> None:
    ranges = sorted(Range(layout.sections[i].offset, layout.sections[i].file_end) for i in dead)
    end = max(item.end for item in chain(live, ranges))
    # Zeros are what tools that edit libraries leave there; anything else may be looked for by its place.
    if span.data[end : layout.size].strip(b"\0"):
        raise NotUnderstoodError(f"{layout.size - end} bytes lie behind its last section")
    for before, after in pairwise(ranges):
        if before.end > after.start:
            raise NotUnderstoodError(f"sections at {before.start:#x} and {after.start:#x} overlap")
    for start, end in ranges:
        if end > layout.size:
            raise NotUnderstoodError(f"the section at {start:#x} is larger than the file")
        if any(item.start < end and start < item.end for item in live):
            raise NotUnderstoodError(f"something else lies in the section at {start:#x}")
    loads = layout.loads()
    if any(s.alignment & (s.alignment - 1) or s.alignment < layout.page for s in loads):
        raise NotUnderstoodError("a segment is aligned to less than a page, or to no power of two")


def _merged(span: Span, layout: Layout, dead: frozenset[int], live: list[Range]) -> Iterator[Range]:
    """The dead sections, joined where only a padding of zeros lies between two of them."""
    starts = sorted(item.start for item in live)
    current: Range | None = None
    for row in sorted((layout.sections[index] for index in dead), key=lambda row: row.offset):
        item = Range(row.offset, row.file_end)
        if current is not None:
            padding = span.data[current.end : item.start]
            between = any(current.end <= start < item.start for start in starts)
            if not between and not padding.strip(b"\0"):
                current = Range(current.start, item.end)
                continue
            yield current
        current = item
    if current is not None:
        yield current


def _unit(layout: Layout, dead: frozenset[int], end: int) -> int:
    """What the size of a hole must be a multiple of, for everything behind it to keep its alignment."""
    loads = [segment.alignment for segment in layout.loads() if segment.offset >= end]
    rows = [row.alignment for i, row in enumerate(layout.sections) if i not in dead and row.offset >= end]
    return max([_TABLE_ALIGNMENT, *loads, *rows])


def _moved(holes: tuple[Range, ...], offset: int) -> int:
    return offset - sum(hole.end - hole.start for hole in holes if hole.end <= offset)


def _planned(layout: Layout, dead: frozenset[int], holes: tuple[Range, ...], zeros: tuple[Range, ...]) -> Strip:
    header = layout.header
    inactive = SectionRow(*(0,) * len(SectionRow._fields))
    new = Layout(
        layout.size - sum(hole.end - hole.start for hole in holes),
        header._replace(phoff=_moved(holes, header.phoff), shoff=_moved(holes, header.shoff)),
        tuple(segment._replace(offset=_moved(holes, segment.offset)) for segment in layout.segments),
        tuple(
            inactive
            if index in dead
            else row
            if row.type == SHT_NULL
            else row._replace(offset=_moved(holes, row.offset))
            for index, row in enumerate(layout.sections)
        ),
    )
    return Strip(layout, new, dead, holes, zeros)


def verify_strip(old: Span, new: Span, plan: Strip) -> None:
    """Read the new file anew, and hold what it maps and every section that stays against the old one.

    Raises:
        MalformedError: The new file cannot be read.
        NotUnderstoodError: Something differs that must not.
    """
    layout = read_layout(new)
    if layout != plan.new:
        raise NotUnderstoodError("the tables of the new file are not as planned")
    for before, after in zip(plan.old.segments, layout.segments, strict=True):
        if before._replace(offset=0) != after._replace(offset=0):
            raise NotUnderstoodError(f"the segment at {before.address:#x} changed")
        if before.type == PT_LOAD and (after.address - after.offset) % after.alignment:
            raise NotUnderstoodError(f"the segment at {before.address:#x} lost its alignment")
    pieces = [Range(s.offset, s.file_end) for s in plan.old.segments]
    pieces += [Range(s.offset, s.file_end) for i, s in enumerate(plan.old.sections) if i not in plan.dead]
    for piece in pieces:
        for part in _without(piece, plan.tables()):
            place = plan.moved(part.start)
            for at in range(0, part.end - part.start, _PIECE):
                size = min(_PIECE, part.end - part.start - at)
                if (
                    old.data[part.start + at : part.start + at + size]
                    != new.data[place + at : place + at + size]
                ):
                    raise NotUnderstoodError(f"bytes at {part.start + at:#x} changed")


def _without(whole: Range, parts: Iterable[Range]) -> Iterator[Range]:
    """What is left of a range without some parts."""
    at = whole.start
    for part in sorted(parts):
        if part.end <= at or part.start >= whole.end:
            continue
        if at < part.start:
            yield Range(at, part.start)
        at = part.end
    if at < whole.end:
        yield Range(at, whole.end)
