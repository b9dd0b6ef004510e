"""What a gate ran on: the part of a machine that decides whether its numbers count for a release."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from tooling.records import Record


class Device(StrEnum):
    """What computed: evidence of one device never stands in for the other."""

    CPU = "cpu"
    CUDA = "cuda"


class Gpu(Record):
    """One GPU.

    Attributes:
        name: As the driver says it, e.g. `NVIDIA RTX PRO 6000 Blackwell Server Edition`.
        compute_capability: E.g. `12.0`.
        memory_bytes: Total device memory.
        vbios: VBIOS version.
        pcie_generation: Link generation, maximum of slot and card.
        pcie_width: Link width in lanes.
    """

    name: str
    compute_capability: str = Field(pattern=r"^\d+\.\d+$")
    memory_bytes: int = Field(gt=0)
    vbios: str = ""
    pcie_generation: int | None = None
    pcie_width: int | None = None


class Hardware(Record):
    """The machine of a gate run; serial numbers stay out.

    Attributes:
        device: What computed.
        hardware_class: Name of the class that policies ask for, e.g. `rtx-pro-6000-x8-pcie`.
        fingerprint_sha256: Hash of the full fingerprint as the probe defines it.
        gpus: Empty exactly when the device is the CPU.
        driver: NVIDIA driver version, e.g. `580.95.05`; empty without a GPU.
        cpu: Model name of the processor.
        kernel: Kernel release.
        virtualisation: `bare`, `vm`, `lxc` or what the probe found.
        engine: Container engine and version.
        container_toolkit: Version of the NVIDIA container toolkit.
        simulated: A stand-in for the driver played the GPU; such evidence never qualifies.
    """

    device: Device
    hardware_class: str = Field(min_length=1)
    fingerprint_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cpu: str = ""
    kernel: str = ""
    virtualisation: str = ""
    engine: str = ""
    container_toolkit: str = ""
    simulated: bool = False

    @model_validator(mode="after")
    def _device_agrees_with_gpus(self) -> Self:
        if self.device is Device.CUDA and not (self.gpus and self.driver):
            raise ValueError("device cuda needs at least one GPU and the driver's version")
        if self.device is Device.CPU and self.gpus:
            raise ValueError("device cpu, yet GPUs are listed")
        return self

    def describe(self) -> str:
        """One line for people, e.g. `8x NVIDIA RTX PRO 6000 (12.0), driver 580.95.05`."""
        if not self.gpus:
            return f"{self.cpu or 'cpu'} ({self.hardware_class})"
        names = sorted({f"{gpu.name} ({gpu.compute_capability})" for gpu in self.gpus})
        simulated = ", SIMULATED" if self.simulated else ""
        return f"{len(self.gpus)}x {' + '.join(names)}, driver {self.driver}{simulated}"
