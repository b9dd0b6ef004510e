"""Files that survive a crash: whole or not at all, on disk before the next step, and checked when read."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator

from tooling.errors import BusyError, ToolkitError

if TYPE_CHECKING:
    from pathlib import Path


class StateError(ToolkitError):
    """A file of the host's state is damaged; nothing is changed until a person has looked."""

    exit_code = 5


def canonical(value: Any) -> bytes:
    """JSON with sorted keys: equal data gives equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sealed(body: Any) -> bytes:
    """A document with the hash of its body."""
    document = {"body": body, "sha256": hashlib.sha256(canonical(body)).hexdigest()}
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def unsealed(path: Path) -> Any:
    """The body of a document.

    Raises:
        StateError: It cannot be read, or is not what was written.
    """
    try:
        document = json.loads(path.read_bytes())
        body, digest = document["body"], document["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path, f"cannot be read: {type(error).__name__} {error}") from error
    if hashlib.sha256(canonical(body)).hexdigest() != digest:
        raise damaged(path, "was changed after it was written")
    return body


def damaged(path: Path, why: str) -> StateError:
    """The refusal of a damaged file, with what to do."""
    return StateError(
        f"the state file {path.name} {why}",
        where=str(path),
        fix="containers were left as they are. Take the file from a backup, or move it away and run "
        "`repair GENERATION` with the generation that is to serve (`history` and the labels of the running "
        "container name it)",
    )


def write(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace a file in one step, on disk when this returns."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    _write_through(temporary, content, mode)
    temporary.replace(path)
    sync_directory(path.parent)


def write_once(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet and is never written again.

    Raises:
        FileExistsError: It exists.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    _write_through(temporary, content, 0o444)
    try:
        os.link(temporary, path)
    finally:
        temporary.unlink()
    sync_directory(path.parent)


def _write_through(path: Path, content: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink()
        raise


def append_line(path: Path, record: Any) -> None:
    """Add a line to a log, on disk when this returns; a torn last line of an earlier crash is ended first."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    with os.fdopen(descriptor, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write((b"\n" if torn else b"") + canonical(record) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> tuple[list[Any], int]:
    """The records of a log, and how many lines could not be read."""
    if not path.exists():
        return [], 0
    records, unreadable = [], 0
    for line in path.read_bytes().splitlines():
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except ValueError:
            unreadable += 1
    return records, unreadable


def sync_directory(path: Path) -> None:
    """Make a rename last through a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, holder: str) -> Iterator[None]:
    """Hold a lock while the block runs; it dies with this process.

    Args:
        path: The lock's file.
        holder: What is told to others who want it.

    Raises:
        BusyError: Somebody else has it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = (
                os.pread(descriptor, 500, 0).decode(errors="replace").strip() or "a process that says nothing"
            )
            raise BusyError(
                f"another operation is running: {owner}",
                where=str(path),
                fix="follow it, or wait for its end. To give it up, end its process: `reconcile` takes "
                "back what is not committed by then",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a living process holds a lock."""
    if not path.exists():
        return False
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
