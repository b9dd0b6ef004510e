"""Checks of a host: driver, CUDA, GPUs, kernel log, container, engine. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.gates.records import Check, Verdict
from tooling.probe.cuda_start import diagnose
from tooling.probe.records import Source
from tooling.probe.tables import at_least, cuda_name, requirements

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.probe.records import HostRecord

_HARD_THROTTLE = {"hardware slowdown", "hardware thermal slowdown", "power brake", "thermal slowdown"}


def passed(name: str, seen: str, *details: str) -> Check:
    """A check that holds."""
    return Check(name=name, verdict=Verdict.PASS, seen=seen, details=details)


def failed(name: str, seen: str, *details: str) -> Check:
    """A check that does not hold."""
    return Check(name=name, verdict=Verdict.FAIL, seen=seen, details=tuple(line for line in details if line))


def unclear(name: str, seen: str, *details: str) -> Check:
    """A check that cannot tell."""
    return Check(name=name, verdict=Verdict.INCONCLUSIVE, seen=seen, details=details)


def has_gpu(host: HostRecord) -> bool:
    """Whether any NVIDIA GPU is to be seen, in whatever state."""
    return bool(host.gpus or host.pci_devices)


def judge_host(host: HostRecord, changed: tuple[str, ...] = ()) -> list[Check]:
    """All checks that the facts allow, at least one.

    Args:
        host: What was seen.
        changed: Lines of `compare.changes` against the last good record.
    """
    checks = [_present(host)]
    if has_gpu(host) or host.cuda_init is not None:
        checks += [_cuda(host, changed), *_driver(host)]
    if has_gpu(host) or any(finding.fails for finding in host.kernel_findings):
        checks += _log(host)
    checks += _health(host)
    checks += _engine(host)
    if host.source is Source.IMAGE:
        checks += _grants(host)
    return checks


def _present(host: HostRecord) -> Check:
    name = "gpu-visible"
    if host.gpus and host.smi != "hang":
        names = sorted({gpu.name for gpu in host.gpus})
        return passed(name, f"{len(host.gpus)} GPU(s): {', '.join(names)}")
    if host.smi == "hang":
        return failed(
            name, "nvidia-smi does not come back: the driver is locked up",
            "to do: look at the kernel log; reset the GPU or reboot the host",
        )  # fmt: skip
    if "vfio-pci" in host.pci_devices:
        return failed(
            name, "the GPUs are handed to virtual machines (vfio-pci); this host cannot use them",
            "to do: run the doctor in the virtual machine, or bind the GPUs to the nvidia driver",
        )  # fmt: skip
    if host.pci_devices:
        return failed(
            name, f"{len(host.pci_devices)} NVIDIA GPU(s) on the PCI bus, and no driver answers",
            f"kernel drivers: {', '.join(host.pci_devices)}; nvidia-smi: {host.smi or 'not asked'}",
            "to do: install or load the driver; `nouveau` must not hold the card",
        )  # fmt: skip
    return failed(
        name, "no NVIDIA GPU is to be seen here",
        f"nvidia-smi: {host.smi or 'not asked'}; {host.nvml_error}".rstrip("; "),
        "to do: in a container, start it with --gpus all or CDI; on a host, take one with a GPU",
    )  # fmt: skip


def _cuda(host: HostRecord, changed: tuple[str, ...]) -> Check:
    diagnosis = diagnose(host, changed)
    if diagnosis is None:
        level = f"CUDA {cuda_name(host.cuda_api)}" if host.cuda_api else "CUDA"
        hidden = len(host.gpus) - (host.device_count if host.device_count is not None else len(host.gpus))
        note = (f"{hidden} GPU(s) that NVML lists are hidden from CUDA",) if hidden > 0 else ()
        return passed("cuda-init", f"cuInit works, the driver offers {level}", *note)
    return failed("cuda-init", diagnosis.what, f"to do: {diagnosis.to_do}", *diagnosis.evidence)


def _driver(host: HostRecord) -> list[Check]:
    checks = []
    if host.driver and host.driver_module and host.driver != host.driver_module:
        checks.append(
            failed(
                "driver-one-version",
                f"libraries are of driver {host.driver}, the loaded module is {host.driver_module}",
                "to do: reload the module or reboot; make the CDI specification again",
            )
        )
    wanted = driver_wanted(host.image_cuda, {gpu.compute_capability for gpu in host.gpus})
    for reason, version in wanted:
        enough = at_least(host.driver, version) if host.driver else None
        if enough is None:
            checks.append(
                unclear("driver-version", f"the driver's version is not known; {reason} needs {version}")
            )
        elif not enough:
            level = f"; it offers CUDA {cuda_name(host.cuda_api)} ({host.cuda_api})" if host.cuda_api else ""
            checks.append(
                failed(
                    "driver-version",
                    f"driver {host.driver} is too old: {reason} needs {version} or newer{level}",
                    "to do: upgrade the host's driver, or take an image for an older CUDA; "
                    "compatibility packages "
                    "work on data-centre parts only",
                )
            )
    if wanted and not any(check.name == "driver-version" for check in checks):
        checks.append(
            passed("driver-version", f"driver {host.driver}", *(f"{why}: {need}" for why, need in wanted))
        )
    only_open = sorted(
        {gpu.name for gpu in host.gpus if gpu.compute_capability in requirements().open_modules_only}
    )
    if only_open and host.driver_kind == "proprietary":
        checks.append(
            failed(
                "driver-kind",
                f"{', '.join(only_open)} works only with the open kernel modules; the proprietary ones "
                "are loaded",
                "to do: install the open flavour of the same driver version",
            )
        )
    return checks


def driver_wanted(cuda: str, capabilities: Iterable[str]) -> list[tuple[str, str]]:
    """Who asks for which driver: reason and lowest version.

    Args:
        cuda: CUDA minor of the image; may be empty.
        capabilities: Compute capabilities of the GPUs.
    """
    facts = requirements()
    wanted = []
    if cuda:
        major = facts.cuda_major_driver.get(cuda.split(".", 1)[0])
        exact = facts.cuda_minor_driver.get(cuda)
        if exact or major:
            wanted.append((f"CUDA {cuda} of the image", exact or major or ""))
    known = [each for each in sorted(set(capabilities)) if each in facts.capability_driver]
    return [*wanted, *((f"compute capability {each}", facts.capability_driver[each]) for each in known)]


def _log(host: HostRecord) -> list[Check]:
    if not host.kernel_log_readable:
        return []  # a limitation, not a verdict: containers are rightly not shown the kernel log
    bad = [finding for finding in host.kernel_findings if finding.fails]
    if not bad:
        return [passed("kernel-log", "nothing in this boot's kernel log speaks against the GPUs")]
    worst = next((finding for finding in bad if finding.kind == "xid"), bad[0])
    number = f"Xid {worst.number}: " if worst.number is not None else ""
    lines = [f"{finding.count}x {finding.line}" for finding in bad]
    advice = dict.fromkeys(f"to do: {finding.to_do}" for finding in bad if finding.to_do)
    where = f" (GPU {worst.pci})" if worst.pci else ""
    return [failed("kernel-log", f"{number}{worst.meaning}{where}", *advice, *lines)]


def _health(host: HostRecord) -> list[Check]:
    checks = []
    for gpu in host.gpus:
        label = f"GPU {gpu.index}"
        if hard := _HARD_THROTTLE & set(gpu.throttle):
            checks.append(
                failed(
                    "clocks",
                    f"{label} is slowed down: {', '.join(sorted(hard))}",
                    "to do: look at cooling and power",
                )
            )
        if gpu.rows_failed:
            checks.append(
                failed("memory-rows", f"{label}: a memory row could not be remapped", "to do: replace the card")
            )
        elif gpu.rows_pending:
            checks.append(
                failed("memory-rows", f"{label}: a memory row waits for its remapping", "to do: reset the GPU")
            )
        if gpu.ecc_uncorrected:
            checks.append(
                failed("ecc", f"{label}: {gpu.ecc_uncorrected} uncorrected memory errors since the last boot",
                       "to do: reset the GPU; if they come back, replace the card")
            )  # fmt: skip
    if host.gpus and not checks:
        checks.append(passed("gpu-health", "no hardware slowdown, no uncorrected memory error, no row waiting"))
    return checks


def _engine(host: HostRecord) -> list[Check]:
    engine = host.engine
    checks = []
    refused = re.search(r"client version (\S+) is too old.*?(?:version is|:)\s*(\d+\.\d+)", engine.client_error)
    older = (
        engine.client_api and engine.api_minimum and at_least(engine.client_api, engine.api_minimum) is False
    )
    if refused or older:
        have = refused[1] if refused else engine.client_api
        least = refused[2] if refused else engine.api_minimum
        checks.append(
            failed(
                "engine-api",
                f"the engine {engine.version} no longer accepts the client's API {have}: its minimum is "
                f"{least}; what "
                "runs is untouched",
                "to do: upgrade the client or let it negotiate; do not touch the service; probe again "
                "before the next swap",
            )
        )
    elif engine.version:
        checks.append(passed("engine-api", f"Docker Engine {engine.version}, API {engine.api}"))
    if engine.cdi_driver and host.driver and engine.cdi_driver != host.driver:
        checks.append(
            failed(
                "cdi-specification",
                f"the CDI specification was made for driver {engine.cdi_driver}, {host.driver} is installed",
                "to do: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
            )
        )
    bad = next((each for each in requirements().toolkit_known_bad if engine.toolkit in each.versions), None)
    if bad is not None:
        checks.append(
            failed(
                "container-toolkit", f"container toolkit {engine.toolkit}: {bad.what}",
                f"to do: take {bad.good} and hold the package; {bad.source}",
            )
        )  # fmt: skip
    return checks


def _grants(host: HostRecord) -> list[Check]:
    need, have = requirements().container.shm_bytes, host.container.shm_bytes
    if len(host.gpus) < 2 or have is None:  # noqa: PLR2004  # one GPU shares with nobody
        return []
    if have < need:
        return [
            failed("shared-memory", f"shared memory (/dev/shm) has {have / 2**20:.0f} MiB; ranks share "
            "through it",
                   "to do: start the container with --ipc=host or --shm-size=16g")
        ]  # fmt: skip
    return [passed("shared-memory", f"shared memory (/dev/shm) has {have / 2**30:.0f} GiB")]
