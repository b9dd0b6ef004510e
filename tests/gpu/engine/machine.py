"""The machine's facts by NVML, and who holds its GPUs."""

from __future__ import annotations

import importlib
import os
import platform
from importlib import metadata
from typing import Any

from tests.gpu.engine.records import Machine
from tooling.gates.host import host_fingerprint

#: Distributions that decide which kernels run.
_PACKAGES = (
    "torch", "triton", "sglang", "sglang-kernel", "flashinfer-python", "transformers", "nvidia-cublas",
    "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "cuda-bindings", "nvidia-ml-py", "numpy",
)  # fmt: skip


def _nvml() -> Any | None:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def machine_facts() -> Machine:
    """This machine; without a GPU where there is none."""
    nvml, host = _nvml(), host_fingerprint()
    gpus: tuple[str, ...] = ()
    driver = cuda = ""
    clocks: dict[str, int] = {}
    if nvml is not None:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        gpus = tuple(_describe(nvml, handle) for handle in handles)
        driver = str(nvml.nvmlSystemGetDriverVersion())
        version = int(nvml.nvmlSystemGetCudaDriverVersion())
        cuda = f"{version // 1000}.{version % 1000 // 10}"
        for name, kind in {"sm": nvml.NVML_CLOCK_SM, "memory": nvml.NVML_CLOCK_MEM}.items():
            clocks[name] = int(nvml.nvmlDeviceGetClockInfo(handles[0], kind))
            clocks[f"{name}-max"] = int(nvml.nvmlDeviceGetMaxClockInfo(handles[0], kind))
    return Machine(
        gpus=gpus,
        driver=driver,
        cuda=cuda,
        clocks=clocks,
        cpu=host.cpu,
        cores=host.cores,
        kernel=os.uname().release,
        python=platform.python_version(),
        packages=_versions(),
    )


def _describe(nvml: Any, handle: Any) -> str:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30
    limit = nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
    return f"{nvml.nvmlDeviceGetName(handle)}, {memory:.0f} GiB, {limit:.0f} W"


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def sm_clock() -> int | None:
    """SM clock of the first GPU now, MHz."""
    nvml = _nvml()
    if nvml is None:
        return None
    return int(nvml.nvmlDeviceGetClockInfo(nvml.nvmlDeviceGetHandleByIndex(0), nvml.NVML_CLOCK_SM))


def free_gib() -> float:
    """Free memory of the first GPU, GiB; 0 without one."""
    nvml = _nvml()
    if nvml is None:
        return 0.0
    return float(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).free) / 2**30


def gpu_processes() -> tuple[int, ...]:
    """Processes that hold the GPUs, as far as NVML tells."""
    nvml = _nvml()
    if nvml is None:
        return ()
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    return tuple(
        sorted(
            int(entry.pid) for handle in handles for entry in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        )
    )
