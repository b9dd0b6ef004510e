"""The decision whether a release may exist: a pure function of policy, evidence, facts, waivers and time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tooling.attest.gate import TestResult
from tooling.attest.hardware import Device
from tooling.attest.provenance import Provenance
from tooling.errors import InputError
from tooling.gates.records import Verdict
from tooling.release.eligibility import GateEvidence, why_not
from tooling.release.records import (
    Assessment,
    ChecklistItem,
    Enough,
    GateRequirement,
    Place,
    ReleaseFacts,
    ReleasePolicy,
    State,
    Status,
    Waiver,
    instant,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.sign.bundle import Signed

#: Without a record of how it was built an image has no identity to release; nobody can waive that.
PROVENANCE = "provenance"


def assess(
    policy: ReleasePolicy,
    digest: str,
    evidence: Sequence[Signed],
    facts: ReleaseFacts,
    *,
    waivers: Sequence[Waiver] = (),
    now: datetime,
) -> Assessment:
    """Hold an image against a policy.

    Args:
        policy: What a release needs.
        digest: The image.
        evidence: Statements whose signatures were checked. Those about other images are not counted.
        facts: What is known beside them.
        waivers: What may pass for a while.
        now: The moment of the release.

    Raises:
        InputError: A waiver names nothing that this policy asks for.
    """
    about_this = [signed for signed in evidence if signed.statement.digest == digest]
    gates = [
        GateEvidence(signed.statement.read(TestResult), signed.payload_sha256, digest)
        for signed in about_this
        if signed.statement.predicate_type == TestResult.PREDICATE_TYPE
    ]
    builds = sorted(
        (
            (signed.statement.read(Provenance), signed.payload_sha256)
            for signed in about_this
            if signed.statement.predicate_type == Provenance.PREDICATE_TYPE
        ),
        key=lambda build: (build[0].run_details.metadata.finished_on, build[1]),
    )
    items = [*_build_items(policy, builds)]
    for requirement in policy.gates:
        items.extend(_gate_items(policy, requirement, gates, now))
    items.extend(_fact_items(policy, facts))
    decided = tuple(_with_waiver(item, waivers, policy, now) for item in items)
    _refuse_stray_waivers(waivers, decided)
    used = {item.evidence_sha256 for item in decided if item.state in {State.MET, State.WAIVED}}
    counted = [gate for gate in gates if gate.payload_sha256 in used]
    on_target = {gate.gate for gate in policy.gates if gate.place is Place.TARGET}
    machines = {
        gate.result.measured.hardware.describe()
        for gate in counted
        if gate.result.measured.result.gate in on_target
    }
    return Assessment(
        digest=digest,
        status=_status(policy, decided),
        items=decided,
        limitations=_limitations(policy, gates, counted, waivers, decided),
        hardware=tuple(sorted(machines)),
    )


def _build_items(policy: ReleasePolicy, builds: Sequence[tuple[Provenance, str]]) -> tuple[ChecklistItem, ...]:
    """How the image was built, and whether its base was the locked one."""
    if not builds:
        return (
            ChecklistItem(
                requirement=PROVENANCE,
                state=State.MISSING,
                text="no signed record says how this image was built",
                to_do="build the image with this toolkit and sign the build's record",
            ),
        )
    provenance, payload = builds[-1]
    inputs = len(provenance.build_definition.resolved_dependencies)
    built = ChecklistItem(
        requirement=PROVENANCE,
        state=State.MET,
        text=f"built {provenance.run_details.metadata.finished_on} from {inputs} pinned inputs",
        evidence_sha256=payload,
    )
    drifted = sorted({name for build, _ in builds for name in build.drifted_packages})
    bad = drifted and not policy.allow_drifted_base
    base = ChecklistItem(
        requirement="base-not-drifted",
        state=State.FAILED if bad else State.MET,
        text=("" if bad else "allowed by the policy, ")
        + f"base packages that are not the locked ones: {', '.join(drifted)}"
        if drifted
        else "every base package is the locked one",
        to_do="lock the base again and rebuild" if bad else "",
        evidence_sha256=payload,
    )
    return built, base


def _gate_items(
    policy: ReleasePolicy, requirement: GateRequirement, gates: Sequence[GateEvidence], now: datetime
) -> list[ChecklistItem]:
    """One item a hardware class that needs a passing run."""
    return [
        _gate_item(policy, requirement, hardware_class, gates, now)
        for hardware_class in requirement.hardware_classes or ("",)
    ]


def _gate_item(
    policy: ReleasePolicy,
    requirement: GateRequirement,
    hardware_class: str,
    gates: Sequence[GateEvidence],
    now: datetime,
) -> ChecklistItem:
    name = f"gate:{requirement.gate}" + (f"@{hardware_class}" if hardware_class else "")
    refused: list[str] = []
    counted: list[GateEvidence] = []
    for gate in gates:
        if gate.result.measured.result.gate != requirement.gate:
            continue
        reason = why_not(policy, requirement, hardware_class, gate, now)
        if reason:
            refused.append(f"{gate.describe()} does not count: {reason}")
        else:
            counted.append(gate)
    if not counted:
        return ChecklistItem(
            requirement=name,
            state=State.MISSING,
            text="; ".join(refused) or "no signed run for this image",
            to_do=f"run gate {requirement.gate} on {_where(policy, requirement, hardware_class)}",
        )
    # Neither an old pass nor a lucky one hides a later failure.
    latest = max(counted, key=lambda gate: (gate.ended, gate.payload_sha256))
    result = latest.result.measured.result
    if result.verdict is Verdict.PASS:
        return ChecklistItem(
            requirement=name,
            state=State.MET,
            text=f"{len(result.checks)} checks passed, {latest.describe()}",
            evidence_sha256=latest.payload_sha256,
        )
    if result.verdict is not Verdict.FAIL and requirement.enough is Enough.NO_FAILURE:
        return ChecklistItem(
            requirement=name,
            state=State.MET,
            text=f"{result.verdict.value}, no failure, which is enough for this policy, {latest.describe()}",
            evidence_sha256=latest.payload_sha256,
        )
    bad = [f"{check.name}: {check.seen}" for check in result.checks if check.verdict is not Verdict.PASS]
    return ChecklistItem(
        requirement=name,
        state=State.FAILED,
        text=f"{result.verdict.value} in the {latest.describe()}: {'; '.join(bad)}",
        to_do=f"find the cause, then run gate {requirement.gate} again",
        evidence_sha256=latest.payload_sha256,
    )


def _where(policy: ReleasePolicy, requirement: GateRequirement, hardware_class: str) -> str:
    if requirement.place is Place.IMAGE:
        return "any machine"
    if hardware_class:
        return f"a machine of class {hardware_class}"
    if policy.device is Device.CPU:
        return "a machine's CPU"
    driver = f", driver {policy.driver_min} or newer" if policy.driver_min else ""
    return f"GPUs of compute capability {' or '.join(policy.compute_capabilities)}{driver}"


def _fact_items(policy: ReleasePolicy, facts: ReleaseFacts) -> list[ChecklistItem]:
    """What is decided by looking at the image."""
    items = []
    if policy.arch_gates_judged:
        items.append(
            _list_item(
                "arch-gates-judged",
                facts.unjudged_arch_gates,
                bad="new architecture gates that nobody has judged",
                good="no architecture gate is new and unjudged"
                + ("" if facts.previous else "; it is the first release, with nothing to compare with"),
                to_do="scan the image and judge each new gate",
            )
        )
    if policy.census_not_worse and facts.previous:
        items.append(
            _list_item(
                "census-not-worse",
                facts.census_worse,
                bad="device code that the previous release had is missing",
                good="no device code of the previous release is missing",
                to_do="compare the census with the previous release's and restore what is missing",
            )
        )
    if policy.bytes_new_max is not None and facts.previous:
        items.append(_bytes_item(policy.bytes_new_max, facts.bytes_new))
    return items


def _list_item(
    requirement: str, found: tuple[str, ...] | None, *, bad: str, good: str, to_do: str
) -> ChecklistItem:
    if found is None:
        return ChecklistItem(
            requirement=requirement, state=State.MISSING, text="nobody has looked", to_do=to_do
        )
    if found:
        return ChecklistItem(
            requirement=requirement, state=State.FAILED, text=f"{bad}: {'; '.join(found)}", to_do=to_do
        )
    return ChecklistItem(requirement=requirement, state=State.MET, text=good)


def _bytes_item(limit: int, found: int | None) -> ChecklistItem:
    if found is None:
        return ChecklistItem(
            requirement="bytes-new",
            state=State.MISSING,
            text="nobody has compared the layers with the previous release's",
            to_do="release against a registry that holds the previous release",
        )
    fits = found <= limit
    return ChecklistItem(
        requirement="bytes-new",
        state=State.MET if fits else State.FAILED,
        text=f"{found} bytes are new against the previous release, budget {limit}",
        to_do="" if fits else "put what changed into the last layers, or raise the budget in the stack",
    )


def _with_waiver(
    item: ChecklistItem, waivers: Sequence[Waiver], policy: ReleasePolicy, now: datetime
) -> ChecklistItem:
    """Let an open item pass when a waiver that is in force names it; say why one is not."""
    if item.state is State.MET:
        return item
    remarks = []
    for waiver in waivers:
        if not _names(waiver, item.requirement):
            continue
        remark = waiver_problem(waiver, policy, now)
        if item.requirement == PROVENANCE:
            remark = "it cannot be waived"
        if not remark:
            return item.model_copy(
                update={
                    "state": State.WAIVED,
                    "text": f"{item.state.value}, {item.text}; {waiver.describe()}",
                    "waiver": waiver,
                }
            )
        remarks.append(f"the waiver of {waiver.by} does not count: {remark}")
    return item.model_copy(update={"text": "; ".join([item.text, *remarks])}) if remarks else item


def waiver_problem(waiver: Waiver, policy: ReleasePolicy, now: datetime) -> str:
    """Why a waiver is not in force; empty when it is."""
    dated, expires = instant(waiver.dated), instant(waiver.expires)
    if now >= expires:
        return f"it expired on {waiver.expires}"
    if dated > now + timedelta(seconds=policy.clock_skew_s):
        return f"it is dated {waiver.dated}, in the future"
    if expires - dated > timedelta(days=policy.waiver_max_days):
        return f"it lives longer than {policy.waiver_max_days:g} days"
    return ""


def _names(waiver: Waiver, requirement: str) -> bool:
    return waiver.requirement in {requirement, requirement.partition("@")[0]}


def _refuse_stray_waivers(waivers: Sequence[Waiver], items: Sequence[ChecklistItem]) -> None:
    for waiver in waivers:
        if not any(_names(waiver, item.requirement) for item in items):
            raise InputError(
                f"a waiver names {waiver.requirement!r}, which this policy does not ask for",
                details=[f"it asks for {item.requirement}" for item in items],
                fix="correct or remove the waiver",
            )


def _status(policy: ReleasePolicy, items: Sequence[ChecklistItem]) -> Status:
    """How far the image is proved. A waiver lets a release exist; it proves nothing."""
    on_image = {f"gate:{gate.gate}" for gate in policy.gates if gate.place is Place.IMAGE}
    met = {item.requirement: item.state is State.MET for item in items}
    no_proof = {f"gate:{gate.gate}" for gate in policy.gates if gate.enough is not Enough.PASS}
    gates = {name: name.partition("@")[0] for name in met if name.startswith("gate:")}
    target = [met[name] for name, gate in gates.items() if gate not in on_image | no_proof]
    source = [met[name] for name in met if name == PROVENANCE or name.partition("@")[0] in on_image - no_proof]
    if not all(source):
        return Status.UNTESTED
    return Status.QUALIFIED if target and all(target) else Status.SOURCE_QUALIFIED


def _limitations(
    policy: ReleasePolicy,
    gates: Sequence[GateEvidence],
    counted: Sequence[GateEvidence],
    waivers: Sequence[Waiver],
    items: Sequence[ChecklistItem],
) -> tuple[str, ...]:
    """What the evidence could not check, failures before the pass, and waivers that nothing needs."""
    lines = [
        f"{gate.result.measured.result.gate}: {limitation}"
        for gate in counted
        for limitation in gate.result.measured.result.limitations
    ]
    required = {gate.gate for gate in policy.gates}
    lines += [
        f"{gate.result.measured.result.gate}: an earlier {gate.describe()} was"
        f" {gate.result.measured.result.verdict.value}"
        for gate in gates
        if gate not in counted
        and gate.result.measured.result.gate in required
        and gate.result.measured.result.verdict is not Verdict.PASS
    ]
    used = [item.waiver for item in items if item.waiver]
    lines += [f"not needed: {waiver.describe()}" for waiver in waivers if waiver not in used]
    return tuple(dict.fromkeys(lines))
