"""What stays of the fat binaries of a file: pure decisions, no file is touched here.

A container keeps its address, since the program points at it, and its entries move together behind its header
in their old order, as `nvprune` does it for object files. All fields of an entry are relative to the entry or
say nothing of places, and containers begin on any multiple of 8, so that an entry may begin on any other one
too. What is behind the last entry reads as zeros.

A container may end up without entries. `cuobjdump` accepts that, while it refuses an entry without payload.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from tooling.census.reader import fatbin
from tooling.census.reader.compatibility import parse, runs_on
from tooling.prune.refusal import NotUnderstoodError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Sequence

    from tooling.census.reader.compatibility import Architecture
    from tooling.census.reader.fatbin import Container, Entry

#: Entries, and so everything after them, begin on a multiple of this.
_ALIGNMENT = 8
_CONTAINER_SIZE = struct.Struct("<Q")
#: Offset of the field that holds the size of all entries, in a container's header.
_CONTAINER_SIZE_AT = 8


class Policy(NamedTuple):
    """What a run keeps.

    Attributes:
        targets: The devices that the code must go on serving; at least one.
        drop_ptx: Patterns of files whose PTX goes where machine code in the same container serves every target.
        embedded: Patterns of files whose embedded containers are pruned too, by zeroing payloads.
        delete: Patterns of files that are deleted, which they may be only without code for any target.
        skip: Patterns of files whose device code is left as it is.
        drop: Patterns of files of any kind that are deleted, under the same condition.
        strip: Patterns of libraries that lose symbol tables and debugging information.
        link: Patterns of files that become names of one file where a folder has equal ones.
    """

    targets: tuple[Architecture, ...]
    drop_ptx: tuple[str, ...] = ()
    embedded: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    strip: tuple[str, ...] = ()
    link: tuple[str, ...] = ()


class Slimmed(NamedTuple):
    """A container before and after. Offsets are absolute in the old file, sizes in bytes.

    Attributes:
        container: As read.
        kept: The entries that stay, in order.
        removed: The entries that go.
    """

    container: Container
    kept: tuple[Entry, ...]
    removed: tuple[Entry, ...]

    @property
    def start(self) -> int:
        """Where the container begins."""
        return self.container.offset

    @property
    def end(self) -> int:
        """One past its last entry, as it was."""
        return self.container.offset + self.container.header_size + self.container.size

    @property
    def new_end(self) -> int:
        """One past its last entry, as it will be, in old coordinates."""
        kept = sum(entry.end - entry.header_offset for entry in self.kept)
        return self.container.offset + self.container.header_size + kept


def serves(entry: Entry, targets: Sequence[Architecture]) -> bool:
    """Whether an entry may be needed by a target; entries of unknown kinds always may."""
    if entry.kind not in ("sass", "ptx"):
        return True
    code = parse(entry.arch)
    return any(runs_on(entry.kind, code, target) for target in targets)


def _dispensable(container: Container, targets: Sequence[Architecture]) -> bool:
    """Whether machine code in a container serves every target, so that its PTX is for others."""
    machine_code = [entry for entry in container.entries if entry.kind == "sass" and entry.payload_size]
    return all(any(serves(entry, (target,)) for entry in machine_code) for target in targets)


def slim(container: Container, policy: Policy, *, drop_ptx: bool = False) -> Slimmed | None:
    """Decide what stays of a container; None when all of it does.

    Raises:
        NotUnderstoodError: Its parts are not where such a container has them.
    """
    without_ptx = drop_ptx and _dispensable(container, policy.targets)
    kept: list[Entry] = []
    removed: list[Entry] = []
    for entry in container.entries:
        stays = serves(entry, policy.targets) and not (without_ptx and entry.kind == "ptx")
        (kept if stays else removed).append(entry)
    if not removed:
        return None
    for entry in container.entries:
        if entry.header_size % _ALIGNMENT or entry.payload_size % _ALIGNMENT:
            raise NotUnderstoodError(f"fat binary entry at {entry.header_offset:#x} has an odd size")
    return Slimmed(container, tuple(kept), tuple(removed))


def new_head(data: bytes | mmap.mmap | memoryview, slimmed: Slimmed) -> bytes:
    """The header of a container with its new size.

    Args:
        data: The old file.
        slimmed: The decision.
    """
    container = slimmed.container
    body = slimmed.new_end - container.offset - container.header_size
    head = bytearray(data[container.offset : container.offset + container.header_size])
    _CONTAINER_SIZE.pack_into(head, _CONTAINER_SIZE_AT, body)
    return bytes(head)


def is_embedded(container: Container) -> bool:
    """Whether a library finds this container on its own, so that its inside must stay where it is."""
    return container.section not in fatbin.SECTIONS
