"""The fingerprint of this host, so that a number stays with the hardware it was measured on."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from tooling.gates.baselines import HostFingerprint
from tooling.records import sha256_of


def processor_name() -> str:
    """Model name of the processor; `unknown` where the kernel does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _gpus() -> tuple[tuple[str, ...], str]:
    """Names of the GPUs and a hash of how each pair is connected; empty without NVML."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return (), ""
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        names = tuple(str(nvml.nvmlDeviceGetName(handle)) for handle in handles)
        pairs = [
            nvml.nvmlDeviceGetTopologyCommonAncestor(first, second)
            for position, first in enumerate(handles)
            for second in handles[position + 1 :]
        ]
    except nvml.NVMLError:
        return (), ""
    return names, sha256_of(pairs)[:12] if pairs else ""


def host_fingerprint() -> HostFingerprint:
    """The hardware of this host, as far as this process may use it."""
    gpus, topology = _gpus()
    return HostFingerprint(
        gpus=gpus, cpu=processor_name(), cores=len(os.sched_getaffinity(0)), topology=topology
    )
