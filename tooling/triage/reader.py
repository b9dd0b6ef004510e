"""Raw log bytes to lines: bounded in memory, whatever the bytes are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO

#: Bytes read at a time.
CHUNK_BYTES = 1 << 16
#: What is kept of one line, in bytes; the rest of it is read and dropped.
LINE_BYTES = 1 << 13

_ANSI = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,8}[@-~]|[@-Z\\-_])")
_BREAK = re.compile(rb"[\r\n]")
#: `docker logs --timestamps` and most log shippers.
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?\s{0,4}")
#: What engines put before their message: brackets with time and rank, level with date and file, process names.
_PREFIXES = re.compile(
    r"\s*(?:"
    r"\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?P<rank> [A-Z0-9 ]{2,40})?\]"
    r"|\[(?P<bare>(?:[DTPE]P\d+ ?){1,4})\]"
    r"|\((?P<process>[A-Za-z]\w{0,40}(?: [\w=]{1,40})? ?pid=\d+)\)"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?: \[[^\]]{1,200}\])?"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):? (?=\[)"
    r"|\[[\w/]{1,200}\.py:\d+\]"
    r"|\d\d:\d\d:\d\d\s"
    r"|\[rank(?P<torchrank>\d+)\]:(?:\[[^\]]{1,80}\])?"
    r")\s?"
)
_MOST_PREFIXES = 4


@dataclass(frozen=True)
class Line:
    """One line of a log.

    Attributes:
        number: From 1, in what was read.
        text: The line without colours, in full (as far as kept).
        message: The text without time stamps, ranks, levels and file names.
        rank: Worker rank that printed it, or empty.
        stamp: Time that the line carries, UTC where it names no zone; None without one.
    """

    number: int
    text: str
    message: str
    rank: str = ""
    stamp: datetime | None = None


def split_chunks(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines of a byte stream; carriage returns of progress bars end a line, empty lines are left out.

    At most `LINE_BYTES` of a line are kept, so that one endless line costs no memory.
    """
    kept = b""
    for chunk in chunks:
        start = 0
        for match in _BREAK.finditer(chunk):
            kept += chunk[start : min(match.start(), start + LINE_BYTES)]
            if kept.strip():
                yield kept[:LINE_BYTES].decode("utf-8", "replace")
            kept = b""
            start = match.end()
        kept = (kept + chunk[start : start + LINE_BYTES])[:LINE_BYTES]
    if kept.strip():
        yield kept.decode("utf-8", "replace")


def read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    """The bytes of a file or pipe, a bounded piece at a time."""
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def parse_line(number: int, text: str) -> Line:
    """Take a line apart."""
    text = _ANSI.sub("", text).replace("\x00", "").rstrip()
    stamp, message = _leading_stamp(text)
    rank = ""
    for _ in range(_MOST_PREFIXES):
        match = _PREFIXES.match(message)
        if not match:
            break
        if stamp is None:
            stamp = _leading_stamp(match.group().strip(" []"))[0]
        torch_rank = match["torchrank"]
        rank = (
            rank
            or (match["rank"] or match["bare"] or "").strip()
            or (f"rank{torch_rank}" if torch_rank else "")
            or (match["process"] or "")
        )
        message = message[match.end() :]
    return Line(number, text, message, rank, stamp)


def parse_stamp(text: str) -> datetime | None:
    """An ISO 8601 time with up to nanoseconds, as Docker writes it; None if it is none. No zone means UTC."""
    stamp, rest = _leading_stamp(text.strip())
    return stamp if not rest else None


def _leading_stamp(text: str) -> tuple[datetime | None, str]:
    match = _STAMP.match(text)
    if not match:
        return None, text
    day, fraction, zone = match.groups()
    try:
        stamp = datetime.fromisoformat(day + (zone or "+00:00").replace("Z", "+00:00"))
    except ValueError:
        return None, text
    micros = int((fraction or "0").ljust(6, "0")[:6])
    return stamp.astimezone(UTC).replace(microsecond=micros), text[match.end() :]
