"""What NVML says of the GPUs. Each question stands alone: a refused one leaves a gap with its reason."""

from __future__ import annotations

import importlib
from typing import Any

from probe_driver import SIMULATION_SYMBOL

#: Fact -> function of pynvml; each takes the device's handle and answers one number.
NUMBERS = {
    "power_limit_mw": "nvmlDeviceGetEnforcedPowerLimit",
    "power_default_mw": "nvmlDeviceGetPowerManagementDefaultLimit",
    "power_mw": "nvmlDeviceGetPowerUsage",
    "throttle_reasons": "nvmlDeviceGetCurrentClocksEventReasons",
    "pcie_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "pcie_generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
    "pcie_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "pcie_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
    "persistence": "nvmlDeviceGetPersistenceMode",
    "compute_mode": "nvmlDeviceGetComputeMode",
    "virtualisation_mode": "nvmlDeviceGetVirtualizationMode",
    "minor": "nvmlDeviceGetMinorNumber",
}
#: Fact -> function and a further argument.
WITH_ARGUMENT = {
    "clock_sm_mhz": ("nvmlDeviceGetClockInfo", 1),
    "clock_memory_mhz": ("nvmlDeviceGetClockInfo", 2),
    "clock_sm_max_mhz": ("nvmlDeviceGetMaxClockInfo", 1),
    "temperature_c": ("nvmlDeviceGetTemperature", 0),
}
#: The nearest NUMA nodes, not those of the whole socket.
NUMA_SCOPE = 0
MODES = {"ecc": "nvmlDeviceGetEccMode", "mig": "nvmlDeviceGetMigMode"}
TEXTS = {"name": "nvmlDeviceGetName", "vbios": "nvmlDeviceGetVbiosVersion"}


class Nvml:
    """NVML after its start; `error` says why there is none, `simulated` whether a stand-in plays it."""

    def __init__(self) -> None:
        self.error: dict[str, Any] = {}
        self.simulated = False
        self.library: Any = None
        try:
            self.library = importlib.import_module("pynvml")
        except ImportError as error:
            self.error = {"message": f"nvidia-ml-py cannot be imported: {error}"}
            return
        try:
            self.library.nvmlInit()
        except self.library.NVMLError as error:
            self.error = {"code": error.value, "message": str(error)}
        self.simulated = self._marked()
        if self.error:
            self.library = None

    def _marked(self) -> bool:
        loaded = getattr(self.library, "nvmlLib", None)
        return loaded is not None and hasattr(loaded, SIMULATION_SYMBOL)

    def ask(self, gaps: dict[str, str], name: str, function: str, *arguments: Any) -> Any:
        """One question; None with the reason in `gaps` when it is refused."""
        try:
            return getattr(self.library, function)(*arguments)
        except (self.library.NVMLError, AttributeError) as error:
            gaps[name] = str(error)
            return None

    def facts(self) -> dict[str, Any]:
        """Driver version, every GPU, and how each pair is connected."""
        if self.library is None:
            return {"error": self.error}
        gaps: dict[str, str] = {}
        driver = self.ask(gaps, "driver", "nvmlSystemGetDriverVersion")
        cuda = self.ask(gaps, "cuda_version", "nvmlSystemGetCudaDriverVersion_v2")
        handles = []
        for index in range(self.ask(gaps, "count", "nvmlDeviceGetCount") or 0):
            handle = self.ask(gaps, f"device {index}", "nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                handles.append((index, handle))
        gpus = [self._gpu(index, handle) for index, handle in handles]
        pairs = []
        for place, (first, one) in enumerate(handles):
            for second, other in handles[place + 1 :]:
                level = self.ask(gaps, "topology", "nvmlDeviceGetTopologyCommonAncestor", one, other)
                read, write = (
                    self.ask(gaps, "p2p status", "nvmlDeviceGetP2PStatus", one, other, kind) for kind in (0, 1)
                )
                pairs.append({"first": first, "second": second, "level": level, "read": read, "write": write})
        return {"driver": driver, "cuda_version": cuda, "gpus": gpus, "pairs": pairs, "gaps": gaps}

    def _gpu(self, index: int, handle: Any) -> dict[str, Any]:
        gaps: dict[str, str] = {}

        def ask(name: str, function: str, *arguments: Any) -> Any:
            return self.ask(gaps, name, function, handle, *arguments)

        facts: dict[str, Any] = {"index": index}
        facts.update({name: ask(name, function) for name, function in {**TEXTS, **NUMBERS}.items()})
        facts.update({name: ask(name, *question) for name, question in WITH_ARGUMENT.items()})
        facts.update({name: (ask(name, function) or [None])[0] for name, function in MODES.items()})
        capability = ask("compute_capability", "nvmlDeviceGetCudaComputeCapability")
        facts["compute_capability"] = ".".join(map(str, capability)) if capability else None
        memory, bar, bus = (
            ask(name, function)
            for name, function in (
                ("memory", "nvmlDeviceGetMemoryInfo"),
                ("bar1", "nvmlDeviceGetBAR1MemoryInfo"),
                ("pci", "nvmlDeviceGetPciInfo"),
            )
        )
        facts["memory_bytes"] = memory.total if memory else None
        facts["memory_free_bytes"] = memory.free if memory else None
        facts["bar1_bytes"] = bar.bar1Total if bar else None
        facts["pci"] = text(bus.busId) if bus else None
        nodes = ask("numa_nodes", "nvmlDeviceGetMemoryAffinity", 1, NUMA_SCOPE)
        facts["numa_nodes"] = [bit for bit in range(64) if nodes[0] >> bit & 1] if nodes else None
        facts["ecc_uncorrected"] = ask("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", 1, 0)
        rows = ask("remapped_rows", "nvmlDeviceGetRemappedRows")
        kinds = ("corrected", "uncorrected", "pending", "failed")
        facts["remapped_rows"] = dict(zip(kinds, rows, strict=False)) if rows else None
        processes = ask("processes", "nvmlDeviceGetComputeRunningProcesses")
        facts["processes"] = [{"pid": each.pid, "memory_bytes": each.usedGpuMemory} for each in processes or []]
        load = ask("utilisation", "nvmlDeviceGetUtilizationRates")
        facts["utilisation"] = load.gpu if load else None
        return {**{name: text(value) for name, value in facts.items()}, "gaps": gaps}


def idle_state(nvml: Nvml) -> list[dict[str, Any]]:
    """Utilisation in percent and power in milliwatts of each GPU now."""
    keep = ("index", "utilisation", "power_mw", "memory_free_bytes")
    return [{key: gpu.get(key) for key in keep} for gpu in nvml.facts().get("gpus", [])]


def text(value: Any) -> Any:
    """Bytes as text; everything else as it is."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
