"""Write the pruned file beside the old one, prove it, and put it in its place."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import shutil
import tempfile
from typing import IO, TYPE_CHECKING, NamedTuple

from tooling.census.reader.span import Span
from tooling.prune.plan import Plan, make_plan
from tooling.prune.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tooling.census.reader.files import DeviceCode
    from tooling.prune.containers import Policy

#: Bytes that are copied or hashed at a time.
_PIECE = 1 << 22


class Rewritten(NamedTuple):
    """What was done to a file; the hashes are hex SHA-256 of the whole file."""

    plan: Plan
    sha256_before: str
    sha256_after: str


def rewrite(path: str, name: str, code: DeviceCode, policy: Policy) -> Rewritten | None:
    """Prune one file in place; None when there is nothing to do.

    Mode, owner and times of the file stay, and so do the times of its folder. Other names of the same file
    (hard links, as a package cache makes them) keep the old content.

    Raises:
        MalformedError: The file is damaged.
        NotUnderstoodError: It is not as we know them, or the new file is not what it must be; it is untouched.
        OSError: It cannot be read, or the new one not be written.
    """
    with mapped(path) as old:
        plan = make_plan(old, name, code, policy)
        if plan is None:
            return None
        before, after = replace_file(
            path, old, lambda file: write(file, old, plan), lambda new: verify(old, new, plan)
        )
        return Rewritten(plan, before, after)


def replace_file(
    path: str, old: Span, write_new: Callable[[IO[bytes]], None], verify_new: Callable[[Span], None]
) -> tuple[str, str]:
    """Put a new file in the place of an old one, once it has been read anew and found right.

    Args:
        path: The file.
        old: Its content.
        write_new: Writes the new content.
        verify_new: Raises when the new file is not what it must be; the old one is untouched then.

    Returns:
        SHA-256 of the old and of the new content.
    """
    folder = os.path.dirname(path) or "."  # noqa: PTH120  # pathlib takes long to import
    times = os.stat(folder)  # noqa: PTH116
    descriptor, temporary = tempfile.mkstemp(prefix=".pruning-", dir=folder)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123
            write_new(file)
        with mapped(temporary) as new:
            verify_new(new)
            after = sha256(new)
        before = sha256(old)
        take_over(path, temporary)
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # noqa: PTH108
        raise
    finally:
        os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns))
    return before, after


def write(file: IO[bytes], old: Span, plan: Plan) -> None:
    """Write the new file: old bytes, new containers, new tables; what is not written is zeros."""
    data = memoryview(old.data)
    try:
        file.truncate(plan.new_size)
        at = 0
        for change in plan.replacements(data):
            copy(file, data, at, change.start, plan.moved(at))
            file.seek(plan.moved(change.start))
            for part in change.parts:
                if isinstance(part, bytes):
                    file.write(part)
                else:
                    copy(file, data, part.start, part.end, file.tell())
            at = change.end
        copy(file, data, at, old.end, plan.moved(at))
        for offset, table in plan.shrunk.tables() if plan.shrunk else ():
            file.seek(offset)
            file.write(table)
    finally:
        data.release()


def copy(file: IO[bytes], data: memoryview, start: int, end: int, place: int) -> None:
    """Copy bytes `start` to `end` to a place of another file."""
    file.seek(place)
    for at in range(start, end, _PIECE):
        file.write(data[at : min(at + _PIECE, end)])


@contextlib.contextmanager
def mapped(path: str) -> Iterator[Span]:
    """A file's bytes without reading them all; never through a symbolic link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        with contextlib.closing(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)) as data:
            yield Span(data)
    finally:
        os.close(descriptor)


def sha256(span: Span) -> str:
    """Of a whole file, hex."""
    digest = hashlib.sha256()
    for at in range(span.start, span.end, _PIECE):
        digest.update(span.data[at : min(at + _PIECE, span.end)])
    return digest.hexdigest()


def take_over(path: str, temporary: str) -> None:
    """Give the new file the owner, mode, times and extended attributes of the old one."""
    status = os.stat(path)  # noqa: PTH116
    if os.geteuid() == 0:
        os.chown(temporary, status.st_uid, status.st_gid)
    shutil.copystat(path, temporary)
