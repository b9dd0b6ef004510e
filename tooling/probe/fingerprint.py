"""A stable hash of the hardware class: what must be equal for numbers of two machines to be comparable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.records import sha256_of

if TYPE_CHECKING:
    from tooling.probe.records import HostRecord

#: Memory sizes are compared in whole GiB: ECC and driver versions move the last megabytes.
GIB = 2**30


def fingerprint(host: HostRecord) -> str:
    """Hash the hardware class.

    In it: GPU names, count and order, capability, memory, PCIe maximum, topology, driver branch, power limit
    and virtualisation.
    Serial numbers, addresses, free memory, clocks and everything else that changes from day to day stay out.

    Returns:
        64 hexadecimal digits.
    """
    return sha256_of(
        {
            "gpus": [
                [
                    gpu.name,
                    gpu.compute_capability,
                    round((gpu.memory_bytes or 0) / GIB),
                    gpu.pcie_generation_max,
                    gpu.pcie_width_max,
                    gpu.power_limit_w,
                ]
                for gpu in host.gpus
            ],
            "topology": sorted([link.first, link.second, link.level] for link in host.links),
            "driver_branch": host.driver.split(".")[0],
            "virtualisation": host.virtualisation.split(" ")[0],
            "simulated": host.simulated,
        }
    )
