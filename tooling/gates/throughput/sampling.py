"""Looking at GPUs and at the server's progress while a load runs: the edge behind the power and stall rules."""

from __future__ import annotations

import importlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, Self

from tooling.gates.power import GpuLoad, GpuSample, StallEvidence, summarise_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tooling.gates.throughput.counters import Counters

#: Time between two looks at the GPUs; the power rule wants at least two a second.
GPU_PERIOD_S = 0.4
#: Time between two looks at the server's counters: collecting them costs the server something.
COUNTER_PERIOD_S = 5.0
#: Throttle reasons that say nothing bad: an idle GPU, clocks set by an application, the configured power cap.
_HARMLESS = (
    "GpuIdle",
    "ApplicationsClocksSetting",
    "SwPowerCap",
    "SyncBoost",
    "DisplayClockSetting",
    "None",
    "All",
)


class GpuReader(Protocol):
    """Reads the GPUs that are looked at, once."""

    def sample(self) -> list[GpuSample]:
        """Utilisation, power, temperature now."""

    def energy_j(self) -> float | None:
        """Their energy since the driver was loaded, joules; None where the driver does not tell."""


def chosen_gpus(uuids: Sequence[str], visible: str | None) -> list[int]:
    """Indexes that CUDA_VISIBLE_DEVICES leaves, as CUDA reads it: numbers or beginnings of UUIDs.

    NVML itself shows every GPU. An engine on half of a host would be judged by the others' power, too.

    Args:
        uuids: Of the host's GPUs in NVML's order, the order of PCI addresses. CUDA numbers equal GPUs alike.
        visible: Value of the variable; None for all.

    Returns:
        What stands before the first entry that names no GPU, or not one GPU alone.
    """
    if visible is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdecimal():
            found = [int(entry)] if int(entry) < len(uuids) else []
        else:
            found = [index for index, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
        if len(found) != 1:
            break
        chosen += found
    return chosen


class NvmlReader:
    """GPUs of this host by NVML; optional, since the gate also runs beside a remote or a CPU engine.

    Args:
        nvml: The module `pynvml`.
        visible: Value of CUDA_VISIBLE_DEVICES; None for every GPU of the host.
    """

    def __init__(self, nvml: Any, visible: str | None = None) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        self._handles = {index: handles[index] for index in chosen_gpus(uuids, visible)}
        prefix = "nvmlClocksEventReason"
        self._reasons = {
            name[len(prefix) :]: value
            for name, value in vars(nvml).items()
            if name.startswith(prefix) and isinstance(value, int) and name[len(prefix) :] not in _HARMLESS
        }

    def _optional(self, function: str, handle: Any, *arguments: Any) -> Any:
        """Call a function that not every board supports."""
        try:
            return getattr(self._nvml, function)(handle, *arguments)
        except self._nvml.NVMLError:
            return None

    def sample(self) -> list[GpuSample]:
        """See GpuReader."""
        samples = []
        for index, handle in self._handles.items():
            rates = self._optional("nvmlDeviceGetUtilizationRates", handle)
            power = self._optional("nvmlDeviceGetPowerUsage", handle)
            limit = self._optional("nvmlDeviceGetEnforcedPowerLimit", handle)
            mask = self._optional("nvmlDeviceGetCurrentClocksEventReasons", handle) or 0
            samples.append(
                GpuSample(
                    at_s=time.monotonic(),
                    gpu=index,
                    utilization_percent=0.0 if rates is None else rates.gpu,
                    power_w=None if power is None else power / 1000,
                    limit_w=None if limit is None else limit / 1000,
                    temperature_c=self._optional("nvmlDeviceGetTemperature", handle, 0),
                    throttle=tuple(name for name, bit in sorted(self._reasons.items()) if mask & bit),
                )
            )
        return samples

    def energy_j(self) -> float | None:
        """See GpuReader."""
        readings = [
            self._optional("nvmlDeviceGetTotalEnergyConsumption", handle) for handle in self._handles.values()
        ]
        return None if not readings or None in readings else sum(readings) / 1000


def gpu_reader() -> GpuReader | None:
    """NVML's reader of the GPUs that CUDA_VISIBLE_DEVICES leaves; None without GPU, driver or binding."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        reader = NvmlReader(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
    except nvml.NVMLError:
        return None
    return reader if reader.sample() else None


class Watch:
    """Samples in a thread of its own while a load runs, and notices when nothing moves any more.

    Args:
        gpus: Reader of the GPUs, None without.
        counters: Reads the server's counters; may return None.
        stall_s: Time without progress that counts as a stall, seconds.
        before: A reading from before the load; a server that never moves from it has stalled too.
    """

    def __init__(
        self,
        gpus: GpuReader | None,
        counters: Callable[[], Counters | None],
        stall_s: float,
        before: Counters | None = None,
    ) -> None:
        self._gpus = gpus
        self._counters = counters
        self._stall_s = stall_s
        self._samples: list[GpuSample] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="watch", daemon=True)
        self._moved = time.monotonic()
        self._progress = before.progress if before else None
        self._running: float | None = None
        self._energy = 0.0
        #: Energy of all GPUs between entering and leaving, joules; None when unknown.
        self.energy_j: float | None = None

    def __enter__(self) -> Self:
        before = self._gpus.energy_j() if self._gpus else None
        self._energy = before or 0.0
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        after = self._gpus.energy_j() if self._gpus else None
        self.energy_j = None if after is None else after - self._energy

    def _loop(self) -> None:
        period = GPU_PERIOD_S if self._gpus else COUNTER_PERIOD_S
        due = time.monotonic() + min(COUNTER_PERIOD_S, self._stall_s / 4)
        while not self._stop.wait(min(period, self._stall_s / 4)):
            if self._gpus:
                self._samples.extend(self._gpus.sample())
            if time.monotonic() >= due:
                self._look(self._counters())
                due = time.monotonic() + min(COUNTER_PERIOD_S, self._stall_s / 4)

    def _look(self, reading: Counters | None) -> None:
        if reading is None or reading.progress is None:
            return
        self._running = reading.running
        if reading.progress != self._progress:
            self._progress = reading.progress
            self._moved = time.monotonic()

    def moving(self) -> bool:
        """Whether the server got anything done within the stall time; True where it has no counter to tell."""
        return self._progress is None or time.monotonic() - self._moved < self._stall_s

    def gpus(self) -> tuple[GpuLoad, ...]:
        """The GPUs over the whole time so far."""
        return summarise_gpus(list(self._samples))

    def stall(self, healthy_w: float | None) -> StallEvidence:
        """What was seen since the last progress."""
        since = [sample for sample in list(self._samples) if sample.at_s >= self._moved]
        return StallEvidence(
            duration_s=time.monotonic() - self._moved,
            tokens=None if self._progress is None else 0.0,
            running=self._running,
            loads=summarise_gpus(since),
            healthy_w=healthy_w,
        )
