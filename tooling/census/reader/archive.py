"""Static archives (`ar`): the members that are object files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tooling.census.reader.span import MalformedError, Span

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"!<arch>\n"
THIN_MAGIC = b"!<thin>\n"
_HEADER = 60
_END_OF_HEADER = b"`\n"
#: Symbol tables of GNU ar.
_TABLES = frozenset({"/", "/SYM64/"})


class Member(NamedTuple):
    """A member of an archive."""

    name: str
    span: Span


def read_members(span: Span) -> Iterator[Member]:
    """The members of an archive in file order, symbol tables left out.

    Raises:
        MalformedError: A thin archive (its members are other files), or one that is cut off.
    """
    magic = span.bytes_at(span.start, 8, "archive magic")
    if magic == THIN_MAGIC:
        raise MalformedError("a thin archive: its members are other files")
    if magic != MAGIC:
        raise MalformedError("not an archive")
    long_names: Span | None = None
    at = span.start + 8
    while at < span.end:
        header = span.bytes_at(at, _HEADER, "archive member header")
        size_text = header[48:58].strip()
        if header[58:] != _END_OF_HEADER or not size_text.isdigit():
            raise MalformedError(f"no archive member at {at:#x}")
        size = int(size_text)
        name = header[:16].decode("latin-1").rstrip()
        body = span.within(at + _HEADER, size, f"archive member {name!r}")
        at = body.end + size % 2
        if name == "//":
            long_names = body
        elif name not in _TABLES:
            yield _named(name, body, long_names)


def _named(name: str, body: Span, long_names: Span | None) -> Member:
    """Resolve the two ways of writing a name longer than its field."""
    if name.startswith("#1/") and name[3:].isdigit():
        length = int(name[3:])
        text = body.bytes_at(body.start, length, "archive member name").rstrip(b"\0")
        return Member(text.decode("utf-8", "backslashreplace"), Span(body.data, body.start + length, body.end))
    if name.startswith("/") and name[1:].isdigit():
        offset = int(name[1:])
        if long_names is None or long_names.start + offset >= long_names.end:
            raise MalformedError(f"archive member name {name} is not in the table of names")
        start = long_names.start + offset
        end = long_names.data.find(b"\n", start, long_names.end)
        raw = long_names.data[start : end if end >= 0 else long_names.end]
        return Member(raw.rstrip(b"/").decode("utf-8", "backslashreplace"), body)
    return Member(name.rstrip("/"), body)
