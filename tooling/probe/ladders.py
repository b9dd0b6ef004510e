"""What the ladders mean: memory, pairs, collectives, and whether the GPUs came to rest. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.gates.records import Check, Verdict
from tooling.probe.judge import failed, passed, unclear
from tooling.probe.records import Health, HostRecord, Rung, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

OUT_OF_MEMORY = 2
#: NOT_PERMITTED, NOT_SUPPORTED: the right answer to fabric handles where there is no NVLink fabric.
NO_FABRIC = {800, 801}
#: NCCL changes protocol on the way; a library can pass below and fail from here on.
PROTOCOL_SWITCH = 512 << 10
#: Percent and watts above the state before: a kernel that never ends keeps a GPU here.
BUSY_UTILISATION, BUSY_EXTRA_W = 5.0, 80.0
_BROKEN = {"error", "crash", "hang", "wrong-data"}


def judge_ladders(host: HostRecord) -> tuple[list[Check], dict[str, Health]]:
    """Checks and the health of each ladder that ran."""
    checks: list[Check] = []
    health: dict[str, Health] = {}
    memory = [rung for rung in host.rungs if rung.ladder == "memory"]
    pairs = [rung for rung in host.rungs if rung.ladder == "pair"]
    collectives = [rung for rung in host.rungs if rung.ladder == "collective" and rung.arm != "symmetric"]
    symmetric = [rung for rung in host.rungs if rung.arm == "symmetric"]
    if memory:
        check, health["memory"] = judge_memory(memory)
        checks.append(check)
    if pairs:
        check, health["pair"] = judge_pairs(pairs, virtual=host.virtualisation.startswith("vm"))
        checks.append(check)
    elif any(link.read == "OK" for link in host.links):
        checks.append(_unproved(host))
    if collectives:
        check, health["collective"] = judge_collective(collectives, host)
        checks.append(check)
    if symmetric:
        health["symmetric memory"] = _health_of(symmetric)
    if host.idle_after:
        checks.append(judge_rest(host))
    return checks, health


def _unproved(host: HostRecord) -> Check:
    """A matrix full of OK and a full-size BAR1 are the driver's word, and the driver can be wrong."""
    details = "to do: run the probe in the image: it writes, and reads on the owner's side, in both directions"
    said = "the driver grants peer access; that bytes arrive is not proved"
    stuck = [finding.line for finding in host.kernel_findings if finding.kind == "iommu-fault"]
    if stuck:
        return failed("peer-access", f"{said}, and the IOMMU has stopped transfers", details, *stuck)
    if host.source is Source.HOST:
        return unclear("peer-access", said, details)
    return unclear("peer-access", f"{said}: the pair ladder did not run", details)


def _health_of(rungs: Sequence[Rung]) -> Health:
    outcomes = {rung.outcome for rung in rungs}
    order = (("wrong-data", Health.WRONG_DATA), ("hang", Health.HANG), ("crash", Health.INCONCLUSIVE),
             ("error", Health.UNUSABLE), ("unusable", Health.UNUSABLE), ("unavailable", Health.INCONCLUSIVE))  # fmt: skip
    return next((health for outcome, health in order if outcome in outcomes), Health.HEALTHY)


def judge_memory(rungs: Sequence[Rung]) -> tuple[Check, Health]:
    """The memory ladder: plain and POSIX-descriptor allocations must work, all other refusals are facts."""
    needed = [
        rung for rung in rungs if rung.handle in {"none", "posix_fd"} and not rung.rdma and rung.route != "pidfd"
    ]
    bad = [rung for rung in needed if rung.outcome in _BROKEN]
    corrupt = [rung for rung in rungs if rung.outcome in {"wrong-data", "hang", "crash"}]
    refused = [rung for rung in rungs if rung.outcome == "error" and rung not in bad]
    facts = tuple(dict.fromkeys(_line(rung) for rung in refused))
    if not needed:
        return unclear("memory-ladder", "no rung of plain memory ran", *facts), Health.INCONCLUSIVE
    memory = [rung for rung in bad if rung.code == OUT_OF_MEMORY]
    if corrupt:
        first = corrupt[0]
        return (
            failed("memory-ladder", first.describe(), *(rung.describe() for rung in corrupt[1:]), *facts),
            _health_of(corrupt),
        )
    if memory and len(memory) == len(bad):
        first = memory[0]
        free = f"; free at that moment: {first.free / 2**20:.0f} MiB" if first.free is not None else ""
        return (
            failed(
                "memory-ladder",
                f"out of memory at {(first.size or 0) / 2**20:.0f} MiB{free}: not a missing feature",
                "to do: leave the engine's workspace room (lower its memory fraction), or stop who holds the GPU",
                *facts,
            ),
            Health.UNUSABLE,
        )
    if bad:
        return failed("memory-ladder", _line(bad[0]), *map(_line, bad[1:]), *facts), Health.UNUSABLE
    ran = sum(rung.outcome == "ok" for rung in rungs)
    return passed("memory-ladder", f"{ran} rungs good: allocate, map, write, read, export, import", *facts), Health.HEALTHY


def _line(rung: Rung) -> str:
    text = rung.describe()
    if rung.handle == "fabric" and rung.code in NO_FABRIC:
        text += " (rightly so without an NVLink fabric)"
    return f"{text}: {rung.meaning}" if rung.meaning else text


def judge_pairs(rungs: Sequence[Rung], *, virtual: bool) -> tuple[Check, Health]:
    """The pair ladder: what the driver grants, held against what the owner of the memory sees."""
    name = "peer-access"
    granted = [rung for rung in rungs if rung.rung == "can-access" and rung.outcome == "ok"]
    denied = [rung for rung in rungs if rung.rung == "can-access" and rung.outcome == "unusable"]
    bad = [rung for rung in rungs if rung.outcome in _BROKEN]
    moved = [rung for rung in rungs if rung.rung in {"copy", "push"} and rung.outcome == "ok"]
    mirror = [rung for rung in bad if rung.rung == "push" and rung.outcome == "wrong-data" and rung.writer_wrong == 0]
    in_vm = "; in a virtual machine the peer path is not to be trusted" if virtual else ""
    shared = "to do: use shared memory (NCCL_P2P_DISABLE=1, --disable-custom-all-reduce)"
    lines = tuple(rung.describe() for rung in bad[:8])
    if mirror:
        seen = (
            f"peer writes land in a mirror that only the writer sees{in_vm}: collectives hang or corrupt silently"
        )
        return failed(name, seen, shared, *lines), Health.WRONG_DATA
    if any(rung.outcome == "wrong-data" for rung in bad):
        seen = f"the owner of the memory does not find what its peer wrote{in_vm}"
        return failed(name, seen, shared, *lines), Health.WRONG_DATA
    if bad:
        hang = any(rung.outcome in {"hang", "crash"} for rung in bad)
        if granted or not denied:
            seen = "the driver grants peer access and the bytes do not arrive" + (
                ": the transfer does not end" if hang else f": {_line(bad[0])}"
            )
        else:
            seen = f"even staged copies between the GPUs fail: {_line(bad[0])}"
        host = "or give the driver static BAR1 mapping, iommu=pt and ACS off, and probe again"
        return failed(name, seen + in_vm, f"{shared}, {host}", *lines), Health.HANG if hang else Health.UNUSABLE
    if denied:
        pairs = ", ".join(f"{rung.device}->{rung.peer}" for rung in denied[:12])
        if not moved:
            return unclear(name, f"no peer access ({pairs}), and no staged copy was tried"), Health.INCONCLUSIVE
        return passed(name, f"the driver grants no peer access ({pairs}); staged copies are right"), Health.UNUSABLE
    proved = {(rung.device, rung.peer) for rung in rungs if rung.rung == "push" and rung.outcome == "ok"}
    wanted = {(rung.device, rung.peer) for rung in granted}
    if not wanted or wanted - proved:
        missing = ", ".join(f"{one}->{other}" for one, other in sorted(wanted - proved, key=str)) or "all"
        return unclear(name, f"granted, and not proved on the owner's side: {missing}"), Health.INCONCLUSIVE
    return passed(name, f"{len(proved)} directions proved by a kernel on the owner's side"), Health.HEALTHY


def judge_collective(rungs: Sequence[Rung], host: HostRecord) -> tuple[Check, Health]:
    """Collectives: sums over sizes that cross NCCL's protocols, in two arms that differ in peer access alone."""
    name = "collective"
    arms = {arm: [rung for rung in rungs if (rung.arm or "default") == arm] for arm in ("default", "no-p2p")}
    default, control = arms["default"], arms["no-p2p"]
    bad = [rung for rung in default if rung.outcome in _BROKEN]
    control_bad = [rung for rung in control if rung.outcome in _BROKEN]
    sizes = sorted(rung.size for rung in default if rung.size is not None)
    version = next((rung.log for rung in rungs if "NCCL" in rung.log and rung.outcome == "ok"), "")
    version = version or next((rung.log for rung in rungs if "NCCL" in rung.log), "")
    lines = tuple(rung.describe() for rung in (*bad, *control_bad)[:8])
    if any(rung.outcome == "unavailable" for rung in rungs) or not sizes + bad + control_bad:
        return unclear(name, "no collective ran: torch with NCCL is not here", *lines), Health.INCONCLUSIVE
    good = [rung.size or 0 for rung in default if rung.outcome == "ok"]
    if not bad and not control_bad:
        if not sizes or sizes[-1] < PROTOCOL_SWITCH:
            seen = f"sums are right up to {sizes[-1] if sizes else 0} B; sizes from {PROTOCOL_SWITCH} B on were not tried"
            return unclear(name, seen, "to do: test 8 B, 64 KiB, 512 KiB, 1 MiB and 16 MiB"), Health.INCONCLUSIVE
        return passed(name, f"sums are right from {sizes[0]} to {sizes[-1]} B", version), Health.HEALTHY
    health = _health_of(bad or control_bad)
    starts = min((rung.size for rung in bad if rung.size), default=0)
    from_size = bool(good) and bool(starts) and starts > min(good)
    cards = ", ".join(sorted({f"{gpu.name} ({gpu.compute_capability})" for gpu in host.gpus})) or "these GPUs"
    if bad and from_size and (not control or control_bad):
        seen = f"this NCCL fails on {cards} for messages of {_bytes(starts)} and more; smaller ones are right"
        return failed(name, seen, version, "to do: take a newer NCCL (a newer torch brings one)", *lines), health
    if bad and control and not control_bad:
        seen = "the collective fails over peer access and is right without it"
        where = f" from {_bytes(starts)} on" if from_size else ""
        return failed(name, seen + where, version, "to do: NCCL_P2P_DISABLE=1 until the peer path is repaired", *lines), health
    if control_bad and not bad:
        seen = "the default arm is right and the control arm without peer access fails: look at shared memory"
        return unclear(name, seen, *lines), Health.INCONCLUSIVE
    if control_bad:
        return unclear(name, "both arms fail: peer access is not the cause", version, *lines), Health.INCONCLUSIVE
    return failed(name, bad[0].describe(), version, "to do: run the control arm without peer access", *lines[1:]), health


def _bytes(size: int) -> str:
    return f"{size // 2**20} MiB" if size >= 2**20 else f"{size // 1024} KiB" if size >= 1024 else f"{size} B"  # noqa: PLR2004


def judge_rest(host: HostRecord) -> Check:
    """A hung kernel keeps its GPU busy after its process is gone, until a reset."""
    before = host.idle_before or ((0.0, 0.0),) * len(host.idle_after)
    busy = []
    for index, (load, power) in enumerate(host.idle_after):
        was_load, was_power = before[index] if index < len(before) else (0.0, 0.0)
        if load > max(BUSY_UTILISATION, was_load + BUSY_UTILISATION) or (
            load > BUSY_UTILISATION and power > was_power + BUSY_EXTRA_W
        ):
            busy.append(f"GPU {index}: {load:g} %, {power:.0f} W")
    if busy:
        return Check(
            name="rest", verdict=Verdict.FAIL,
            seen=f"a GPU did not come to rest after the ladders: {'; '.join(busy)}",
            details=("to do: reset the GPU; a kernel that never ended is still on it",),
        )  # fmt: skip
    return passed("rest", "all GPUs came to rest after the ladders")
