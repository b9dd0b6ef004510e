"""Operations run in a process of their own: they end by themselves, whoever started them goes away or not."""

from __future__ import annotations

import fcntl
import os
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional

from tooling.errors import BusyError, InputError, ToolkitError
from tooling.host import files
from tooling.host.events import RESULT, Events, follow
from tooling.host.host import BUSY, DONE

if TYPE_CHECKING:
    from tooling.host.state import Group

#: Folders of operations that stay.
KEPT = 100
_ALIVE, _EVENTS, _LOG = "alive", "events.jsonl", "worker.log"


def new_operation() -> str:
    """An id that sorts by time for people; nothing is decided by its time."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


def program() -> list[str]:
    """The command that runs this very program again."""
    file = Path(sys.argv[0]).resolve()
    return [sys.executable, str(file)] if file.suffix == ".pyz" else [sys.executable, "-m", "tooling.host"]


def events_of(group: Group, operation: str) -> Events:
    """Where an operation's events go."""
    return Events(group.operations / operation / _EVENTS, operation)


def begin(group: Group, work: Callable[[str], int]) -> str:
    """Start an operation in a process and a session of its own.

    The process is a copy of this one: its code is in memory, whatever becomes of the program's file.

    Args:
        group: On which group.
        work: What it does, given its id; returns its exit code.

    Returns:
        Its id.
    """
    group.make()
    operation = new_operation()
    folder = group.operations / operation
    folder.mkdir(mode=0o700)
    alive = os.open(folder / _ALIVE, os.O_RDWR | os.O_CREAT, 0o600)
    # Locked here and inherited, so that it is never unlocked while the operation lives.
    fcntl.flock(alive, fcntl.LOCK_EX)
    log = os.open(folder / _LOG, os.O_WRONLY | os.O_CREAT, 0o600)
    sys.stdout.flush()
    if os.fork() == 0:
        code = 1
        try:
            # No terminal and no pipe of the operator's is held: his connection can go.
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDONLY)
            for ours, theirs in ((nothing, 0), (log, 1), (log, 2)):
                os.dup2(ours, theirs)
            os.chdir("/")
            code = work(operation)
        finally:
            os._exit(code)
    os.close(log)
    os.close(alive)
    _forget_old(group)
    return operation


def is_alive(group: Group, operation: str) -> bool:
    """Whether its process runs."""
    return files.is_locked(group.operations / operation / _ALIVE)


def latest(group: Group) -> str:
    """The newest operation.

    Raises:
        InputError: There was none.
    """
    found = sorted(path.name for path in group.operations.iterdir()) if group.operations.is_dir() else []
    if not found:
        raise InputError("there was no operation on this group", where=f"group {group.name}")
    return found[-1]


def events(group: Group, operation: str) -> Iterator[dict[str, Any]]:
    """The events of an operation from its first to its result."""
    folder = _folder(group, operation)
    return follow(folder / _EVENTS, lambda: is_alive(group, operation))


def confirm(group: Group, operation: str, path: str, *, good: bool) -> None:
    """Confirm or reject a running operation."""
    if not is_alive(group, operation):
        raise InputError(f"operation {operation} does not run any more", fix="look at `history`")
    files.write(_folder(group, operation) / path, b"yes" if good else b"no")


def conclude(
    events: Events, command: str, result: Optional[dict[str, Any]], error: Optional[ToolkitError]
) -> int:
    """Write the last event of an operation.

    Returns:
        Its exit code.
    """
    if error is None:
        message = str((result or {}).get("message") or f"{command}: done")
        events.done(RESULT, message, command=command, exit_code=DONE, result=result)
        return DONE
    code = exit_code(error)
    facts = getattr(error, "facts", {})
    events.failed(RESULT, error, command=command, exit_code=code, result=facts)
    return code


def exit_code(error: ToolkitError) -> int:
    """Exit code of a failure."""
    return BUSY if isinstance(error, BusyError) else error.exit_code


def _folder(group: Group, operation: str) -> Path:
    folder = group.operations / operation
    if Path(operation).name != operation or not folder.is_dir():
        raise InputError(f"there is no operation {operation}", where=f"group {group.name}", fix="see `history`")
    return folder


def _forget_old(group: Group) -> None:
    """Remove folders of operations that ended long ago."""
    for path in sorted(group.operations.iterdir())[:-KEPT]:
        if not files.is_locked(path / _ALIVE):
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
