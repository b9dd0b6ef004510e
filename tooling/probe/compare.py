"""What changed between two records of one host: the first question when something worked yesterday."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.probe.records import HostRecord

_COMPONENTS: dict[str, Callable[[HostRecord], str]] = {
    "driver": lambda host: host.driver,
    "driver kind": lambda host: host.driver_kind,
    "driver module": lambda host: host.driver_module,
    "container toolkit": lambda host: host.engine.toolkit,
    "engine": lambda host: host.engine.version,
    "engine minimum API": lambda host: host.engine.api_minimum,
    "runtime": lambda host: host.engine.default_runtime,
    "kernel": lambda host: host.kernel,
    "virtualisation": lambda host: host.virtualisation,
    "IOMMU": lambda host: host.iommu,
    "GPUs": lambda host: ", ".join(gpu.name for gpu in host.gpus),
    "power limits": lambda host: ", ".join(
        f"{gpu.power_limit_w:g} W" for gpu in host.gpus if gpu.power_limit_w
    ),
}


def changes(before: HostRecord, after: HostRecord) -> tuple[str, ...]:
    """One line for each component that both records know and that differs."""
    lines = []
    for name, read in _COMPONENTS.items():
        old, new = read(before), read(after)
        if old and new and old != new:
            lines.append(f"{name}: {old} -> {new}")
    return tuple(lines)
