"""ELF headers and section tables, 32 and 64 bit, both byte orders: what the census needs and no more.

Sources: System V ABI (gABI) chapters 4 and 5. pyelftools reads the same, but is not in every image, and takes
longer over one large library than the census may take over all.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from tooling.census.reader.span import MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.census.reader.span import Span

MAGIC = b"\x7fELF"
#: e_machine of a cubin.
EM_CUDA = 190
#: e_type of an object file.
ET_REL = 1
SHT_NOBITS = 8
SHT_SYMTAB = 2
#: e_shstrndx when the index is too large for its field, then it is in sh_link of section 0.
_SHN_XINDEX = 0xFFFF
#: More sections than any real object has; bounds the work a hostile file can ask for.
MAX_SECTIONS = 500_000
_CLASS_32, _CLASS_64 = 1, 2


class Section(NamedTuple):
    """A row of the section table; offsets are absolute in the file, sizes in bytes."""

    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    entry_size: int


class Elf(NamedTuple):
    """What the header says, and sections in table order."""

    type: int
    machine: int
    flags: int
    os_abi: int
    sections: tuple[Section, ...]

    def section(self, name: str) -> Section | None:
        """The first section of that name."""
        return next((section for section in self.sections if section.name == name), None)


class _Layout(NamedTuple):
    header: struct.Struct
    section: struct.Struct


def _layout(bits: int, order: str) -> _Layout:
    word = "Q" if bits == 64 else "I"  # noqa: PLR2004
    return _Layout(
        # e_type .. e_shstrndx, from offset 16
        header=struct.Struct(f"{order}HHI{word}{word}{word}IHHHHHH"),
        section=struct.Struct(f"{order}II{word}{word}{word}{word}II{word}{word}"),
    )


_LAYOUTS = {(bits, order): _layout(bits, order) for bits in (32, 64) for order in "<>"}


def read_elf(span: Span, wanted: Iterable[str] = ()) -> Elf:
    """Read header and section table of the ELF file that a span holds.

    Args:
        span: The file.
        wanted: Names of the only sections to return from a host file, which is several times faster than all;
            a cubin always comes with all of them.

    Raises:
        MalformedError: Not an ELF file, cut off, contradictory, or without section table.
    """
    ident = span.bytes_at(span.start, 16, "ELF identification")
    if ident[:4] != MAGIC:
        raise MalformedError(f"no ELF file at {span.start:#x}")
    if ident[4] not in (_CLASS_32, _CLASS_64) or ident[5] not in (1, 2):
        raise MalformedError(f"ELF class {ident[4]} or byte order {ident[5]} does not exist")
    layout = _LAYOUTS[32 * ident[4], "<>"[ident[5] - 1]]
    fields = span.unpack(layout.header, span.start + 16, "ELF header")
    kind, machine, _, _, phoff, shoff, flags, _, phentsize, phnum, shentsize, shnum, names = fields
    if shoff == 0:
        raise MalformedError("no section table, so its device code cannot be found")
    if shentsize != layout.section.size:
        raise MalformedError(f"section table rows of {shentsize} bytes, {layout.section.size} expected")
    span.within(span.start + phoff, phnum * phentsize, "program headers")
    first = span.unpack(layout.section, span.start + shoff, "section table")
    shnum = shnum or first[5]
    names = first[6] if names == _SHN_XINDEX else names
    if shnum > MAX_SECTIONS:
        raise MalformedError(f"{shnum} sections, more than {MAX_SECTIONS}")
    table = span.bytes_at(span.start + shoff, shnum * shentsize, "section table")
    if names >= shnum:
        raise MalformedError(f"section {names} with the names does not exist, there are {shnum}")
    rows: Iterable[tuple[int, ...]] = layout.section.iter_unpack(table)
    where = layout.section.unpack_from(table, names * shentsize)
    strings = span.within(span.start + where[4], where[5], "section names")
    if wanted and machine != EM_CUDA:
        offsets = _offsets(span.data[strings.start : strings.end], wanted)
        rows = [row for row in rows if row[0] in offsets]
    return Elf(kind, machine, flags, ident[7], tuple(_section(row, strings, span.start) for row in rows))


def _section(row: tuple[int, ...], strings: Span, base: int) -> Section:
    name = strings.text_at(strings.start + row[0], "section name") if row[1] else ""
    return Section(name, row[1], row[2], base + row[4], row[5], row[6], row[7], row[9])


def _offsets(strings: bytes, wanted: Iterable[str]) -> set[int]:
    """Where the wanted names are in the table of names; linkers let a name begin inside a longer one."""
    found = set()
    for name in wanted:
        text = name.encode() + b"\0"
        at = strings.find(text)
        while at >= 0:
            found.add(at)
            at = strings.find(text, at + 1)
    return found
