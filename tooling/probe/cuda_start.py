"""Why CUDA does not start here. nvidia-smi is no witness: NVML can be fine while cuInit fails."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tooling.probe.tables import codes, cuda_name, requirements

if TYPE_CHECKING:
    from tooling.probe.records import HostRecord

#: CUresults that need more than the table's sentence.
NO_DEVICE, MISMATCH, COMPAT, UNKNOWN = 100, 803, 804, 999
_COMPAT_PATH = re.compile(r"compat", re.IGNORECASE)


class Diagnosis(NamedTuple):
    """What is wrong, what to do, and the lines that say so."""

    what: str
    to_do: str
    evidence: tuple[str, ...] = ()


def nvml_works(host: HostRecord) -> bool:
    """Whether nvidia-smi or NVML lists GPUs."""
    return host.smi == "ok" or (bool(host.gpus) and not host.nvml_error)


def diagnose(host: HostRecord, changed: tuple[str, ...] = ()) -> Diagnosis | None:
    """Why cuInit fails; None where it works.

    Args:
        host: What was seen.
        changed: Components whose version differs from the last good record, as `compare.changes` words them.
    """
    if host.cuda_init == 0 and host.device_count != 0:
        return None
    injected = _injected_compat(host)
    green = "nvidia-smi works, and proves nothing: it does not use CUDA" if nvml_works(host) else ""
    evidence = tuple(line for line in (_answer(host), injected, green, *changed) if line)
    if host.cuda_init is None:
        return _no_answer(host, evidence)
    if host.cuda_init == COMPAT or (host.cuda_init in {MISMATCH, UNKNOWN} and injected):
        return _compat(host, evidence)
    if host.cuda_init in {0, NO_DEVICE}:
        return _no_device(host, evidence)
    if host.cuda_init == UNKNOWN and nvml_works(host):
        return _unknown(host, changed, evidence)
    return _by_table(host, host.cuda_init, evidence)


def _compat(host: HostRecord, evidence: tuple[str, ...]) -> Diagnosis:
    forward = any(re.search(requirements().forward_compatibility, gpu.name) for gpu in host.gpus)
    part = "" if forward else "; forward compatibility exists on data-centre parts only, and these are none"
    return Diagnosis(
        f"a compatibility libcuda of the image is loaded in place of the host's{part}",
        "take the compat folder out of the loader path (LD_LIBRARY_PATH, ld.so.conf.d) so that the host's "
        "libcuda wins; upgrade the host's driver if the image really needs newer CUDA; check which libcuda "
        "resolves in the exact run mode of production",
        evidence,
    )


def _by_table(host: HostRecord, code: int, evidence: tuple[str, ...]) -> Diagnosis:
    known = codes().results.get(code)
    if known is None:
        what = f"cuInit answers {code}, which our table does not know"
        return Diagnosis(what, "look at the kernel log and the driver's release notes", evidence)
    kind = host.virtualisation.split(" ")[0]
    kind = "container" if kind == "bare" and host.container.kind else kind
    return Diagnosis(f"cuInit answers {known.name} ({code}): {known.on(kind)}", known.to_do, evidence)


def _answer(host: HostRecord) -> str:
    if host.cuda_init is None:
        return host.cuda_error
    level = f", the driver offers CUDA {cuda_name(host.cuda_api)}" if host.cuda_api else ""
    return f"cuInit: {host.cuda_init}{level}" + (f", library {host.cuda_library}" if host.cuda_library else "")


def _injected_compat(host: HostRecord) -> str:
    """The compat library that the loader takes, if it does; only the first of a name counts."""
    first = host.cuda_library or next((path for path in host.cuda_libraries if "libcuda.so" in path), "")
    return f"the loader takes {first}" if _COMPAT_PATH.search(first) else ""


def _no_answer(host: HostRecord, evidence: tuple[str, ...]) -> Diagnosis:
    if "did not" in host.cuda_error:
        return Diagnosis(
            "cuInit does not come back: the driver or a GPU is locked up",
            "look at the kernel log for Xid lines; reset the GPU or reboot the host", evidence,
        )  # fmt: skip
    if host.container.kind:
        return Diagnosis(
            "the container was started without the NVIDIA runtime: there is no libcuda; the image is fine",
            "check the run arguments (--gpus, runtime or CDI) and the container toolkit on the host; do "
            "not rebuild",
            evidence,
        )
    what = "there is no libcuda: the NVIDIA driver is not installed, or only in part"
    return Diagnosis(what, "install the driver (its compute part too) on the host", evidence)


def _no_device(host: HostRecord, evidence: tuple[str, ...]) -> Diagnosis:
    visible = host.container.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return Diagnosis(
            f"CUDA_VISIBLE_DEVICES={visible!r} hides the GPUs" if nvml_works(host) else "no GPU is "
            "visible to CUDA",
            "unset it or name devices that exist", evidence,
        )  # fmt: skip
    missing = [path for path in ("/dev/nvidiactl", "/dev/nvidia-uvm") if not host.device_nodes.get(path, False)]
    if missing:
        return Diagnosis(
            f"the driver is there and {' and '.join(missing)} cannot be opened here",
            "give the container the GPUs (--gpus all, CDI; in LXC also the cgroup rule for each "
            "node)", evidence,
        )  # fmt: skip
    mig = any(gpu.mig for gpu in host.gpus)
    what = "MIG is on and no instance exists or was granted" if mig else "the driver runs and lists no device"
    return Diagnosis(what, "look at NVIDIA_VISIBLE_DEVICES and at the GPUs' state in nvidia-smi", evidence)


def _unknown(host: HostRecord, changed: tuple[str, ...], evidence: tuple[str, ...]) -> Diagnosis:
    """NVML works, cuInit answers UNKNOWN."""
    if not host.device_nodes.get("/dev/nvidia-uvm", False):
        return Diagnosis(
            "/dev/nvidia-uvm is missing or may not be opened, and CUDA needs it; nvidia-smi does not",
            "on the host: nvidia-modprobe -u; in a container: take the toolkit's injection (CDI or "
            "--gpus) instead of "
            "single --device options; in LXC add the node and its cgroup rule",
            evidence,
        )
    stack = [line for line in changed if line.startswith(("container toolkit", "engine", "runtime"))]
    driver = [line for line in changed if line.startswith("driver")]
    known = next((bad for bad in requirements().toolkit_known_bad if host.engine.toolkit in bad.versions), None)
    if (stack or known) and not driver:
        which = "; ".join(stack) or f"container toolkit {host.engine.toolkit} ({known.source if known else ''})"
        return Diagnosis(
            f"an update of what starts containers broke CUDA inside them: {which}; driver and image are "
            "not at fault",
            "go back to the last good version and hold the package; a rollback of the image would not help; "
            "probe with cuInit in a container, never with nvidia-smi",
            evidence,
        )
    if driver:
        return Diagnosis(
            f"CUDA fails since the driver changed: {'; '.join(driver)}",
            "reboot so that module and libraries are of one version, and make the CDI specification "
            "again", evidence,
        )  # fmt: skip
    return Diagnosis(
        "CUDA does not start although nvidia-smi works",
        "compare with cuInit on the host (doctor): fails there too - driver, module or an earlier "
        "crash; works there - "
        "the container toolkit, its CDI specification, cgroup rules or seccomp. Compare versions with "
        "the last good "
        "record (--last-good)",
        evidence,
    )
