"""Follow BuildKit's plain output: one line a phase for the person, everything into the log."""

from __future__ import annotations

import re
import time
from collections import deque
from typing import TYPE_CHECKING, Self

from rich.status import Status

from tooling import console

if TYPE_CHECKING:
    from io import TextIOBase
    from types import TracebackType

_VERTEX = re.compile(r"^#(?P<number>\d+) (?P<text>.*)$")
_STEP = re.compile(r"^\[(?P<stage>[^\]]+?)\s+\d+/\d+\] (?P<instruction>.+)$")
_INSTALL = re.compile(r"/run/build/bin/install-layer (?P<layer>\S+)$")
_OUTPUT = re.compile(r"^(?P<seconds>\d+\.\d+) (?P<line>.*)$")
_DONE = re.compile(r"^DONE (?P<seconds>\d+\.\d+)s$")
#: Steps worth a line of their own, by what their instruction contains.
_PHASES = (
    ("link_toolkit.py", "toolkit links"),
    ("contents.py", "check of contents"),
    ("--import-check", "patches"),
)
_COMPILE = re.compile(r"/compile_kernel\.py \S+ (?P<module>\S+) /out$")
KEPT_LINES = 40


class Progress:
    """Reads the builder's lines as they come.

    Attributes:
        durations_s: Seconds by phase that was really run.
        failed: Last lines of the step that failed; empty while none has.
    """

    def __init__(self, log: TextIOBase) -> None:
        self.durations_s: dict[str, float] = {}
        self.failed: list[str] = []
        self._log = log
        self._names: dict[str, str] = {}
        self._tails: dict[str, deque[str]] = {}
        self._status = Status("building", console=console.err)
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()
        self._log.flush()

    def line(self, text: str) -> None:
        """Take one line of the builder."""
        self._log.write(text + "\n")
        vertex = _VERTEX.match(text)
        if vertex is None:
            return
        number, rest = vertex["number"], vertex["text"]
        if number not in self._names and (name := phase_name(rest)):
            self._names[number] = name
            self._status.update(f"{name} ...")
        tail = self._tails.setdefault(number, deque(maxlen=KEPT_LINES))
        phase = self._names.get(number)
        if output := _OUTPUT.match(rest):
            tail.append(output["line"])
            if phase:
                self._status.update(f"{phase}: {output['line'][:90]}")
        elif rest.startswith("ERROR"):
            self.failed = [*tail, rest]
        elif (done := _DONE.match(rest)) and phase:
            self.durations_s[phase] = float(done["seconds"])
            console.say(f"  {phase:<20} {float(done['seconds']):6.1f} s")
        elif rest == "CACHED" and phase:
            console.say(f"  {phase:<20} unchanged")


def phase_name(text: str) -> str | None:
    """What a step is called before people; None for a step that is not worth a line."""
    if text == "exporting to image":
        return "export"
    step = _STEP.match(text)
    if step is None:
        return None
    if install := _INSTALL.search(step["instruction"]):
        return f"layer {install['layer']}"
    if compiled := _COMPILE.search(step["instruction"]):
        return f"kernel {compiled['module']}"
    return next((name for mark, name in _PHASES if mark in step["instruction"]), None)
