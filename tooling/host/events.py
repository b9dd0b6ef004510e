"""What an operation says while it runs: one JSON line an event, read by whoever follows it."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Callable, Iterator

from tooling.errors import ToolkitError

if TYPE_CHECKING:
    from pathlib import Path

#: The step of the last event of every operation.
RESULT = "result"
_POLL_S = 0.05


def moment() -> str:
    """Now, UTC, ISO 8601 to the millisecond; for people, nothing is decided by it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


class Events:
    """Writes the events of one operation.

    Args:
        path: The file; it grows by one line an event.
        operation: Id of the operation.
    """

    def __init__(self, path: Path, operation: str) -> None:
        self._path = path
        self.operation = operation

    def say(self, step: str, state: str, message: str, **data: Any) -> None:
        """Write one event.

        A full disk must not turn a swap half-way: an event that cannot be written is lost.

        Args:
            step: What is being done.
            state: `start`, `progress`, `done` or `failed`.
            message: One line for people.
            data: The same as data.
        """
        event = {
            "time": moment(),
            "operation": self.operation,
            "step": step,
            "state": state,
            "message": message,
            "data": data,
        }
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event, ensure_ascii=False) + "\n")

    def start(self, step: str, message: str, **data: Any) -> None:
        """A step begins."""
        self.say(step, "start", message, **data)

    def progress(self, step: str, message: str, **data: Any) -> None:
        """A step goes on."""
        self.say(step, "progress", message, **data)

    def done(self, step: str, message: str, **data: Any) -> None:
        """A step is through."""
        self.say(step, "done", message, **data)

    def failed(self, step: str, error: ToolkitError, **data: Any) -> None:
        """A step failed."""
        self.say(step, "failed", error.what, error=error.as_record(), **data)


def follow(path: Path, alive: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """The events of an operation from its first to its result, as they come.

    Args:
        path: The file that `Events` writes.
        alive: Whether the operation's process still runs.

    Raises:
        ToolkitError: The process ended without a result.
    """
    position = 0
    while True:
        running = alive()  # asked before the file: what was written until then is read below
        text = path.read_bytes()[position:] if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        position += len(whole)
        for line in whole.splitlines():
            event = json.loads(line)
            yield event
            if event["step"] == RESULT:
                return
        if not running:
            raise ToolkitError(
                "the operation ended without a result: its process was killed, or the host went down",
                where=str(path),
                fix="run `reconcile`: it brings up the committed generation and clears the rest",
            )
        time.sleep(_POLL_S)
