"""Rules that need more than one line: tracebacks, one model loaded twice, requests that nobody serves."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.triage.reader import Line


@dataclass(frozen=True)
class Detected:
    """A detector's signature at a line, with the values for its text."""

    detector: str
    line: Line
    values: dict[str, str] = field(default_factory=dict)


class Detector(Protocol):
    """Sees every line of one boot in order."""

    def feed(self, line: Line) -> Iterator[Detected]:
        """What this line completes."""

    def end(self) -> Iterator[Detected]:
        """What is true if nothing comes after the last line; may be asked more than once."""


class Tracebacks:
    """Python tracebacks: the exception that ends one, or that its end is missing.

    A traceback that was closed is reported by its last line as `unrecognised-exception`; the caller drops that
    if a signature knows the line.
    """

    #: Lines of other processes that may come between the lines of a traceback.
    _PATIENCE = 60
    _BEGIN = "Traceback (most recent call last):"
    _EXCEPTION = re.compile(
        r"^(?:[A-Za-z_][\w.]{0,120}\.)?"
        r"(?:[A-Z]\w{0,80}(?:Error|Exception|Exit|Interrupt|Failure|OutOfResources|Timeout|Warning)|MemoryError|"
        r"StopIteration|Empty)\b(?::|$)"
    )

    def __init__(self) -> None:
        self._open: Line | None = None
        self._since = 0

    def feed(self, line: Line) -> Iterator[Detected]:
        """Follow a traceback from its first to its last line."""
        if self._BEGIN in line.message:
            self._open, self._since = line, 0
            return
        if self._open is None:
            return
        self._since += 1
        if not line.message.startswith((" ", "\t")) and self._EXCEPTION.match(line.message):
            self._open = None
            yield Detected("unrecognised-exception", line, {"exception": line.message[:300]})
        elif self._since > self._PATIENCE:
            yield Detected("traceback-truncated", self._open)
            self._open = None

    def end(self) -> Iterator[Detected]:
        """An open traceback is cut off."""
        if self._open is not None:
            yield Detected("traceback-truncated", self._open)


class TargetLoadedAsDraft:
    """A rank loads one and the same class twice although a draft of another class was asked for.

    EAGLE-3 drafts have a class of their own. Drafts of the STANDALONE algorithm may share the target's class,
    and MTP layers live in the target's checkpoint, so neither is judged here.
    """

    _ALGORITHM = re.compile(r"speculative[-_]algorithm['\"]?[ =:]{1,3}['\"]?(?P<name>EAGLE3)\b")
    _DRAFT = re.compile(
        r"speculative[-_]draft[-_]model(?:[-_]path)?['\"]?[ =:]{1,3}['\"]?(?!None\b)(?P<path>[\w./~-]+)"
    )
    _TARGET = re.compile(r"(?<!draft[-_])model[-_]path['\"]?[ =:]{1,3}['\"]?(?P<path>[\w./~-]+)")
    _LOADED = re.compile(r"Load weight end\..{0,80}\btype=(?P<model>\w+)")

    def __init__(self, arguments: tuple[str, ...] = ()) -> None:
        self._algorithm = ""
        self._draft_given = False
        self._loaded: dict[tuple[str, str], int] = {}
        self._read_arguments(" ".join(arguments))

    def _read_arguments(self, text: str) -> None:
        match = self._ALGORITHM.search(text)
        if match:
            self._algorithm = match["name"]
        draft, target = self._DRAFT.search(text), self._TARGET.search(text)
        if draft and not (target and draft["path"] == target["path"]):
            self._draft_given = True

    def feed(self, line: Line) -> Iterator[Detected]:
        """Count what each rank loads."""
        if "speculative" in line.text:
            self._read_arguments(line.text)
        match = self._LOADED.search(line.message)
        if not match:
            return
        key = (line.rank, match["model"])
        self._loaded[key] = self._loaded.get(key, 0) + 1
        if self._loaded[key] == 2 and self._algorithm and not self._draft_given:  # noqa: PLR2004  # twice
            yield Detected(
                "target-loaded-as-draft", line, {"algorithm": self._algorithm, "model": match["model"]}
            )

    def end(self) -> Iterator[Detected]:
        """Nothing more."""
        yield from ()


class StalledRequests:
    """Requests wait, none runs, no token comes: by the engine's own figures, to the end of the log."""

    _RUNNING = re.compile(r"(?:Running|#running-req): (?P<running>\d+)")
    _WAITING = re.compile(r"(?:Waiting|#queue-req): (?P<waiting>\d+)")
    _RATE = re.compile(
        r"(?:Avg generation throughput: |gen throughput \(token/s\): )(?P<rate>\d+(?:\.\d+)?)", re.IGNORECASE
    )

    def __init__(self) -> None:
        self._first: Line | None = None
        self._waiting = "0"
        self._intervals = 0
        self._rate: float | None = None

    def feed(self, line: Line) -> Iterator[Detected]:
        """Read one report of the engine; its figures may stand on one line or on two."""
        rate = self._RATE.search(line.message)
        if rate:
            self._rate = float(rate["rate"])
        running, waiting = self._RUNNING.search(line.message), self._WAITING.search(line.message)
        if running and waiting and self._rate is not None:
            if int(running["running"]) == 0 and int(waiting["waiting"]) > 0 and self._rate == 0.0:
                self._first = self._first or line
                self._waiting = waiting["waiting"]
                self._intervals += 1
            else:
                self._first, self._intervals = None, 0
            self._rate = None
        yield from ()

    def end(self) -> Iterator[Detected]:
        """The last report decides: a stall that ended is none."""
        if self._first is not None:
            values = {"waiting": self._waiting, "intervals": str(self._intervals)}
            yield Detected("stalled-requests", self._first, values)


class OutOfMemoryBeforeWeights:
    """The GPU's memory runs out before the engine has loaded any weight: it is not the engine that filled it.

    Only in a log that shows the start of the boot; else the weights may have come before its first line.
    """

    _START = re.compile(r"server_args=|vLLM API server version|non-default args: |llama_server: starting")
    _LOADING = re.compile(
        r"Load weight begin|Starting to load model|[Ll]oading (?:model )?weights|Loading safetensors|"
        r"load_tensors:|Model loading took|Memory pool|KV [Cc]ache"
    )
    _EXHAUSTED = re.compile(
        r"(?:CUDA|cudaMalloc|cuMem|Cuda failure).{0,60}out of memory|CUDA_ERROR_OUT_OF_MEMORY|"
        r"OutOfMemoryError: CUDA"
    )

    def __init__(self) -> None:
        self._fresh = False

    def feed(self, line: Line) -> Iterator[Detected]:
        """Judge the first such line between the start and the weights."""
        if self._START.search(line.message):
            self._fresh = True
        elif self._fresh and self._LOADING.search(line.message):
            self._fresh = False
        elif self._fresh and self._EXHAUSTED.search(line.message):
            self._fresh = False
            yield Detected("out-of-memory-before-weights", line, {"said": line.message[:120]})

    def end(self) -> Iterator[Detected]:
        """Nothing more."""
        yield from ()


def detectors(arguments: tuple[str, ...] = ()) -> tuple[Detector, ...]:
    """A fresh set of detectors for one boot."""
    return (Tracebacks(), TargetLoadedAsDraft(arguments), StalledRequests(), OutOfMemoryBeforeWeights())
