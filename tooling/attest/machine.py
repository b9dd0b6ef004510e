"""The machine of this process as evidence names it: what the probe saw, and the class that policies ask for."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tooling.attest.hardware import Device, Gpu, Hardware
from tooling.errors import CheckError
from tooling.probe.collect import collect
from tooling.probe.fingerprint import fingerprint
from tooling.probe.parse import read_document
from tooling.records import sha256_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.probe.records import HostRecord

CLASSES = Path(__file__).with_name("classes.yaml")


@cache
def _families() -> dict[str, str]:
    families: dict[str, str] = yaml.safe_load(CLASSES.read_text(encoding="utf-8"))["families"]
    return families


def hardware_class(names: Sequence[str]) -> str:
    """Class of a machine with these GPUs, e.g. `rtx-pro-6000-x8`; cards of two families are one class together.

    Args:
        names: The driver's name of each GPU, at least one.
    """
    kinds = {name: _family(name) for name in names}
    return f"{'+'.join(sorted(set(kinds.values())))}-x{len(names)}"


def _family(name: str) -> str:
    known = (family for family, pattern in _families().items() if fnmatch(name, pattern))
    own = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-").removeprefix("nvidia-")
    return next(known, own or "unknown")


def this_machine() -> HostRecord:
    """What the doctor's collector sees here."""
    return read_document(collect(), where="this machine")


def hardware_of(host: HostRecord, device: Device) -> Hardware:
    """What a gate ran on.

    Args:
        host: The machine.
        device: What computed; on a machine with GPUs the CPU may have done the work.

    Raises:
        CheckError: The GPUs computed, and the machine does not show them.
    """
    common = {
        "cpu": host.cpu,
        "kernel": host.kernel,
        "virtualisation": host.virtualisation,
        "engine": f"docker {host.engine.version}" if host.engine.version else "",
        "container_toolkit": host.engine.toolkit,
        "simulated": host.simulated,
    }
    if device is Device.CPU:
        machine = {"cpu": host.cpu, "cores": host.cores, "virtualisation": host.virtualisation.split(" ")[0]}
        return Hardware(device=device, hardware_class="cpu", fingerprint_sha256=sha256_of(machine), **common)
    blind = [gpu.name for gpu in host.gpus if not gpu.compute_capability or not gpu.memory_bytes]
    if not host.gpus or not host.driver or blind:
        raise CheckError(
            "the GPUs of this machine cannot be named: evidence without its hardware is none",
            where=", ".join(blind) or "no GPU with a driver",
            details=list(host.unknown),
            fix="see `blackwell-stacks doctor`",
        )
    return Hardware(
        device=device,
        hardware_class=hardware_class([gpu.name for gpu in host.gpus]),
        fingerprint_sha256=fingerprint(host),
        driver=host.driver,
        gpus=tuple(
            Gpu(
                name=gpu.name,
                compute_capability=gpu.compute_capability,
                memory_bytes=gpu.memory_bytes or 0,
                vbios=gpu.vbios,
                pcie_generation=gpu.pcie_generation_max,
                pcie_width=gpu.pcie_width_max,
            )
            for gpu in host.gpus
        ),
        **common,
    )
