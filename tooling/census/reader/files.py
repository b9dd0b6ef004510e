"""One file: what kind it is by its first bytes, and the device code in it."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from tooling.census.reader import archive, elf, fatbin
from tooling.census.reader.cubin import cubin_target
from tooling.census.reader.fatbin import Container, Entry
from tooling.census.reader.span import MalformedError, Span

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC_SIZE = 8
_LIBRARY_NAME = re.compile(r"\.(?:so(?:\.\d+)*|a|cubin|fatbin)$")
#: A `.so` can also be a text for the linker that names the real one.
_LINKER_SCRIPTS = (b"/*", b"INPUT", b"GROUP", b"OUTPUT_")
_PTX_HEAD = 1 << 16
_PTX_VERSION = re.compile(rb"^\s*\.version\s+(\d+)\.(\d+)", re.MULTILINE)
_PTX_TARGET = re.compile(rb"^\s*\.target\s+sm_(\d+)([af]?)\b", re.MULTILINE)
_SUFFIX_FLAGS = {b"": 0, b"a": fatbin.FLAG_ARCH_SPECIFIC, b"f": fatbin.FLAG_FAMILY_SPECIFIC}


class DeviceCode(NamedTuple):
    """The device code of one file.

    Attributes:
        kind: `elf` (shared library or program), `object`, `archive`, `cubin`, `fatbin` or `ptx`.
        size: Of the file, bytes.
        containers: In file order; none means that the file carries no device code.
    """

    kind: str
    size: int
    containers: tuple[Container, ...]


def read_file(path: str | os.PathLike[str]) -> DeviceCode | None:
    """The device code of a file, or None when its first bytes say that it is something else.

    Raises:
        MalformedError: Its name or its first bytes promise device code, and then it is not such a file.
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        magic = os.pread(descriptor, _MAGIC_SIZE, 0)
        kind = kind_of(magic, os.fspath(path))
        if kind is None:
            return None
        if not magic:
            raise MalformedError("it is empty")
        with contextlib.closing(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)) as data:
            return read_bytes(data, kind)
    finally:
        os.close(descriptor)


def kind_of(magic: bytes, name: str = "") -> str | None:
    """What a file is by its first bytes and, for PTX, which is text, by its name.

    Args:
        magic: The first 8 bytes, fewer when the file is shorter.
        name: Its path.

    Returns:
        `elf`, `fatbin`, `archive` or `ptx`; None for anything else.

    Raises:
        MalformedError: The name is that of a library and the bytes are not: empty, a placeholder, damaged.
    """
    if magic.startswith(elf.MAGIC):
        return "elf"
    if magic.startswith(fatbin.MAGIC):
        return "fatbin"
    if magic in (archive.MAGIC, archive.THIN_MAGIC):
        return "archive"
    if name.endswith(".ptx"):
        return "ptx"
    if _LIBRARY_NAME.search(name) and not magic.startswith(_LINKER_SCRIPTS):
        raise MalformedError(
            f"named like a library, but {f'it begins with {magic!r}' if magic else 'it is empty'}"
        )
    return None


def read_bytes(data: bytes | mmap.mmap, kind: str) -> DeviceCode:
    """The device code in the content of a file of a known kind.

    Raises:
        MalformedError: The content is not of that kind.
    """
    span = Span(data)
    if kind == "fatbin":
        containers = tuple(fatbin.read_containers(span))
    elif kind == "archive":
        containers = tuple(
            container
            for member in archive.read_members(span)
            if data[member.span.start : member.span.start + 4] == elf.MAGIC
            for container in _of_elf(member.span, member.name)[1]
        )
    elif kind == "ptx":
        containers = (_of_ptx(span),)
    else:
        kind, found = _of_elf(span)
        containers = tuple(found)
    return DeviceCode(kind, len(data), containers)


def _of_elf(span: Span, member: str = "") -> tuple[str, list[Container]]:
    header = elf.read_elf(span, (*fatbin.SECTIONS, *fatbin.EMBEDDING_SECTIONS))
    if header.machine == elf.EM_CUDA:
        for section in header.sections:
            if section.type != elf.SHT_NOBITS:
                span.within(section.offset, section.size, f"section {section.name}")
        target, flags = cubin_target(span, header)
        size = span.end - span.start
        whole = Entry("sass", target, (0, 0), flags, span.start, 0, size, size, size, "")
        return "cubin", [Container("", member, span.start, 0, size, (whole,))]
    kind = "object" if header.type == elf.ET_REL else "elf"
    return kind, list(_of_host_elf(span, header, member))


def _of_host_elf(span: Span, header: elf.Elf, member: str) -> Iterator[Container]:
    for section in header.sections:
        if not section.size:
            continue
        if section.type == elf.SHT_NOBITS:
            raise MalformedError(f"section {section.name} was stripped to a size without content")
        body = span.within(section.offset, section.size, f"section {section.name}")
        read = fatbin.read_containers if section.name in fatbin.SECTIONS else fatbin.find_containers
        yield from read(body, section.name, member)


def _of_ptx(span: Span) -> Container:
    head = bytes(span.data[: min(_PTX_HEAD, span.end)])
    version, target = _PTX_VERSION.search(head), _PTX_TARGET.search(head)
    if not version or not target:
        raise MalformedError("a PTX file without .version or .target in its first 64 KiB")
    flags = _SUFFIX_FLAGS[target[2]]
    entry = Entry(
        "ptx",
        fatbin.arch_name(int(target[1]), flags),
        (int(version[1]), int(version[2])),
        flags,
        0,
        0,
        span.end,
        span.end,
        span.end,
        "",
    )
    return Container("", "", 0, 0, span.end, (entry,))
