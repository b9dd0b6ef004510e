"""From a record to the whole answer: checks, health of the ladders, advice, limitations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.gates.records import SIMULATION, GateResult, worst
from tooling.probe.compare import changes
from tooling.probe.fingerprint import fingerprint
from tooling.probe.fit import capability_of
from tooling.probe.judge import has_gpu, judge_host
from tooling.probe.ladders import judge_ladders
from tooling.probe.recommend import recommend
from tooling.probe.records import HostRecord, ProbeReport
from tooling.probe.tables import codes, kernel_lines, requirements, xids
from tooling.records import now, sha256_of

if TYPE_CHECKING:
    from collections.abc import Sequence

GATE = "probe"
#: Exit codes of the doctor and the probe.
EXIT_GOOD, EXIT_FAULT, EXIT_NO_GPU, EXIT_UNCLEAR = 0, 1, 3, 4


def judge(host: HostRecord, last_good: HostRecord | None = None, notes: Sequence[str] = ()) -> ProbeReport:
    """Judge one record.

    Args:
        host: What was seen.
        last_good: An earlier record of the same host on which all was well.
        notes: What the person knows that this run does not show.
    """
    changed = changes(last_good, host) if last_good else ()
    ladder_checks, ladders = judge_ladders(host)
    checks = (*judge_host(host, changed), *ladder_checks)
    limitations = [*host.unknown]
    if host.simulated:
        limitations.append(SIMULATION)
    if has_gpu(host) and not host.rungs:
        limitations.append("no ladder ran: what the driver grants was read, not tried")
    if len(host.gpus) == 1:
        limitations.append("one GPU: nothing is known of peer access and collectives")
    if host.rungs and host.container.environment.get("NCCL_P2P_DISABLE", "0") not in {"", "0"}:
        limitations.append("NCCL_P2P_DISABLE is set here: the collective's default arm used no peer path")
    if foreign := foreign_targets(host):
        limitations.append(f"{foreign} is none of the image's targets: nothing here speaks for those")
    limitations += notes
    limitations += [f"changed since the last good record: {line}" for line in changed]
    facts = {
        "codes": sha256_of(codes()),
        "requirements": sha256_of(requirements()),
        "xid": sha256_of({str(number): xid.model_dump() for number, xid in xids().items()}),
        "kernel log": sha256_of([line.model_dump() for line in kernel_lines()]),
    }
    result = GateResult(
        gate=GATE,
        verdict=worst(check.verdict for check in checks),
        checks=checks,
        limitations=tuple(limitations),
        configuration_sha256=sha256_of(facts),
        started=host.collected or now(),
        ended=now(),
    )
    return ProbeReport(
        host=host,
        fingerprint_sha256=fingerprint(host),
        ladders=ladders,
        result=result,
        recommendations=recommend(host, ladders),
    )


def foreign_targets(host: HostRecord) -> str:
    """GPUs that the image, where there was one, is not built for."""
    targets = {capability_of(target) for target in host.image_targets}
    names = {
        f"{gpu.name} ({gpu.compute_capability})"
        for gpu in host.gpus
        if targets and gpu.compute_capability and gpu.compute_capability not in targets
    }
    return ", ".join(sorted(names))


def exit_code(report: ProbeReport) -> int:
    """0: good; 1: a check failed; 3: no GPU here; 4: a check could not tell."""
    verdict = report.result.verdict.value
    if not has_gpu(report.host) and report.host.cuda_init is None:
        return EXIT_NO_GPU
    return {"PASS": EXIT_GOOD, "FAIL": EXIT_FAULT}.get(verdict, EXIT_UNCLEAR)
