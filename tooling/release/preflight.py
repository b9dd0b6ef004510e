"""What keeps a release from existing, found before an hour is spent: a pure function of policy and machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.attest.hardware import Device
from tooling.release.eligibility import hardware_reason
from tooling.release.errors import ReleaseRefusedError
from tooling.release.policy import assess
from tooling.release.records import (
    Assessment,
    ChecklistItem,
    GateRequirement,
    Place,
    ReleaseFacts,
    ReleasePolicy,
    State,
    Waiver,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tooling.attest.hardware import Hardware
    from tooling.sign.bundle import Signed

#: Stands for an image that has no digest yet.
_NO_IMAGE = "sha256:" + "0" * 64


@dataclass(frozen=True)
class Prospects:
    """What is known before the image is built.

    Attributes:
        policy: What the release needs.
        here: This machine with the device that the policy asks for; None when it has none.
        evidence: Signed statements that exist already.
        digest: The image that they should be about; empty when it has none yet.
        waivers: What may pass for a while.
    """

    policy: ReleasePolicy
    here: Hardware | None
    evidence: tuple[Signed, ...] = ()
    digest: str = ""
    waivers: tuple[Waiver, ...] = field(default=())


def runs_here(policy: ReleasePolicy, here: Hardware | None) -> bool:
    """Whether this machine is one that the policy's target gates may run on."""
    return here is not None and not hardware_reason(policy, here)


def preflight(prospects: Prospects, now: datetime) -> tuple[Assessment, frozenset[str]]:
    """The checklist as it stands, and which of its items this machine will see to itself.

    Args:
        prospects: What is known.
        now: The present.
    """
    policy = prospects.policy
    digest = prospects.digest or _most_covered(prospects.evidence)
    # With some previous release every item that may be asked for is there.
    facts = ReleaseFacts(previous=_NO_IMAGE)
    assessment = assess(policy, digest, prospects.evidence, facts, waivers=prospects.waivers, now=now)
    gates = {f"gate:{gate.gate}": gate for gate in policy.gates}
    ours = frozenset(
        item.requirement
        for item in assessment.items
        if _made_here(item, gates.get(item.requirement.partition("@")[0]), prospects)
    )
    return assessment, ours


def _most_covered(evidence: Sequence[Signed]) -> str:
    """The image that most of the evidence is about."""
    digests = [signed.statement.digest for signed in evidence]
    return max(sorted(set(digests)), key=digests.count, default=_NO_IMAGE)


def _made_here(item: ChecklistItem, gate: GateRequirement | None, prospects: Prospects) -> bool:
    """Whether this machine can bring what is missing; a gate that failed can run again, a build is as it is."""
    if gate is None:
        return item.state is State.MISSING
    if item.state not in {State.MISSING, State.FAILED}:
        return False
    if gate.place is Place.IMAGE:
        return True
    wanted = item.requirement.partition("@")[2]
    here = prospects.here
    return (
        here is not None and runs_here(prospects.policy, here) and (not wanted or here.hardware_class == wanted)
    )


def refuse_if_hopeless(stack: str, registry: str, prospects: Prospects, now: datetime) -> None:
    """Refuse when something is missing that this machine cannot make.

    Args:
        stack: Name of the stack, for the commands in the message.
        registry: Where the image would go, for the same; empty for one that other machines cannot reach.
        prospects: What is known.
        now: The present.

    Raises:
        ReleaseRefusedError: With the checklist, and the commands that bring what is missing.
    """
    assessment, ours = preflight(prospects, now)
    hopeless = [item for item in assessment.open_items if item.requirement not in ours]
    if not hopeless:
        return
    lines = []
    for item in assessment.items:
        if item.requirement in ours:
            lines.append(f"[made here] {item.requirement}: this machine sees to it once the rest is there")
            continue
        lines.append(f"[{item.state.value}] {item.requirement}: {item.text}")
        if item.to_do:
            lines.append(f"    -> {item.to_do}")
    lines += how_to(stack, registry, prospects.policy, hopeless)
    count = len(hopeless)
    raise ReleaseRefusedError(
        f"stack {stack} is not released: {count} requirement{'s' if count != 1 else ''} cannot be met on this "
        "machine; nothing was built or pushed",
        where=prospects.here.describe()
        if prospects.here
        else f"this machine has no {prospects.policy.device.value} device",
        details=lines,
        fix="bring the missing evidence, or a waiver (--waiver) with a name, a reason and an end",
    )


def how_to(stack: str, registry: str, policy: ReleasePolicy, items: Sequence[ChecklistItem]) -> list[str]:
    """The commands that bring evidence from the right machine; none where any machine will do."""
    if policy.device is Device.CPU:
        return []
    classes = sorted({item.requirement.partition("@")[2] for item in items} - {""})
    driver = f", driver {policy.driver_min} or newer" if policy.driver_min else ""
    below = f" and below {policy.driver_below}" if policy.driver_below else ""
    capability = " or ".join(policy.compute_capabilities)
    boots = max((gate.minimum_boots for gate in policy.gates), default=0)
    registry = registry or "REGISTRY"
    repository = f"{registry}/{stack}"
    return [
        "",
        "the evidence is made like this:",
        f"  here:        nox -s release-{stack} -- --candidate --registry {registry}",
        f"  on {' and '.join(classes) or 'the target'} (compute capability {capability}{driver}{below}):",
        f"               blackwell-stacks attest {stack} {repository}@sha256:... --key KEY"
        + (f" --boots {boots} --against PREVIOUS" if boots > 1 else ""),
        f"  here again:  nox -s release-{stack} -- --image {repository}@sha256:... --trust KEYS",
    ]
