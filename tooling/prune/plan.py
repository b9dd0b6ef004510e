"""What is to be done to one file, decided from its tables; nothing is written here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tooling.census.reader import elf, fatbin
from tooling.census.reader.scan import matches
from tooling.prune.containers import Slimmed, is_embedded, new_head, serves, slim
from tooling.prune.layout import (
    SHT_PROGBITS,
    Layout,
    Range,
    Shrunk,
    mapped_parts,
    read_layout,
    shrink,
)
from tooling.prune.references import check_references
from tooling.prune.refusal import NotUnderstoodError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable

    from tooling.census.reader.fatbin import Container, Entry
    from tooling.census.reader.files import DeviceCode
    from tooling.census.reader.span import Span
    from tooling.prune.containers import Policy

#: Smallest range that is cut out of a file, bytes; smaller ones stay as zeros. Each range costs a program
#: header and two mappings at run time, of which a process may have 65,530 (vm.max_map_count). Over the
#: libraries of one CUDA 13 stack, 4 KiB makes 3,400 ranges and frees 2,390 MB, 64 KiB 2,283 and 2,359 MB.
LEAST_HOLE = 1 << 16


class Replacement(NamedTuple):
    """New content for bytes `start` to `end` of the old file: parts one after the other, then zeros."""

    start: int
    end: int
    parts: tuple[bytes | Range, ...]


class Plan(NamedTuple):
    """What is to be done to a file.

    Attributes:
        layout: As the file is now.
        slimmed: Containers that lose entries.
        zeroed: Entries of embedded containers whose payload becomes zeros.
        shrunk: The tables of the smaller file; None when the file keeps its size.
        not_shrunk: Why it keeps its size.
    """

    layout: Layout
    slimmed: tuple[Slimmed, ...]
    zeroed: tuple[Entry, ...]
    shrunk: Shrunk | None
    not_shrunk: str

    @property
    def holes(self) -> tuple[Range, ...]:
        """The ranges that leave the file."""
        return self.shrunk.holes if self.shrunk else ()

    @property
    def new_size(self) -> int:
        """Bytes of the new file."""
        return self.shrunk.layout.size if self.shrunk else self.layout.size

    def moved(self, offset: int) -> int:
        """Where a byte of the old file is in the new one."""
        return self.shrunk.moved(offset) if self.shrunk else offset

    def replacements(self, data: bytes | mmap.mmap | memoryview) -> list[Replacement]:
        """What changes in the old file apart from its tables, in file order."""
        changes = [
            Replacement(
                item.start,
                item.end,
                (new_head(data, item), *(Range(entry.header_offset, entry.end) for entry in item.kept)),
            )
            for item in self.slimmed
        ]
        changes += [Replacement(entry.payload_offset, entry.end, ()) for entry in self.zeroed]
        return sorted(changes, key=lambda change: change.start)


def foreign(containers: Iterable[Container], policy: Policy) -> list[Entry]:
    """The entries with content that serve no target."""
    return [
        entry
        for container in containers
        for entry in container.entries
        if entry.payload_size and not serves(entry, policy.targets)
    ]


def make_plan(span: Span, name: str, code: DeviceCode, policy: Policy) -> Plan | None:
    """Decide what to do to a file; None when there is nothing to do.

    Args:
        span: The file.
        name: Its path, which the policy's patterns are matched against.
        code: Its device code.
        policy: What is kept.

    Raises:
        MalformedError: A table is cut off.
        NotUnderstoodError: There is something to do, and the file is not as we know them.
    """
    loaded = [container for container in code.containers if not is_embedded(container)]
    embedded = [container for container in code.containers if is_embedded(container)]
    drop_ptx = matches(name, policy.drop_ptx)
    candidates = foreign(embedded, policy) if matches(name, policy.embedded) else []
    zeroed = [entry for entry in candidates if not _is_zero(span, entry)]
    if code.kind != "elf":
        if foreign(code.containers, policy):
            raise NotUnderstoodError(f"of kind {code.kind}; only linked libraries are pruned")
        return None
    slimmed = [item for container in loaded if (item := slim(container, policy, drop_ptx=drop_ptx))]
    if not slimmed and not zeroed:
        return None
    layout = read_layout(span)
    if slimmed:
        _check_containers(span, layout, loaded)
    shrunk, reason = None, "no container that is loaded by the CUDA runtime loses anything"
    if slimmed:
        try:
            shrunk = shrink(layout, [Range(item.new_end, item.end) for item in slimmed], LEAST_HOLE)
            reason = ""
        except NotUnderstoodError as error:
            reason = str(error)
    return Plan(layout, tuple(slimmed), tuple(zeroed), shrunk, reason)


def _check_containers(span: Span, layout: Layout, containers: list[Container]) -> None:
    """Nothing but the starts of the containers may be pointed at."""
    parts = _mapped_code(span, layout)
    addresses = set()
    for container in containers:
        part = next(((file, at) for file, at in parts if file.start <= container.offset < file.end), None)
        if part is None:
            raise NotUnderstoodError(f"the container at {container.offset:#x} is in no section of its kind")
        addresses.add(container.offset - part[0].start + part[1])
    check_references(span, layout, [(at, at + file.end - file.start) for file, at in parts], addresses)


def _mapped_code(span: Span, layout: Layout) -> list[tuple[Range, int]]:
    """The sections that the CUDA runtime or the device linker takes code from, with their addresses."""
    found = []
    for row, section in zip(layout.sections, elf.read_elf(span).sections, strict=True):
        if section.name in fatbin.SECTIONS and row.size:
            if row.type != SHT_PROGBITS:
                raise NotUnderstoodError(f"section {section.name} is of type {row.type}")
            found.extend(mapped_parts(layout, row))
    return found


def _is_zero(span: Span, entry: Entry) -> bool:
    return not span.data[entry.payload_offset : entry.end].strip(b"\0")
