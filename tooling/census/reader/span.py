"""A bounded view of a file: every read is checked, so that a hostile offset ends in one clear message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import mmap
    import struct


class MalformedError(ValueError):
    """A file is not what its first bytes promise: truncated, contradictory or beyond our limits."""


class Span:
    """The bytes `start` to `end` of a buffer, addressed by absolute offsets of that buffer.

    Attributes:
        data: The whole file.
        start: First byte that belongs to the span.
        end: One past the last.
    """

    __slots__ = ("data", "end", "start")

    def __init__(self, data: bytes | mmap.mmap, start: int = 0, end: int | None = None) -> None:
        self.data = data
        self.start = start
        self.end = len(data) if end is None else end

    def within(self, offset: int, size: int, what: str) -> Span:
        """A part of this span.

        Args:
            offset: Absolute offset in bytes.
            size: Bytes.
            what: Name for the message, e.g. `section .text`.

        Raises:
            MalformedError: It is not wholly inside.
        """
        if offset < self.start or size < 0 or offset + size > self.end:
            raise MalformedError(
                f"{what} at {offset:#x} with {size} bytes is outside {self.start:#x}..{self.end:#x}"
            )
        return Span(self.data, offset, offset + size)

    def unpack(self, layout: struct.Struct, offset: int, what: str) -> tuple[Any, ...]:
        """The fields of a structure at an absolute offset.

        Raises:
            MalformedError: The structure is cut off.
        """
        if offset < self.start or offset + layout.size > self.end:
            raise MalformedError(f"{what} at {offset:#x} is cut off at {self.end:#x}")
        return layout.unpack_from(self.data, offset)

    def bytes_at(self, offset: int, size: int, what: str) -> bytes:
        """A copy of some bytes at an absolute offset.

        Raises:
            MalformedError: They are not wholly inside.
        """
        self.within(offset, size, what)
        return self.data[offset : offset + size]

    def text_at(self, offset: int, what: str) -> str:
        """The zero-terminated string at an absolute offset.

        Raises:
            MalformedError: It has no end inside the span.
        """
        end = self.data.find(b"\0", offset, self.end) if self.start <= offset < self.end else -1
        if end < 0:
            raise MalformedError(f"{what} at {offset:#x} has no end before {self.end:#x}")
        return self.data[offset:end].decode("utf-8", "backslashreplace")
