"""The steps of the chain between push and release: gates, inventory, signatures."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypedDict

from tooling import console
from tooling.attest.hardware import Device
from tooling.attest.inventory import Inventory, inventory, lost_code, new_unjudged
from tooling.boot import stack_contract
from tooling.build.builder import ingredients_of
from tooling.build.context import site_packages
from tooling.census.take import census_of_image
from tooling.errors import CheckError
from tooling.gates.records import Verdict
from tooling.inspection.sources import scans_of
from tooling.lock.resolve import read_lock
from tooling.release.errors import ReleaseRefusedError
from tooling.release.evidence import collect_directory, collect_referrers, read_directory, write_evidence
from tooling.release.gates import statement_of, verify_statements
from tooling.release.policy import assess
from tooling.release.preflight import runs_here
from tooling.release.publish import previous_release
from tooling.release.records import Place, ReleaseFacts
from tooling.verify import verify_stack
from tooling.verify.arguments import arguments_gate
from tooling.verify.run import MODELS

if TYPE_CHECKING:
    import docker

    from tooling.attest.statement import Statement
    from tooling.gates.records import GateResult
    from tooling.registry.manifest import Manifest
    from tooling.registry.repository import Repository
    from tooling.release.run import Run
    from tooling.sign.bundle import Signed


class About(TypedDict):
    """Which image a statement is about."""

    image: str
    digest: str


def sign_all(run: Run, statements: list[Statement]) -> list[Signed]:
    """Sign, keep a copy in the folder, and read back what was signed."""
    for statement in statements:
        write_evidence(statement, run.request.key, run.bundles)
    own = read_directory(run.bundles, run.request.trust)
    if own.rejected:
        raise CheckError(
            "what was just signed does not count here",
            where=str(run.bundles),
            details=[f"{item.source}: {item.reason}" for item in own.rejected],
            fix="add the signing key's .pub file to the directory of trust",
        )
    return list(own.signed)


def run_gates(
    run: Run, repository: Repository, image: Manifest, image_id: str
) -> tuple[list[GateResult], list[Statement]]:
    """The gates on a running engine where this machine is the target; else those that need no target."""
    stack, request = run.examined.file.stack, run.request
    about = About(image=repository.name, digest=image.digest)
    here = run.examined.here
    if here is None or not runs_here(run.examined.policy, here) or _covered(run, repository, image.digest):
        # Parsers ask for a model; which one is the business of the machine that serves it.
        contract = stack_contract(stack, extra=("--model-path", f"{MODELS}/{stack.name}"))
        words = contract.command[len(stack.serve.command) :]
        result = arguments_gate(run.client, image_id, stack, words)
        return [result], [statement_of(result, hardware=run.examined.builder, **about)]
    options = request.gates
    record = verify_stack(
        stack.name,
        request.root,
        image=image_id,
        device="cpu" if run.examined.policy.device is Device.CPU else "gpu",
        model=options.model,
        profile=options.profile,
        extra=options.extra,
        boots=options.boots,
        against=options.against,
        baselines=options.baselines,
        output=run.folder / "gates",
    )
    statements = verify_statements(record, image_id=image_id, hardware=here, **about)
    return list(record.gates), statements


def _covered(run: Run, repository: Repository, digest: str) -> bool:
    """Whether evidence that exists meets every gate that needs the target; then none runs again."""
    request, policy = run.request, run.examined.policy
    brought: list[Signed] = []
    if request.evidence:
        brought += collect_directory(request.evidence, digest, request.trust).signed
    if request.image:
        brought += collect_referrers(repository, digest, request.trust).signed
    facts = ReleaseFacts(previous=digest)
    assessment = assess(policy, digest, brought, facts, waivers=request.waivers, now=datetime.now(UTC))
    open_gates = {item.requirement.partition("@")[0] for item in assessment.open_items}
    on_target = {f"gate:{gate.gate}" for gate in policy.gates if gate.place is Place.TARGET}
    return not open_gates & on_target


def refuse_failures(run: Run, gates: list[GateResult], digest: str) -> None:
    """A gate that failed ends the chain, be it the first of several boots; its evidence stays attached."""
    required = {gate.gate for gate in run.examined.policy.gates}
    failed = [gate for gate in gates if gate.gate in required and gate.verdict is Verdict.FAIL]
    waived = {waiver.requirement.partition("@")[0] for waiver in run.request.waivers}
    failed = [gate for gate in failed if f"gate:{gate.gate}" not in waived]
    if failed:
        raise ReleaseRefusedError(
            f"stack {run.request.stack} is not released: {', '.join(gate.gate for gate in failed)} failed",
            where=digest,
            details=[
                f"{gate.gate}, {check.name}: {check.seen}"
                for gate in failed
                for check in gate.checks
                if check.verdict is Verdict.FAIL
            ],
            fix=f"find the cause; records and logs are in {run.folder}. No tag was written",
        )


@dataclass(frozen=True)
class Found:
    """What the inspection knows beside its verdict."""

    now: Inventory | None
    facts: ReleaseFacts


def take_inventory(run: Run, repository: Repository, image: Manifest, image_id: str) -> Found:
    """Device code and arch gates of the image, held against those of the previous release."""
    stack, request = run.examined.file.stack, run.request
    previous = previous_release(
        repository, stack.name, request.trust, now=datetime.now(UTC), besides=image.digest
    )
    digest = previous.digest if previous else ""
    if not stack.targets.required:
        return Found(None, ReleaseFacts(previous=digest))
    console.say("inventory: device code and arch gates, for later releases to be compared with")
    lock = read_lock(run.examined.file, request.root)
    packages = {wheel.name: wheel.version for wheel in lock.wheels}
    plans = ingredients_of(run.examined.file, lock, request.root / "images").plans
    scans = scans_of(run.client, image_id, site_packages(stack), packages, plans, say=console.say)
    found = inventory(census_of_image(image_id, run.client), scans)
    if previous is None:
        return Found(found, ReleaseFacts(unjudged_arch_gates=new_unjudged(scans, None)))
    before = [
        signed.statement.read(Inventory)
        for signed in collect_referrers(repository, digest, request.trust).of(Inventory)
    ]
    if not before:
        return Found(found, ReleaseFacts(previous=digest))
    return Found(
        found,
        ReleaseFacts(
            previous=digest,
            unjudged_arch_gates=new_unjudged(scans, before[-1]),
            census_worse=lost_code(before[-1].census, found.census, stack.targets.required),
        ),
    )


def pull(client: docker.DockerClient, image: str) -> str:
    """Pull an image by digest; the engine's id of it."""
    repository, _, digest = image.partition("@")
    return str(client.images.pull(repository, tag=digest).id)
