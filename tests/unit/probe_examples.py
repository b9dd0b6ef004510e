"""Raw documents of machines that we do not have, in the shape that probe and collector print."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tooling.probe.parse import read_document

if TYPE_CHECKING:
    from tooling.probe.records import HostRecord

PRO_6000 = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
MEMORY = 97_887 * 2**20


def gpu(index: int, **changed: Any) -> dict[str, Any]:
    """One GPU as the probe's NVML part prints it."""
    facts = {
        "index": index,
        "name": PRO_6000,
        "pci": f"00000000:{index + 1:02x}:00.0",
        "compute_capability": "12.0",
        "memory_bytes": MEMORY,
        "memory_free_bytes": MEMORY - 2**29,
        "bar1_bytes": 2**37,
        "power_limit_mw": 600_000,
        "power_default_mw": 600_000,
        "power_mw": 30_000,
        "throttle_reasons": 1,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "persistence": 1,
        "mig": 0,
        "ecc_uncorrected": 0,
        "remapped_rows": {"corrected": 0, "uncorrected": 0, "pending": 0, "failed": 0},
        "utilisation": 0,
        "processes": [],
    }
    return {**facts, **changed}


def document(gpus: int = 2, *, source: str = "image", **host: Any) -> dict[str, Any]:
    """A healthy container on a bare host with PCIe GPUs; `host` replaces sections of the collector."""
    collected: dict[str, Any] = {
        "format": 1,
        "collected": "2026-11-01T10:00:00+00:00",
        "system": {
            "kernel": "6.8.0-90-generic", "machine": "x86_64", "uid": 0, "container": "docker",
            "hypervisor_flag": False, "memory_total_kib": 1 << 29, "proc_version": "Linux", "numa_nodes": 2,
        },
        "grants": {"shm_bytes": 2**37, "memlock_bytes": None, "seccomp": "2", "environment": {}},
        "nvidia": {
            "module_version": "580.95.05",
            "proc_version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05",
            "device_nodes": {"/dev/nvidiactl": True, "/dev/nvidia-uvm": True},
            "libraries": [["libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"]],
            "smi": {"error": "not asked"},
            "cuda": {"rc": 0, "out": "{}"},
            "holders": {"processes": [], "unreadable": 0},
        },
        "pci": [
            {
                "address": f"0000:{index + 1:02x}:00.0", "driver": "nvidia",
                "numa_node": str(index * 2 // max(gpus, 1)), "bridges": [{"acs_control": 0}],
            }
            for index in range(gpus)
        ],
        "iommu": {"groups": 9, "domains": {"identity": 9}},
        "kernel_log": {"readable": True, "lines": []},
        "engine": {
            "docker": {"Version": "29.1.0", "ApiVersion": "1.52", "MinAPIVersion": "1.44", "Runtimes": []},
            "client": {"rc": 0, "out": "29.1.0 1.52"},
            "toolkit": {"rc": 0, "out": "NVIDIA Container Toolkit CLI version 1.19.0\n"},
            "cdi": [],
        },
        "disks": [{"path": "/", "total": 2**41, "free": 2**40}],
        "ports": [22],
    }  # fmt: skip
    for section, values in host.items():
        collected[section] = {**collected[section], **values} if isinstance(values, dict) else values
    if source == "host":
        return {**collected, "system": {**collected["system"], "container": ""}}
    pairs = [
        {"first": one, "second": other, "level": 40, "read": 0, "write": 0}
        for one in range(gpus)
        for other in range(one + 1, gpus)
    ]
    return {
        "format": 1,
        "source": "image",
        "host": collected,
        "image": {"cuda": "13.0", "targets": {"required": ["sm_120"]}},
        "nvml": {"driver": "580.95.05", "gpus": [gpu(index) for index in range(gpus)], "pairs": pairs},
        "devices": [],
        "rungs": [start(gpus), *memory(gpus), *pair(gpus), *collective()]
        if gpus > 1
        else [start(1), *memory(1)],
        "idle_before": [{"utilisation": 0, "power_mw": 30_000}] * gpus,
        "idle_after": [{"utilisation": 0, "power_mw": 31_000}] * gpus,
    }


def start(gpus: int, **changed: Any) -> dict[str, Any]:
    """What cuInit gave."""
    good = {"ladder": "driver", "rung": "cuInit", "outcome": "ok", "values": {"version": 13000, "count": gpus}}
    return {**good, **changed}


def memory(gpus: int) -> list[dict[str, Any]]:
    """A good memory ladder of a card without NVLink fabric."""
    rungs = []
    for device in range(gpus):
        for handle in ("none", "posix_fd"):
            rungs += [
                {
                    "ladder": "memory",
                    "rung": rung,
                    "outcome": "ok",
                    "device": device,
                    "handle": handle,
                    "rdma": False,
                }
                for rung in ("create", "map", "write-read")
            ]
        rungs.append(
            {
                "ladder": "memory", "rung": "create", "outcome": "error", "device": device, "handle": "fabric",
                "rdma": False, "call": "cuMemCreate", "code": 801, "name": "NOT_SUPPORTED",
            }
        )  # fmt: skip
    return rungs


def pair(gpus: int) -> list[dict[str, Any]]:
    """A good pair ladder."""
    rungs = []
    for device in range(gpus):
        for peer in range(gpus):
            if device != peer:
                common = {"ladder": "pair", "device": device, "peer": peer, "outcome": "ok"}
                rungs += [{**common, "rung": name} for name in ("can-access", "enable")]
                rungs += [{**common, "rung": name, "size": 1 << 18} for name in ("copy", "push", "pull")]
                values = {"push_gbps": 50.0, "pull_gbps": 42.0, "copy_gbps": 54.0, "copy_latency_us": 8.0}
                rungs.append({**common, "rung": "speed", "values": values})
    return rungs


def collective(sizes: tuple[int, ...] = (8, 65536, 524288, 16 << 20)) -> list[dict[str, Any]]:
    """Good collectives in both arms."""
    return [
        {"ladder": "collective", "rung": "all-reduce", "arm": arm, "size": size, "outcome": "ok", "nccl": "2.3",
         "torch": "2.14.1"}
        for arm in ("default", "no-p2p")
        for size in sizes
    ]  # fmt: skip


def record(raw: dict[str, Any]) -> HostRecord:
    """The record of a raw document."""
    return read_document(json.dumps(raw), where="example")
