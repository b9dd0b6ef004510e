"""Who ran and who fell back, counted where the decision is made and written where a gate can read it.

One JSON file a process, replaced whole. A host call that is captured into a CUDA graph is counted once; how
often the graph was replayed is only known to counters on the device, which come from the kernels' own groups.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from blackwell_kernels.sglang_plugin import messages

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from blackwell_kernels.sglang_plugin.settings import Feature

FORMAT = 1
INTERVAL_S = 2.0
#: CU_STREAM_CAPTURE_MODE_RELAXED
_CAPTURE_MODE_RELAXED = 2
#: Different shapes that are kept apart; a prefill can bring any number of them.
MOST_SHAPES = 256


@dataclass
class Tally:
    """What became of one feature in this process.

    Attributes:
        state: `requested`, `prepared`, `ACTIVE` or `DISABLED`.
        reason: Why it is in that state.
        calls: Host calls that launched our kernel, captures included.
        shapes: The same by shape, e.g. `32x4096`.
        fallbacks: Host calls that went the engine's way, by reason.
        fallback_shapes: The same by shape.
    """

    state: str = "requested"
    reason: str = ""
    calls: int = 0
    shapes: dict[str, int] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)
    fallback_shapes: dict[str, int] = field(default_factory=dict)


class Counters:
    """The tallies of one process."""

    def __init__(self, identity: dict[str, Any]) -> None:
        self.identity = identity
        self.tallies: dict[Feature, Tally] = {}
        self._launches: dict[str, Callable[[], dict[str, int]]] = {}
        self._lock = threading.Lock()
        self._path: Path | None = None

    def request(self, feature: Feature) -> None:
        """A feature was asked for."""
        self.tallies.setdefault(feature, Tally())

    def set_state(self, feature: Feature, state: str, reason: str) -> None:
        """A feature is now in a state, and why."""
        tally = self.tallies.setdefault(feature, Tally())
        tally.state, tally.reason = state, reason

    def disable(self, feature: Feature, reason: str) -> None:
        """A feature will not run; said in the log."""
        self.set_state(feature, "DISABLED", reason)
        messages.disabled(feature, reason)

    def ran(self, feature: Feature, shape: str) -> None:
        """Our kernel was launched (or captured) for a shape."""
        tally = self.tallies.setdefault(feature, Tally())
        with self._lock:
            tally.calls += 1
            _add(tally.shapes, shape)
        if tally.state != "ACTIVE":
            self.set_state(feature, "ACTIVE", f"first call with {shape}")
            messages.active(feature, f"first call with {shape}")

    def fell_back(self, feature: Feature, reason: str, shape: str) -> None:
        """The engine's own path was taken."""
        tally = self.tallies.setdefault(feature, Tally())
        with self._lock:
            new = reason not in tally.fallbacks
            _add(tally.fallbacks, reason)
            _add(tally.fallback_shapes, shape)
        if new:
            messages.fell_back(feature, reason, shape)

    def add_launches(self, name: str, read: Callable[[], dict[str, int]]) -> None:
        """Counters that a kernel group keeps, replays of CUDA graphs included.

        Args:
            name: Name of the group.
            read: Reads them; must neither launch nor wait for device work, since a capture may be under way.
        """
        self._launches[name] = read

    def document(self) -> dict[str, Any]:
        """Everything, as it is written."""
        with self._lock:
            features = {
                str(feature): {name: _copy(value) for name, value in vars(tally).items()}
                for feature, tally in self.tallies.items()
            }
        launches, errors = self._read_launches()
        return {
            "format": FORMAT,
            **self.identity,
            "pid": os.getpid(),
            "written": time.time(),
            "features": features,
            "launches": launches,
            "errors": errors,
        }

    def _read_launches(self) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
        """What the groups counted; a group that is closed, or whose context is lost, says so instead."""
        launches, errors = {}, {}
        for name, read in self._launches.items():
            try:
                launches[name] = read()
            except RuntimeError as error:
                errors[name] = str(error)
        return launches, errors

    def write(self) -> None:
        """Replace the file, whole or not at all."""
        if self._path is None:
            return
        draft = self._path.with_suffix(".tmp")
        draft.write_text(json.dumps(self.document(), indent=1, sort_keys=True), encoding="utf-8")
        draft.replace(self._path)

    def export_to(self, folder: Path, interval_s: float = INTERVAL_S) -> Path:
        """Write the file now, every few seconds and at the end; returns its path.

        Raises:
            OSError: The folder cannot be made or written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"counters-{os.getpid()}.json"
        self.write()
        threading.Thread(
            target=self._keep_writing, args=(interval_s,), name="blackwell-kernels-counters", daemon=True
        ).start()
        atexit.register(self.write)
        return self._path

    def _keep_writing(self, interval_s: float) -> None:
        relax_capture_checks()
        while True:
            time.sleep(interval_s)
            try:
                self.write()
            except OSError as error:
                messages.say(f"the counter file cannot be written any more: {error}")
                return


def relax_capture_checks() -> bool:
    """Let this thread ask the device while another one captures a CUDA graph.

    In the usual capture mode any thread that, say, waits for a stream of its own spoils the capture
    (cuThreadExchangeStreamCaptureMode in the CUDA driver API). Reading counters touches no captured stream.

    Returns:
        Whether there is a driver and it agreed.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    mode = ctypes.c_int(_CAPTURE_MODE_RELAXED)
    return int(driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))) == 0


def _add(table: dict[str, int], key: str) -> None:
    if key not in table and len(table) >= MOST_SHAPES:
        key = "other"
    table[key] = table.get(key, 0) + 1


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value
