"""What in a shared library points into its device code: each pointer must be to the start of a container.

A pointer to anywhere else would say that somebody knows the inside of a container, and then it must not change.
Sources: gABI, chapter 5 (dynamic section, relocations, DT_RELR); AMD64 and AArch64 supplements.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING

from tooling.prune.layout import PT_DYNAMIC, Layout
from tooling.prune.refusal import NotUnderstoodError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.census.reader.span import Span

_DYNAMIC = struct.Struct("<qQ")
_RELA = struct.Struct("<QQq")
_SYMBOL = struct.Struct("<IBBHQQ")
_WORD = struct.Struct("<Q")
_DT_NULL, _DT_RELA, _DT_RELASZ, _DT_RELAENT, _DT_REL, _DT_TEXTREL, _DT_FLAGS = 0, 7, 8, 9, 17, 22, 30
_DT_RELRSZ, _DT_RELR = 35, 36
_DF_TEXTREL = 4
_SHT_DYNSYM = 11
_WORDS_IN_BITMAP = 63


def check_references(
    span: Span, layout: Layout, sections: Sequence[tuple[int, int]], containers: set[int]
) -> None:
    """Follow every pointer that the loader writes, and every exported symbol.

    Args:
        span: The file.
        layout: Its tables.
        sections: Start address and end address of the sections with device code.
        containers: Addresses of the containers in them.

    Raises:
        MalformedError: A table is cut off.
        NotUnderstoodError: Something points to another place in the sections, or is written into them.
    """
    ordered = sorted(sections)
    starts = [start for start, _ in ordered]

    def inside(address: int) -> bool:
        index = bisect_right(starts, address) - 1
        return index >= 0 and address < ordered[index][1]

    least, most = ordered[0][0], max(end for _, end in ordered)
    for what, address in _pointers(span, layout, (least, most)):
        if inside(address) and address not in containers:
            raise NotUnderstoodError(f"{what} points at {address:#x}, where no container begins")


def _pointers(span: Span, layout: Layout, area: tuple[int, int]) -> Iterator[tuple[str, int]]:
    """Pointers with a name of what they are; those outside the area are not all listed."""
    tags = _dynamic(span, layout)
    if _DT_TEXTREL in tags or tags.get(_DT_FLAGS, 0) & _DF_TEXTREL or _DT_REL in tags:
        raise NotUnderstoodError("it has relocations in read-only segments, or without addends")
    yield from _with_addend(span, layout, tags, area)
    if size := tags.get(_DT_RELRSZ, 0):
        start = _offset(layout, tags.get(_DT_RELR, 0), size)
        for place in _relative(span.bytes_at(start, size - size % 8, "relative relocations")):
            yield "a relocation's place", place
            yield "a relocation", span.unpack(_WORD, _offset(layout, place, 8), "pointer")[0]
    for section in layout.sections:
        if section.type == _SHT_DYNSYM:
            rows = span.bytes_at(section.offset, section.size - section.size % _SYMBOL.size, "symbols")
            yield from (("a symbol", row[4]) for row in _SYMBOL.iter_unpack(rows) if row[3])


def _with_addend(
    span: Span, layout: Layout, tags: dict[int, int], area: tuple[int, int]
) -> Iterator[tuple[str, int]]:
    """Addends and places of DT_RELA inside the area."""
    size = tags.get(_DT_RELASZ, 0)
    if not size:
        return
    if tags.get(_DT_RELAENT, _RELA.size) != _RELA.size:
        raise NotUnderstoodError("relocations of another size")
    least, most = area
    table = span.bytes_at(_offset(layout, tags.get(_DT_RELA, 0), size), size, "relocations")
    for place, _, addend in _RELA.iter_unpack(table[: size - size % _RELA.size]):
        if least <= addend < most:
            yield "a relocation", addend
        if least <= place < most:
            yield "a relocation's place", place


def _dynamic(span: Span, layout: Layout) -> dict[int, int]:
    segment = next((segment for segment in layout.segments if segment.type == PT_DYNAMIC), None)
    if segment is None:
        return {}
    size = segment.file_size - segment.file_size % _DYNAMIC.size
    tags: dict[int, int] = {}
    for tag, value in _DYNAMIC.iter_unpack(span.bytes_at(segment.offset, size, "dynamic section")):
        if tag == _DT_NULL:
            break
        tags.setdefault(tag, value)
    return tags


def _offset(layout: Layout, address: int, size: int) -> int:
    for segment in layout.loads():
        if segment.address <= address and address + size <= segment.address + segment.file_size:
            return address - segment.address + segment.offset
    raise NotUnderstoodError(f"{size} bytes at address {address:#x} are not in the file")


def _relative(table: bytes) -> Iterator[int]:
    """The places of DT_RELR: an even word is a place, an odd one a bitmap of the 63 words behind the last."""
    place = 0
    for (word,) in _WORD.iter_unpack(table):
        if not word & 1:
            yield word
            place = word + 8
            continue
        yield from (place + 8 * bit for bit in range(_WORDS_IN_BITMAP) if word >> (bit + 1) & 1)
        place += 8 * _WORDS_IN_BITMAP
