"""A profiler's trace: which kernels ran how often, and which calls of the CUDA runtime launched them.

The trace is the Chrome trace format as `torch.profiler` (Kineto, over CUPTI) writes it: complete events
whose category is `kernel` for code on the GPU and `cuda_runtime` or `cuda_driver` for calls of the host.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pydantic import Field

from tooling.errors import InputError
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_GZIP = b"\x1f\x8b"
_KERNEL = "kernel"
_CALLS = frozenset({"cuda_runtime", "cuda_driver"})


class Kernel(Record):
    """One kernel by its (demangled) name.

    Attributes:
        name: As the profiler gives it.
        launches: How often it ran.
        time_us: All its runs together, microseconds.
    """

    name: str
    launches: int
    time_us: float


class Trace(Record):
    """What the traces of one profile show, all ranks together.

    Attributes:
        kernels: By time, longest first.
        calls: Calls of the CUDA runtime or driver by name, e.g. `cudaGraphLaunch`.
        files: How many traces were read.
    """

    kernels: tuple[Kernel, ...] = ()
    calls: dict[str, int] = Field(default_factory=dict)
    files: int = 0

    @property
    def launches(self) -> int:
        """Kernels that ran."""
        return sum(kernel.launches for kernel in self.kernels)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of kernels and of calls: what a feature's patterns are held against."""
        return (*(kernel.name for kernel in self.kernels), *self.calls)


def parse_trace(content: bytes, where: str = "") -> Trace:
    """Read one trace, gzip or plain.

    Args:
        content: The file.
        where: Its name, for messages.

    Raises:
        InputError: It is no trace, or it was cut off.
    """
    try:
        text = gzip.decompress(content) if content.startswith(_GZIP) else content
        events = json.loads(text)["traceEvents"]
    except (EOFError, OSError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"this is no profiler trace: {type(error).__name__}: {error}",
            where=where,
            fix="profile again, and wait until the engine has written the file",
        ) from error
    if not isinstance(events, list):
        raise InputError("this is no profiler trace: traceEvents is no list", where=where)
    return _count(event for event in events if isinstance(event, dict))


def _count(events: Iterable[dict[str, Any]]) -> Trace:
    launches: dict[str, int] = defaultdict(int)
    times: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for event in events:
        name, category = str(event.get("name", "")), str(event.get("cat", "")).lower()
        if category == _KERNEL:
            launches[name] += 1
            times[name] += float(event.get("dur") or 0.0)
        elif category in _CALLS:
            calls[name] += 1
    kernels = [Kernel(name=name, launches=count, time_us=times[name]) for name, count in launches.items()]
    kernels.sort(key=lambda kernel: (-kernel.time_us, kernel.name))
    return Trace(kernels=tuple(kernels), calls=dict(sorted(calls.items())), files=1)


def merged(traces: Iterable[Trace]) -> Trace:
    """Several traces (ranks, stages) as one."""
    launches: dict[str, int] = defaultdict(int)
    times: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    files = 0
    for trace in traces:
        files += trace.files
        for kernel in trace.kernels:
            launches[kernel.name] += kernel.launches
            times[kernel.name] += kernel.time_us
        for name, count in trace.calls.items():
            calls[name] += count
    kernels = [Kernel(name=name, launches=count, time_us=times[name]) for name, count in launches.items()]
    kernels.sort(key=lambda kernel: (-kernel.time_us, kernel.name))
    return Trace(kernels=tuple(kernels), calls=dict(sorted(calls.items())), files=files)


def read_traces(paths: Iterable[Path]) -> Trace:
    """Read the traces of one profile.

    Raises:
        InputError: There is none, or one cannot be read.
    """
    found = []
    for path in paths:
        try:
            found.append(parse_trace(path.read_bytes(), str(path)))
        except OSError as error:
            raise InputError(f"the trace cannot be read: {error}", where=str(path)) from error
    if not found:
        raise InputError("there is no trace to read", fix="profile the engine under load first")
    return merged(found)
