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
_WORST_FIRST = (
    ("wrong-data", Health.WRONG_DATA),
    ("hang", Health.HANG),
    ("crash", Health.INCONCLUSIVE),
    ("error", Health.UNUSABLE),
    ("unusable", Health.UNUSABLE),
    ("unavailable", Health.INCONCLUSIVE),
)
_UNCLEAR = Health.INCONCLUSIVE
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
    return next((health for outcome, health in _WORST_FIRST if outcome in outcomes), Health.HEALTHY)


def judge_memory(rungs: Sequence[Rung]) -> tuple[Check, Health]:
    """The memory ladder: plain and POSIX-descriptor allocations must work, all other refusals are facts."""
    needed = [
        rung
        for rung in rungs
        if rung.handle in {"none", "posix_fd"} and not rung.rdma and rung.route != "pidfd"
    ]
    bad = [rung for rung in needed if rung.outcome in _BROKEN]
    corrupt = [rung for rung in rungs if rung.outcome in {"wrong-data", "hang", "crash"}]
    refused = [rung for rung in rungs if rung.outcome == "error" and rung not in bad]
    facts = _refusals(refused)
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
                "to do: leave the engine's workspace room (lower its memory fraction), or stop who "
                "holds the GPU",
                *facts,
            ),
            Health.UNUSABLE,
        )
    if bad:
        return failed("memory-ladder", _line(bad[0]), *map(_line, bad[1:]), *facts), Health.UNUSABLE
    ran = sum(rung.outcome == "ok" for rung in rungs)
    return passed(
        "memory-ladder", f"{ran} rungs good: allocate, map, write, read, export, import", *facts
    ), Health.HEALTHY


def _refusals(rungs: Sequence[Rung]) -> tuple[str, ...]:
    """One line for each handle type, flag and code that was refused, with the GPUs that did."""
    groups: dict[tuple[str, bool, str], list[Rung]] = {}
    for rung in rungs:
        groups.setdefault((rung.handle, bool(rung.rdma), f"{rung.call} {rung.name}"), []).append(rung)
    lines = []
    for (handle, rdma, answer), members in groups.items():
        first = members[0]
        number = first.code if first.code is not None else first.errno
        gpus = ",".join(sorted({str(rung.device) for rung in members}))
        flag = " with the RDMA flag" if rdma else ""
        note = ", rightly so without an NVLink fabric" if handle == "fabric" and first.code in NO_FABRIC else ""
        lines.append(
            f"{handle}{flag} on GPU {gpus}: {answer} ({number}){note}: {first.meaning or 'meaning unknown'}"
        )
    return tuple(lines)


def _line(rung: Rung) -> str:
    text = rung.describe()
    return f"{text}: {rung.meaning}" if rung.meaning else text


def judge_pairs(rungs: Sequence[Rung], *, virtual: bool) -> tuple[Check, Health]:
    """The pair ladder: what the driver grants, held against what the owner of the memory sees."""
    bad = [rung for rung in rungs if rung.outcome in _BROKEN]
    if bad:
        return _broken_pairs(rungs, bad, virtual=virtual)
    granted = [rung for rung in rungs if rung.rung == "can-access" and rung.outcome == "ok"]
    denied = [rung for rung in rungs if rung.rung == "can-access" and rung.outcome == "unusable"]
    if denied:
        pairs = ", ".join(f"{rung.device}->{rung.peer}" for rung in denied[:12])
        if not any(rung.rung == "copy" and rung.outcome == "ok" for rung in rungs):
            return unclear("peer-access", f"no peer access ({pairs}), and no staged copy was tried"), _UNCLEAR
        seen = f"the driver grants no peer access ({pairs}); staged copies are right"
        return passed("peer-access", seen), Health.UNUSABLE
    proved = {(rung.device, rung.peer) for rung in rungs if rung.rung == "push" and rung.outcome == "ok"}
    wanted = {(rung.device, rung.peer) for rung in granted}
    if not wanted or wanted - proved:
        missing = ", ".join(f"{one}->{other}" for one, other in sorted(wanted - proved, key=str)) or "all"
        return unclear("peer-access", f"granted, and not proved on the owner's side: {missing}"), _UNCLEAR
    seen = f"{len(proved)} directions proved by a kernel on the owner's side"
    return passed("peer-access", seen), Health.HEALTHY


def _broken_pairs(rungs: Sequence[Rung], bad: Sequence[Rung], *, virtual: bool) -> tuple[Check, Health]:
    """What broken rungs of a pair ladder mean; wrong data is worse than none."""
    in_vm = "; in a virtual machine the peer path is not to be trusted" if virtual else ""
    shared = "to do: use shared memory (NCCL_P2P_DISABLE=1, --disable-custom-all-reduce)"
    denied = any(rung.rung == "can-access" and rung.outcome == "unusable" for rung in rungs)
    wrong = [rung for rung in bad if rung.outcome == "wrong-data"]
    health = _health_of(bad)
    if any(rung.writer_wrong == 0 for rung in wrong):
        seen = (
            f"peer writes land in a mirror that only the writer sees{in_vm}: collectives hang or "
            "corrupt silently"
        )
    elif wrong:
        seen = f"the owner of the memory does not find what its peer wrote{in_vm}"
    elif denied:
        seen = f"even staged copies between the GPUs fail: {_line(bad[0])}"
    else:
        ends = any(rung.outcome in {"hang", "crash"} for rung in bad)
        how = "the transfer does not end" if ends else _line(bad[0])
        seen = f"the driver grants peer access and the bytes do not arrive: {how}{in_vm}"
        shared += ", or give the driver static BAR1 mapping, iommu=pt and ACS off, and probe again"
        health = Health.HANG if ends else health
    return failed("peer-access", seen, shared, *(rung.describe() for rung in bad[:8])), health


def judge_collective(rungs: Sequence[Rung], host: HostRecord) -> tuple[Check, Health]:
    """Collectives: sums over sizes that cross NCCL's protocols, in two arms that differ in peer access."""
    default = [rung for rung in rungs if rung.arm != "no-p2p"]
    bad = [rung for rung in rungs if rung.outcome in _BROKEN]
    if any(rung.outcome == "unavailable" for rung in rungs):
        return unclear("collective", "no collective ran: torch with NCCL is not here"), _UNCLEAR
    if bad:
        return _broken_collective(rungs, host)
    sizes = sorted(rung.size for rung in default if rung.size is not None and rung.outcome == "ok")
    if not sizes or sizes[-1] < PROTOCOL_SWITCH:
        seen = (
            f"sums are right up to {_bytes(sizes[-1] if sizes else 0)}; {_bytes(PROTOCOL_SWITCH)} "
            "and more not tried"
        )
        return unclear("collective", seen, "to do: test 8 B, 64 KiB, 512 KiB, 1 MiB and 16 MiB"), _UNCLEAR
    seen = f"sums are right from {_bytes(sizes[0])} to {_bytes(sizes[-1])}"
    return passed("collective", seen, _version(rungs)), Health.HEALTHY


def _broken_collective(rungs: Sequence[Rung], host: HostRecord) -> tuple[Check, Health]:
    """Whose fault: the peer path (the control arm is right), NCCL (both fail from a size on) or neither."""
    default = [rung for rung in rungs if rung.arm != "no-p2p"]
    control = [rung for rung in rungs if rung.arm == "no-p2p"]
    bad = [rung for rung in default if rung.outcome in _BROKEN]
    control_bad = [rung for rung in control if rung.outcome in _BROKEN]
    lines = (_version(rungs), *(rung.describe() for rung in (*bad, *control_bad)[:8]))
    good = [rung.size or 0 for rung in default if rung.outcome == "ok"]
    starts = min((rung.size for rung in bad if rung.size), default=0)
    from_size = bool(good) and starts > min(good)
    health = _health_of(bad or control_bad)
    if not bad:
        seen = "the default arm is right and the control arm without peer access fails: look at shared memory"
        return unclear("collective", seen, *lines), _UNCLEAR
    if from_size and (not control or control_bad):
        cards = (
            ", ".join(sorted({f"{gpu.name} ({gpu.compute_capability})" for gpu in host.gpus})) or "these GPUs"
        )
        seen = f"this NCCL fails on {cards} for messages of {_bytes(starts)} and more; smaller ones are right"
        return failed("collective", seen, "to do: take a newer NCCL (a newer torch brings one)", *lines), health
    if control_bad:
        return unclear("collective", "both arms fail: peer access is not the cause", *lines), _UNCLEAR
    if not control:
        return failed(
            "collective", bad[0].describe(), "to do: run the control arm without peer access", *lines
        ), health
    where = f" from {_bytes(starts)} on" if from_size else ""
    seen = f"the collective fails over peer access{where} and is right without it"
    return failed(
        "collective", seen, "to do: NCCL_P2P_DISABLE=1 until the peer path is repaired", *lines
    ), health


def _version(rungs: Sequence[Rung]) -> str:
    """The versions of torch and NCCL, which good rungs carry."""
    return next(
        (rung.log for rung in rungs if rung.outcome == "ok" and "NCCL" in rung.log), "NCCL version unknown"
    )


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
