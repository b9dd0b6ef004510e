"""The kernels that we compile: did they compile to something, and can it run on the target?"""

from __future__ import annotations

import contextlib
import mmap
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import yaml
import zstandard
from pydantic import Field

from tooling.census.architecture import Architecture, parse_architecture, runs_on
from tooling.census.reader.cubin import KernelUsage, read_kernels
from tooling.census.reader.files import kind_of, read_bytes
from tooling.census.reader.span import MalformedError, Span
from tooling.errors import InputError
from tooling.gates.records import Check, Verdict
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tooling.census.reader.fatbin import Entry

_MAGIC_SIZE = 8
#: No cubin or PTX text is larger when expanded; bounds what a hostile size field can ask for.
MAX_EXPANDED = 1 << 30
_COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)


class _Empty(Record):
    instructions: int
    registers: int
    meant: tuple[str, ...]


class _Facts(Record):
    shared_memory: dict[str, int]
    empty: _Empty
    banned_ptx: dict[str, tuple[str, ...]]
    stub_messages: tuple[str, ...]


class KernelLimits(Record):
    """What a stack allows its own kernels.

    Attributes:
        spill_bytes: Most bytes that one kernel may spill, stores and loads each.
        may_be_empty: Names, or parts of names, of kernels that are meant to do nothing.
    """

    spill_bytes: int = Field(default=0, ge=0)
    may_be_empty: tuple[str, ...] = ()


class Kernel(Record):
    """One kernel of a file, with the sizes of `KernelUsage`."""

    file: str
    target: str
    name: str
    registers: int
    stack: int
    shared: int
    spill_stores: int
    spill_loads: int
    code: int
    instructions: int


@cache
def _facts() -> _Facts:
    text = files("tooling.census").joinpath("data/kernel-limits.yaml").read_text("utf-8")
    return _Facts.model_validate(yaml.safe_load(text))


def expand(span: Span, entry: Entry) -> bytes:
    """The cubin or the PTX text of an entry.

    Raises:
        MalformedError: It is compressed in a way that we cannot undo, or cut off.
    """
    stored = span.bytes_at(entry.payload_offset, min(entry.stored_size, entry.payload_size), "payload")
    if not entry.compression:
        return stored
    if entry.compression != "zstd":
        raise MalformedError(f"{entry.compression} compression: compile with -Xfatbin=-compress-mode=size")
    if entry.expanded_size > MAX_EXPANDED:
        raise MalformedError(f"a payload of {entry.expanded_size} bytes, more than {MAX_EXPANDED}")
    try:
        expanded = zstandard.ZstdDecompressor().decompress(stored, max_output_size=entry.expanded_size)
    except zstandard.ZstdError as error:
        raise MalformedError(f"payload at {entry.payload_offset:#x} cannot be expanded: {error}") from error
    if len(expanded) != entry.expanded_size:
        raise MalformedError(f"payload at {entry.payload_offset:#x} expands to {len(expanded)} bytes")
    return expanded


def check_kernels(
    path: Path, device: str, limits: KernelLimits
) -> tuple[tuple[Kernel, ...], tuple[Check, ...]]:
    """Look at every kernel of a library, archive, fat binary, cubin or PTX file that is meant for a device.

    Args:
        path: The file.
        device: Its target, e.g. `12.0`.
        limits: What the stack allows.

    Returns:
        The kernels, and the checks on them.

    Raises:
        InputError: The file cannot be read, or is none of these.
    """
    target = parse_architecture(device)
    try:
        with (
            path.open("rb") as file,
            contextlib.closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as data,
        ):
            return _check(path.name, data, target, limits)
    except (OSError, ValueError) as error:
        raise InputError(f"{path.name} cannot be read: {error}", where=str(path)) from error


def _check(
    name: str, data: bytes | mmap.mmap, target: Architecture, limits: KernelLimits
) -> tuple[tuple[Kernel, ...], tuple[Check, ...]]:
    kind = kind_of(data[:_MAGIC_SIZE], name)
    if kind is None:
        raise MalformedError("not a library, archive, fat binary, cubin or PTX file")
    span = Span(data)
    found: list[tuple[str, KernelUsage]] = []
    messages: list[str] = []
    banned: list[str] = []
    for container in read_bytes(data, kind).containers:
        for entry in container.entries:
            if not runs_on(entry.kind, parse_architecture(entry.arch), target):
                continue
            content = expand(span, entry)
            messages.extend(text for text in _facts().stub_messages if text.encode() in content)
            if entry.kind == "ptx":
                banned.extend(f"PTX {entry.arch}: {line}" for line in _banned(content, target))
            else:
                arch, usages = read_kernels(Span(content))
                found.extend((arch, usage) for usage in usages)
    records = tuple(_kernel(name, arch, usage) for arch, usage in found)
    used = [usage for _, usage in found]
    banned.extend(f"{usage.name}: {usage.multimem} multimem instructions" for usage in used if usage.multimem)
    return records, tuple(_checks(used, messages, banned, target, limits))


def _kernel(file: str, target: str, usage: KernelUsage) -> Kernel:
    fields = usage._asdict()
    return Kernel(
        file=file, target=target, **{name: fields[name] for name in Kernel.model_fields if name in fields}
    )


def _banned(ptx: bytes, target: Architecture) -> Iterator[str]:
    """Lines of PTX text with an instruction that the target does not have."""
    names = _facts().banned_ptx.get(str(target.major), ())
    if not names:
        return
    pattern = re.compile(rb"^[^\n]*\b(?:%s)\.[^\n]*" % b"|".join(name.encode() for name in names), re.MULTILINE)
    for match in pattern.finditer(_COMMENT.sub(b"", ptx)):
        yield match[0].strip().decode("utf-8", "backslashreplace")[:200]


def _checks(
    usages: list[KernelUsage],
    messages: list[str],
    banned: list[str],
    target: Architecture,
    limits: KernelLimits,
) -> Iterator[Check]:
    yield Check(
        name="kernels-found",
        verdict=Verdict.PASS if usages else Verdict.FAIL,
        seen=f"{len(usages)} kernels for {target.capability}"
        if usages
        else f"no kernel for {target.capability}: nothing was checked",
        value=len(usages),
        threshold=1,
    )
    yield _none_of("kernels-not-empty", "compiled to nothing", list(_empty(usages, limits)))
    yield _none_of(
        "kernels-can-end",
        "have no EXIT and can only trap",
        [f"{usage.name}: {usage.traps} traps" for usage in usages if usage.traps and not usage.exits],
    )
    yield _none_of("no-stub-messages", "messages of left-out kernels", sorted(set(messages)))
    yield _shared(usages, target)
    yield _none_of(
        "spills",
        f"spill more than {limits.spill_bytes} bytes",
        [
            f"{usage.name}: {usage.spill_stores} bytes of stores, {usage.spill_loads} of loads"
            for usage in usages
            if max(usage.spill_stores, usage.spill_loads) > limits.spill_bytes
        ],
    )
    yield _none_of("instructions", f"uses of instructions that {target.capability} does not have", banned)


def _none_of(name: str, what: str, found: list[str]) -> Check:
    return Check(
        name=name,
        verdict=Verdict.FAIL if found else Verdict.PASS,
        seen=f"{len(found)} {what}",
        value=len(found),
        threshold=0,
        details=tuple(found),
    )


def _empty(usages: list[KernelUsage], limits: KernelLimits) -> Iterator[str]:
    empty = _facts().empty
    for usage in usages:
        allowed = any(name in usage.name for name in (*limits.may_be_empty, *empty.meant))
        tiny = usage.instructions <= empty.instructions and usage.registers <= empty.registers
        if tiny and not allowed:
            yield f"{usage.name}: {usage.instructions} instructions, {usage.registers} registers"


def _shared(usages: list[KernelUsage], target: Architecture) -> Check:
    """Static shared memory against the device; what a launch adds dynamically is not in a cubin."""
    limit = _facts().shared_memory.get(target.capability)
    if limit is None:
        return Check(
            name="shared-memory",
            verdict=Verdict.INCONCLUSIVE,
            seen=f"the shared memory of {target.capability} is not in our table",
        )
    most = max((usage.shared - usage.shared_reserved for usage in usages), default=0)
    bad = [
        f"{usage.name}: {usage.shared - usage.shared_reserved} bytes"
        for usage in usages
        if usage.shared - usage.shared_reserved > limit
    ]
    return Check(
        name="shared-memory",
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        seen=f"{len(bad)} kernels need more than {limit} bytes"
        if bad
        else f"at most {most} bytes a block, static",
        value=most,
        unit="bytes",
        threshold=limit,
        details=tuple(bad),
    )
