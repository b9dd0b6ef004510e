"""Cubins: the target of one, and what each of its kernels uses, from the ELF sections that ptxas writes.

NVIDIA does not document these sections. What is read here was found by compiling kernels whose resources are
known (ptxas 12.8 and 13.0, sm_80 to sm_121) and is held against `cuobjdump --dump-resource-usage` by the tests.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, NamedTuple

from tooling.census.reader.elf import EM_CUDA, SHT_NOBITS, SHT_SYMTAB, Elf, Section, read_elf
from tooling.census.reader.fatbin import FLAG_ARCH_SPECIFIC, FLAG_FAMILY_SPECIFIC, arch_name
from tooling.census.reader.span import MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.census.reader.span import Span

#: e_ident[EI_OSABI] up to CUDA 12 for targets before sm_100; the newer layout has 0x41.
_OSABI_OLD = 0x33
_OLD_ARCH_SPECIFIC = 0x800
_NEW_ARCH_SPECIFIC = 0x8
_COMPAT_ARCH_SPECIFIC = 0x09
_TOOL_ARCH = re.compile(rb"-arch[ =]sm_\d+f\b")
_TOOL_NOTE_LIMIT = 4096

_ATTRIBUTE = struct.Struct("<BBH")
_FORMAT_BYTE, _FORMAT_SIZED = 2, 4
_FRAME_SIZE, _STACK_SIZE, _REGISTERS = 0x11, 0x12, 0x2F
_ANNOTATED_INSTRUCTIONS, _SPILL = 0x55, 1
_PAIR = struct.Struct("<II")
_SYMBOL = struct.Struct("<IBBHQQ")
_STT_FUNC, _STO_ENTRY = 2, 0x10
_RESERVED_SHARED = ".nv.reservedSmem.cap"

_INSTRUCTION = struct.Struct("<QQ")
_OPCODE = 0xFFF
#: Low 12 bits of the 128-bit instructions of sm_70 and newer, as `nvdisasm -hex` shows them.
_EXIT, _BRA, _NOP, _TRAP = 0x94D, 0x947, 0x918, 0x95C
_STORE_LOCAL, _LOAD_LOCAL = 0x387, 0x983
_MULTIMEM_LOAD = 0x9A5
#: Bits 73 to 75 of a load or store: the width in bytes.
_WIDTHS = (1, 1, 2, 2, 4, 8, 16, 16)


class KernelUsage(NamedTuple):
    """What one kernel of a cubin uses; sizes in bytes.

    Attributes:
        name: Mangled name.
        registers: A thread.
        stack: Stack frame of the kernel itself: local arrays and spills.
        stack_with_calls: The same with every function it calls.
        shared: Static shared memory of a block, with what the driver reserves.
        shared_reserved: The driver's part of it, 0 or 1,024.
        spill_stores: Stored to local memory because registers ran out, one execution of each instruction.
        spill_loads: Loaded back.
        code: Size of the code section.
        instructions: Without the padding at the end.
        exits: How many of them are EXIT; a kernel without any can only trap or hang.
        traps: How many of them are traps.
        multimem: How many of them reduce through a multicast address.
    """

    name: str
    registers: int
    stack: int
    stack_with_calls: int
    shared: int
    shared_reserved: int
    spill_stores: int
    spill_loads: int
    code: int
    instructions: int
    exits: int
    traps: int
    multimem: int


def attributes(span: Span, section: Section) -> Iterator[tuple[int, bytes]]:
    """The attributes of a `.nv.info*` or `.nv.compat` section: number and value.

    Raises:
        MalformedError: The section is cut off.
    """
    body = span.within(section.offset, section.size, f"section {section.name}")
    at = body.start
    while at < body.end:
        form, number, value = body.unpack(_ATTRIBUTE, at, f"attribute of {section.name}")
        at += _ATTRIBUTE.size
        if form == _FORMAT_SIZED:
            yield number, body.bytes_at(at, value, f"attribute value of {section.name}")
            at += value
        else:
            yield number, value.to_bytes(2, "little")


def cubin_target(span: Span, elf: Elf) -> tuple[str, int]:
    """Target with suffix, and the flags of a fat binary entry that would say the same.

    A family-specific cubin differs from a plain one only in the command line that ptxas notes in it.

    Raises:
        MalformedError: Not a cubin.
    """
    if elf.machine != EM_CUDA:
        raise MalformedError(f"not a cubin: ELF machine {elf.machine}")
    if elf.os_abi == _OSABI_OLD:
        number, specific = elf.flags & 0xFF, bool(elf.flags & _OLD_ARCH_SPECIFIC)
    else:
        number, specific = elf.flags >> 8 & 0xFF, bool(elf.flags & _NEW_ARCH_SPECIFIC)
        compat = elf.section(".nv.compat")
        if compat and not specific:
            specific = any(
                key == _COMPAT_ARCH_SPECIFIC and value[:1] == b"\1" for key, value in attributes(span, compat)
            )
    flags = FLAG_ARCH_SPECIFIC if specific else 0
    note = elf.section(".note.nv.tkinfo")
    if note and not specific:
        text = span.bytes_at(note.offset, min(note.size, _TOOL_NOTE_LIMIT), "tool note")
        flags = FLAG_FAMILY_SPECIFIC if _TOOL_ARCH.search(text) else 0
    return arch_name(number, flags), flags


class _Symbols(NamedTuple):
    kernels: dict[int, str]
    reserved_shared: int


def _symbols(span: Span, elf: Elf) -> _Symbols:
    """Entry functions by symbol index, and the reserved shared memory."""
    table = next((section for section in elf.sections if section.type == SHT_SYMTAB), None)
    if table is None or table.link >= len(elf.sections):
        raise MalformedError("a cubin without symbol table")
    names = elf.sections[table.link]
    strings = span.within(names.offset, names.size, "symbol names")
    body = span.within(table.offset, table.size, "symbol table")
    kernels: dict[int, str] = {}
    reserved = 0
    for index in range(table.size // _SYMBOL.size):
        name, info, other, _, value, _ = _SYMBOL.unpack_from(span.data, body.start + index * _SYMBOL.size)
        if info & 0xF == _STT_FUNC and other & _STO_ENTRY:
            kernels[index] = strings.text_at(strings.start + name, "symbol name")
        elif value and strings.text_at(strings.start + name, "symbol name") == _RESERVED_SHARED:
            reserved = value
    return _Symbols(kernels, reserved)


class _Code(NamedTuple):
    instructions: int
    exits: int
    traps: int
    multimem: int
    spill_stores: int
    spill_loads: int


def _code(span: Span, text: Section, spills: set[int]) -> _Code:
    """Count what the instructions of a code section say."""
    body = span.within(text.offset, text.size - text.size % _INSTRUCTION.size, f"section {text.name}")
    data = span.data[body.start : body.end]
    opcodes = [low & _OPCODE for low, _ in _INSTRUCTION.iter_unpack(data)]
    used = len(opcodes)
    while used and opcodes[used - 1] == _NOP:
        used -= 1
    if used and opcodes[used - 1] == _BRA:
        used -= 1
    moved = {_STORE_LOCAL: 0, _LOAD_LOCAL: 0}
    for offset in spills:
        index = offset // _INSTRUCTION.size
        if index < len(opcodes) and opcodes[index] in moved:
            _, high = _INSTRUCTION.unpack_from(data, index * _INSTRUCTION.size)
            moved[opcodes[index]] += _WIDTHS[high >> 9 & 7]
    return _Code(
        used,
        opcodes.count(_EXIT),
        opcodes.count(_TRAP),
        opcodes.count(_MULTIMEM_LOAD),
        moved[_STORE_LOCAL],
        moved[_LOAD_LOCAL],
    )


def read_kernels(span: Span) -> tuple[str, tuple[KernelUsage, ...]]:
    """The target of the cubin that a span holds, and the usage of its kernels in the order of their names.

    Raises:
        MalformedError: Not a cubin, cut off, or a kernel without code or register count.
    """
    elf = read_elf(span)
    target, _ = cubin_target(span, elf)
    symbols = _symbols(span, elf)
    sections = {section.name: section for section in elf.sections}
    numbers: dict[int, dict[int, int]] = {_FRAME_SIZE: {}, _STACK_SIZE: {}, _REGISTERS: {}}
    if info := sections.get(".nv.info"):
        for key, value in attributes(span, info):
            if key in numbers and len(value) == _PAIR.size:
                symbol, number = _PAIR.unpack(value)
                numbers[key][symbol] = number
    kernels = []
    for index, name in sorted(symbols.kernels.items(), key=lambda item: item[1]):
        text = sections.get(f".text.{name}")
        if text is None or text.type == SHT_NOBITS:
            raise MalformedError(f"kernel {name} has no code section")
        registers = numbers[_REGISTERS].get(index, text.info >> 24)
        if not registers:
            raise MalformedError(f"kernel {name} has no register count")
        own = sections.get(f".nv.info.{name}")
        code = _code(span, text, set(_spill_offsets(span, own)) if own else set())
        shared = sections[f".nv.shared.{name}"].size if f".nv.shared.{name}" in sections else 0
        stack = numbers[_FRAME_SIZE].get(index, 0)
        kernels.append(
            KernelUsage(
                name=name,
                registers=registers,
                stack=stack,
                stack_with_calls=max(stack, numbers[_STACK_SIZE].get(index, 0)),
                shared=shared,
                shared_reserved=min(shared, symbols.reserved_shared),
                spill_stores=code.spill_stores,
                spill_loads=code.spill_loads,
                code=text.size,
                instructions=code.instructions,
                exits=code.exits,
                traps=code.traps,
                multimem=code.multimem,
            )
        )
    return target, tuple(kernels)


def _spill_offsets(span: Span, section: Section) -> Iterator[int]:
    """Offsets of the instructions that ptxas annotated as spills and refills."""
    for key, value in attributes(span, section):
        if key == _ANNOTATED_INSTRUCTIONS and len(value) % _PAIR.size == 0:
            yield from (offset for kind, offset in _PAIR.iter_unpack(value) if kind == _SPILL)
