"""Proof by reading both files anew that nothing but what had to go has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.census.reader.files import read_bytes
from tooling.prune.containers import is_embedded
from tooling.prune.layout import PT_LOAD, SHF_ALLOC, SHT_NOBITS, Layout, Range, read_layout
from tooling.prune.refusal import NotUnderstoodError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.census.reader.fatbin import Container
    from tooling.census.reader.span import Span
    from tooling.prune.plan import Plan

#: Bytes that are compared at a time.
_PIECE = 1 << 22


def verify(old: Span, new: Span, plan: Plan) -> None:
    """Compare the memory that both files give, their unmapped sections, and their device code.

    Args:
        old: The file before.
        new: The file after.
        plan: What was to be done.

    Raises:
        MalformedError: The new file cannot be read.
        NotUnderstoodError: Something differs that must not.
    """
    layout = read_layout(new)
    changed = [Range(change.start, change.end) for change in plan.replacements(old.data)]
    if plan.shrunk:
        changed.insert(0, Range(0, plan.layout.header.ehsize))
        before, after = (item.header._replace(phoff=0, shoff=0, phnum=0) for item in (plan.layout, layout))
        if before != after:
            raise NotUnderstoodError("the ELF header changed in more than its tables")
    _compare_memory(old, new, plan.layout, layout, changed)
    _compare_unmapped(old, new, plan.layout, layout, changed)
    _compare_code(old, new, plan, layout)


def _compare_memory(old: Span, new: Span, before: Layout, after: Layout, changed: list[Range]) -> None:
    """All that is mapped has its old address and content."""
    for segment in before.loads():
        shift = segment.address - segment.offset
        for start, end in _outside(Range(segment.offset, segment.file_end), changed):
            if not _same(old, new, after, Range(start, end), start + shift):
                raise NotUnderstoodError(f"bytes at address {start + shift:#x} changed")


def _compare_unmapped(old: Span, new: Span, before: Layout, after: Layout, changed: list[Range]) -> None:
    """Sections that are only in the file have their old content."""
    for row, new_row in zip(before.sections, after.sections, strict=True):
        if row.type == SHT_NOBITS or row.flags & SHF_ALLOC:
            continue
        for start, end in _outside(Range(row.offset, row.file_end), changed):
            place = new_row.offset + start - row.offset
            if _read(old, start, end - start) != _read(new, place, end - start):
                raise NotUnderstoodError(f"the section at {row.offset:#x} changed")


def _outside(whole: Range, parts: Iterable[Range]) -> Iterator[Range]:
    """What is left of a range without some parts in rising order."""
    at = whole.start
    for part in parts:
        if part.end <= whole.start or part.start >= whole.end:
            continue
        if at < part.start:
            yield Range(at, part.start)
        at = max(at, part.end)
    if at < whole.end:
        yield Range(at, whole.end)


def _read(span: Span, offset: int, size: int) -> bytes:
    return span.bytes_at(offset, size, "section")


def _same(old: Span, new: Span, layout: Layout, part: Range, address: int) -> bool:
    """Whether bytes of the old file are in the new one, in one segment, for the address that they had."""
    segment = next(
        s for s in layout.segments if s.type == PT_LOAD and s.address <= address < s.address + s.memory_size
    )
    size = part.end - part.start
    place = address - segment.address + segment.offset
    if place + size > segment.file_end:
        return False
    return all(
        old.data[part.start + at : part.start + min(at + _PIECE, size)]
        == new.data[place + at : place + min(at + _PIECE, size)]
        for at in range(0, size, _PIECE)
    )


def _address(layout: Layout, offset: int) -> int:
    return next(
        s.address + offset - s.offset
        for s in layout.segments
        if s.type == PT_LOAD and s.offset <= offset < s.file_end
    )


def _entries(span: Span, container: Container) -> list[bytes]:
    return [span.data[entry.header_offset : entry.end] for entry in container.entries]


def _compare_code(old: Span, new: Span, plan: Plan, layout: Layout) -> None:
    """Each container is where it was, and has the entries that were to stay, byte by byte and in order."""
    after = {
        _address(layout, container.offset): container
        for container in read_bytes(new.data, "elf").containers
        if not is_embedded(container)
    }
    slimmed = {item.start: item for item in plan.slimmed}
    containers = [c for c in read_bytes(old.data, "elf").containers if not is_embedded(c)]
    if len(containers) != len(after):
        raise NotUnderstoodError(f"{len(containers)} containers became {len(after)}")
    for container in containers:
        item = slimmed.get(container.offset)
        stay = item.kept if item else container.entries
        expected = [old.data[entry.header_offset : entry.end] for entry in stay]
        found = after.get(_address(plan.layout, container.offset))
        if found is None or _entries(new, found) != expected:
            raise NotUnderstoodError(
                f"the container at {container.offset:#x} has not the code that was to stay"
            )
    for entry in plan.zeroed:
        if _read(new, plan.moved(entry.payload_offset), entry.payload_size).strip(b"\0"):
            raise NotUnderstoodError(f"the embedded code at {entry.payload_offset:#x} is still there")
