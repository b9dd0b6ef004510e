"""What to choose and what to change on this machine, each with the line that it rests on. Pure."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from tooling.probe.records import Health, HostRecord, Recommendation, Source, Urgency
from tooling.probe.tables import requirements

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SEVERAL = 2


def recommend(host: HostRecord, ladders: Mapping[str, Health]) -> tuple[Recommendation, ...]:
    """All advice for this machine; none where there is no GPU."""
    advice = [*_settings(host), *_container(host)]
    if len(host.gpus) >= _SEVERAL:
        advice = [*_all_reduce(host, ladders), *_direction(host), *_groups(host), *advice]
    return tuple(advice)


def _all_reduce(host: HostRecord, ladders: Mapping[str, Health]) -> Iterable[Recommendation]:
    topic = "all-reduce"
    pair, collective = ladders.get("pair"), ladders.get("collective")
    broken = {Health.HANG, Health.WRONG_DATA}
    levels = sorted({link.level for link in host.links if link.level})
    if pair in broken or collective in broken:
        yield Recommendation(
            topic=topic, urgency=Urgency.MUST,
            advice="NCCL over shared memory: NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce; no "
            "peer path is trusted",
            evidence=f"pair ladder: {pair or 'not run'}; collective: {collective or 'not run'}",
        )  # fmt: skip
    elif pair is Health.UNUSABLE:
        yield Recommendation(
            topic=topic, urgency=Urgency.SHOULD,
            advice="NCCL over shared memory (NCCL_P2P_DISABLE=1); the engine's own all-reduce needs "
            "peer access",
            evidence="the driver grants no peer access",
        )  # fmt: skip
    elif pair is Health.HEALTHY and levels and all(level.startswith("NV") for level in levels):
        yield Recommendation(
            topic=topic, urgency=Urgency.MAY, advice="the engine's own all-reduce over NVLink",
            evidence=f"links {', '.join(levels)}, pair ladder healthy",
        )  # fmt: skip
    elif pair is Health.HEALTHY:
        limit = requirements().one_shot_bytes
        yield Recommendation(
            topic=topic, urgency=Urgency.SHOULD,
            advice=f"one-shot over CUDA IPC up to about {limit // 1024} KiB, NCCL above; measure the "
            "crossover here. "
            "NCCL_NVLS_ENABLE=0: there is no multicast on PCIe",
            evidence=f"links {', '.join(levels) or 'unknown'}, pair ladder healthy",
        )  # fmt: skip
    else:
        yield Recommendation(
            topic=topic, urgency=Urgency.SHOULD, advice="decide nothing yet: run the probe with its "
            "pair ladder",
            evidence=f"pair ladder: {pair or 'not run'}",
        )  # fmt: skip


def _direction(host: HostRecord) -> Iterable[Recommendation]:
    """Push or pull: on some boxes one of them collapses, so it is measured and never assumed."""
    speeds = [rung.values for rung in host.rungs if rung.rung == "speed" and rung.outcome == "ok"]
    push = [values["push_gbps"] for values in speeds if "push_gbps" in values]
    pull = [values["pull_gbps"] for values in speeds if "pull_gbps" in values]
    if not push or not pull:
        return
    write, load = median(push), median(pull)
    evidence = f"median over {len(speeds)} directions: push {write:.1f} GB/s, pull {load:.1f} GB/s"
    bound = requirements().peer.collapsed_write
    choice, urgency = ("push", Urgency.MAY) if write >= load else ("pull", Urgency.MAY)
    if min(write, load) < bound * max(write, load):
        urgency = Urgency.MUST
    yield Recommendation(topic="push or pull", urgency=urgency, advice=choice, evidence=evidence)
    slowest = min(*push, *pull)
    if max(write, load) < requirements().peer.low_pcie_gbps:
        yield Recommendation(
            topic="peer path", urgency=Urgency.SHOULD,
            advice="peer traffic goes through host memory or a narrow link: look at IOMMU, ACS and the slots",
            evidence=f"{evidence}, slowest {slowest:.1f} GB/s",
        )  # fmt: skip


def _groups(host: HostRecord) -> Iterable[Recommendation]:
    nodes: dict[int, list[int]] = {}
    for gpu in host.gpus:
        if gpu.numa_node is not None:
            nodes.setdefault(gpu.numa_node, []).append(gpu.index)
    if len(nodes) < _SEVERAL:
        return
    groups = "; ".join(f"node {node}: GPUs {','.join(map(str, gpus))}" for node, gpus in sorted(nodes.items()))
    size = min(len(gpus) for gpus in nodes.values())
    yield Recommendation(
        topic="GPU groups", urgency=Urgency.SHOULD,
        advice="keep a tensor-parallel group inside a NUMA node (up to "
        f"TP{1 << (size.bit_length() - 1)}) and bind its "
        "processes there (numactl or --cpuset-cpus)",
        evidence=groups,
    )  # fmt: skip


def _container(host: HostRecord) -> Iterable[Recommendation]:
    if not host.gpus:
        return
    need = requirements().container
    container = host.container
    if len(host.gpus) >= _SEVERAL or host.source is Source.HOST:
        yield Recommendation(
            topic="container flags", urgency=Urgency.SHOULD,
            advice="--gpus all (or CDI) --ipc=host --ulimit memlock=-1 --ulimit stack=67108864, default "
            "seccomp",
            evidence=_grants_line(host),
        )  # fmt: skip
    small = container.memlock_bytes is not None and container.memlock_bytes < need.memlock_bytes
    if small and host.source is Source.IMAGE:
        # A host that is a container itself can grant no more than it has.
        outer = host.virtualisation.startswith("lxc")
        yield Recommendation(
            topic="container flags", urgency=Urgency.SHOULD,
            advice="--ulimit memlock=-1" + (
                ", once the LXC container itself has lxc.prlimit.memlock: unlimited" if outer else ""
            ),
            evidence=f"locked memory is limited to {container.memlock_bytes} B",
        )  # fmt: skip
    refused = next((rung for rung in host.rungs if rung.route == "pidfd" and rung.errno), None)
    if refused is not None:
        yield Recommendation(
            topic="container flags", urgency=Urgency.MAY,
            advice="--cap-add SYS_PTRACE only for an engine that copies descriptors by pidfd; "
            "SCM_RIGHTS needs nothing",
            evidence=refused.describe(),
        )  # fmt: skip
    if "NVIDIA_DISABLE_REQUIRE" in container.environment:
        yield Recommendation(
            topic="container flags", urgency=Urgency.SHOULD,
            advice="drop NVIDIA_DISABLE_REQUIRE: it hides a driver that is too old",
            evidence="it is set in the container",
        )  # fmt: skip


def _grants_line(host: HostRecord) -> str:
    container = host.container
    if host.source is Source.HOST:
        return f"{len(host.gpus)} GPU(s), Docker Engine {host.engine.version or 'not found'}"
    shm = f"{container.shm_bytes / 2**30:.1f} GiB" if container.shm_bytes is not None else "unknown"
    locked = "unlimited" if container.memlock_unlimited else f"{container.memlock_bytes} B"
    return f"now: /dev/shm {shm}, locked memory {locked}"


def _settings(host: HostRecord) -> Iterable[Recommendation]:
    topic = "host settings"
    several_on_pcie = len(host.gpus) >= _SEVERAL and not all(link.level.startswith("NV") for link in host.links)
    if several_on_pcie and host.iommu == "translated":
        yield Recommendation(
            topic=topic,
            urgency=Urgency.SHOULD,
            advice="boot with iommu=pt",
            evidence="IOMMU domains are translated",
        )
    redirect = [gpu.index for gpu in host.gpus if gpu.acs_redirect]
    if several_on_pcie and redirect:
        yield Recommendation(
            topic=topic, urgency=Urgency.SHOULD,
            advice="switch ACS request and completion redirect off on the bridges above the GPUs, root "
            "ports included",
            evidence=f"ACS redirect is on above GPUs {redirect}",
        )  # fmt: skip
    yield from _cards(host)
    if len({(gpu.name, gpu.memory_bytes) for gpu in host.gpus}) > 1:
        yield Recommendation(
            topic="GPU groups",
            urgency=Urgency.SHOULD,
            advice="GPUs differ: keep a tensor-parallel group on equal ones",
            evidence=", ".join(gpu.name for gpu in host.gpus),
        )
    if any(gpu.mig for gpu in host.gpus):
        yield Recommendation(
            topic=topic, urgency=Urgency.SHOULD,
            advice="MIG is on: instances have no peer access and less memory; switch it off for tensor "
            "parallelism",
            evidence=f"MIG on GPUs {[gpu.index for gpu in host.gpus if gpu.mig]}",
        )  # fmt: skip
    for holder in host.holders:
        yield Recommendation(
            topic="who holds the GPUs", urgency=Urgency.MAY,
            advice="end it yourself if it is in the way; we never do",
            evidence=f"pid {holder.pid} {holder.command} {' '.join(holder.nodes)}"
            + (f" container {holder.container}" if holder.container else ""),
        )  # fmt: skip
    if host.source is Source.HOST and host.gpus and not host.engine.toolkit:
        yield Recommendation(
            topic=topic, urgency=Urgency.MUST, advice="install the NVIDIA container toolkit",
            evidence="neither nvidia-ctk nor nvidia-container-cli answers",
        )  # fmt: skip


def _cards(host: HostRecord) -> Iterable[Recommendation]:
    """Advice for single cards."""
    topic = "host settings"
    for gpu in host.gpus:
        label = f"GPU {gpu.index}"
        if gpu.bar1_bytes is not None and gpu.memory_bytes and gpu.bar1_bytes < gpu.memory_bytes:
            yield Recommendation(
                topic=topic, urgency=Urgency.SHOULD, advice="switch on Resizable BAR and Above 4G "
                "Decoding in the BIOS",
                evidence=f"{label}: BAR1 {gpu.bar1_bytes / 2**20:.0f} MiB, memory "
                f"{gpu.memory_bytes / 2**20:.0f} MiB",
            )  # fmt: skip
        if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
            yield Recommendation(
                topic=topic, urgency=Urgency.SHOULD, advice="look at slot, riser and bifurcation",
                evidence=f"{label}: PCIe x{gpu.pcie_width} of x{gpu.pcie_width_max}",
            )  # fmt: skip
        if gpu.power_limit_w and gpu.power_default_w and gpu.power_limit_w < gpu.power_default_w:
            yield Recommendation(
                topic=topic, urgency=Urgency.MAY, advice="numbers of this machine count for this power "
                "limit only",
                evidence=f"{label}: {gpu.power_limit_w:g} W of {gpu.power_default_w:g} W",
            )  # fmt: skip
        if gpu.persistence is False:
            yield Recommendation(
                topic=topic,
                urgency=Urgency.MAY,
                advice="start nvidia-persistenced",
                evidence=f"{label}: persistence off",
            )
