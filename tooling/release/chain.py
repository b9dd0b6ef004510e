"""The whole chain of one stack: build, push, gates on what was pushed, signed evidence, release, verification.

Evidence names the digest of the manifest, so the image is pushed first, under a tag that says nothing of its
quality. The release's own tag is the last write: wherever the chain breaks, there is no release.
"""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path  # pydantic reads it at run time
from typing import TYPE_CHECKING, TypedDict

from tooling import console
from tooling.attest.hardware import Device, Hardware
from tooling.attest.inventory import Inventory, inventory, inventory_statement, lost_code, new_unjudged
from tooling.attest.machine import hardware_of, this_machine
from tooling.attest.provenance import build_statement
from tooling.attest.sbom import sbom_statement
from tooling.boot import stack_contract
from tooling.build import build
from tooling.build.builder import ingredients_of
from tooling.build.context import site_packages
from tooling.census.take import census_of_image
from tooling.dockerhost import ensure_engine
from tooling.dockerhost.containers import read_files
from tooling.errors import CheckError, InputError
from tooling.gates.records import Verdict
from tooling.inspection.inspect import inspect_image
from tooling.inspection.sources import scans_of
from tooling.lock.resolve import read_lock
from tooling.records import Record, now
from tooling.registry import local
from tooling.registry.attach import attach_manifests, pin
from tooling.registry.push import push_image
from tooling.registry.reference import parse_reference
from tooling.registry.repository import Repository
from tooling.release.builds import DPKG_STATUS, build_facts, package_list, source_commit
from tooling.release.errors import ReleaseRefusedError
from tooling.release.evidence import collect_referrers, read_directory, upload_bundle, write_evidence
from tooling.release.gates import statement_of, verify_statements
from tooling.release.preflight import Prospects, refuse_if_hopeless, runs_here
from tooling.release.publish import Released, ReleaseRequest, previous_release, release
from tooling.release.records import ReleaseFacts, ReleasePolicy, Waiver
from tooling.stack import load_stack
from tooling.verify import verify_stack
from tooling.verify.arguments import arguments_gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    import docker

    from tooling.attest.statement import Statement
    from tooling.gates.records import GateResult
    from tooling.registry.manifest import Manifest
    from tooling.registry.transport import Settings
    from tooling.sign.bundle import Signed
    from tooling.sign.keys import SigningKey, Trust
    from tooling.stack.model import StackFile


class _About(TypedDict):
    """Which image a statement is about."""

    image: str
    digest: str


@dataclass(frozen=True)
class GateOptions:
    """What the gates on a running engine are told; as for `verify_stack`."""

    model: Path | None = None
    profile: str = "tiny"
    extra: tuple[str, ...] = ()
    boots: int = 1
    baselines: Path | None = None


@dataclass(frozen=True)
class ChainRequest:
    """One run of the chain.

    Attributes:
        stack: Name of the stack.
        root: The checkout.
        registry: `host[:port][/prefix]`, the stack's name is added; empty for this machine's own.
        key: Signs evidence and release.
        trust: Whose evidence is believed.
        settings: How to speak to the registry.
        evidence: Directory or file of evidence from other machines.
        waivers: What may pass for a while.
        gates: What the gates are told.
        candidate: Stop before the release: the image is pushed and its evidence attached, for other machines.
        output: Folder of records; by default `build/<stack>/release-<time>` of the checkout.
    """

    stack: str
    root: Path
    registry: str
    key: SigningKey
    trust: Trust
    settings: Settings
    evidence: Path | None = None
    waivers: tuple[Waiver, ...] = ()
    gates: GateOptions = field(default_factory=GateOptions)
    candidate: bool = False
    output: Path | None = None


class Step(Record):
    """One step of the chain.

    Attributes:
        name: What was done.
        seconds: How long it took.
        seen: What came of it, one sentence.
    """

    name: str
    seconds: float
    seen: str


class ChainResult(Record):
    """What a run of the chain did.

    Attributes:
        stack: Name of the stack.
        image: `repository@digest`.
        released: The release; None for a candidate.
        steps: In order.
        evidence: Folder with everything that was signed.
    """

    stack: str
    image: str
    released: Released | None
    steps: tuple[Step, ...]
    evidence: Path


def policy_of(file: StackFile) -> ReleasePolicy:
    """What the stack's release needs.

    Raises:
        InputError: The stack does not say.
    """
    if file.stack.release is None:
        raise InputError(
            f"stack {file.stack.name} does not say what its release needs",
            where=str(file.path),
            fix="add release: with the device and its gates, as the other stacks have it",
        )
    return file.stack.release


@dataclass(frozen=True)
class Examined:
    """A stack and this machine, before anything is done.

    Attributes:
        file: The stack.
        policy: What its release needs.
        here: This machine with the device of the policy; None when it has none.
        builder: This machine as one that builds and inspects.
    """

    file: StackFile
    policy: ReleasePolicy
    here: Hardware | None
    builder: Hardware


def examine(stack: str, root: Path) -> Examined:
    """Read a stack and look at this machine.

    Args:
        stack: Name of the stack.
        root: The checkout.

    Raises:
        InputError: There is no such stack, or it does not say what its release needs.
    """
    file = load_stack(stack, root)
    policy = policy_of(file)
    host = this_machine()
    here = hardware_of(host, policy.device) if policy.device is Device.CPU or host.gpus else None
    return Examined(file, policy, here, hardware_of(host, Device.CPU))


@dataclass
class _Run:
    """A run under way."""

    request: ChainRequest
    examined: Examined
    folder: Path
    client: docker.DockerClient
    steps: list[Step] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Time a step; what is put into the list is what came of it."""
        console.say(f"== {name}")
        clock, seen = time.monotonic(), list[str]()
        yield seen
        step = Step(name=name, seconds=round(time.monotonic() - clock, 1), seen="; ".join(seen))
        self.steps.append(step)
        console.say(f"== {name}: {step.seconds:g} s{', ' if seen else ''}{step.seen}")

    @property
    def bundles(self) -> Path:
        return self.folder / "evidence"


def release_stack(request: ChainRequest, examined: Examined | None = None) -> ChainResult:
    """Take a stack from its declaration to a release in a registry.

    Args:
        request: What should be released, where and by whom.
        examined: What `examine` found; then what this machine cannot make was asked before.

    Raises:
        ReleaseRefusedError: Something is missing: before anything is built when this machine cannot make it,
            else with all that was found. No tag was written.
        ToolkitError: A step failed. No tag was written.
    """
    if examined is None:
        examined = examine(request.stack, request.root)
        signed = read_directory(request.evidence, request.trust).signed if request.evidence else ()
        if not request.candidate:
            refuse_if_hopeless(
                request.stack,
                request.registry,
                Prospects(examined.policy, examined.here, signed, waivers=request.waivers),
                datetime.now(UTC),
            )
    registry = request.registry or local.start(console.say).host
    reference = parse_reference(f"{registry}/{request.stack}")
    folder = request.output or request.root / "build" / request.stack / f"release-{now().replace(':', '')}"
    with closing(ensure_engine(console.say)) as client, Repository(reference, request.settings) as repository:
        return _run(_Run(request, examined, folder, client), repository)


def _run(run: _Run, repository: Repository) -> ChainResult:
    request, stack = run.request, run.examined.file.stack
    with run.step("build") as seen:
        record = build(stack.name, request.root)
        seen.append(f"{record.reference}, {record.size_bytes / 1e6:.0f} MB")
    with run.step("push") as seen:
        image = push_image(run.client, record.image_id, repository, console.say)
        pin(repository, image)
        seen.append(image.digest)
    about = _About(image=repository.name, digest=image.digest)
    commit = source_commit(request.root)
    status = read_files(run.client, record.image_id, [DPKG_STATUS]).get(DPKG_STATUS, b"").decode()
    statements = [
        build_statement(build_facts(record, run.examined.file, source_commit=commit), **about),
        sbom_statement(package_list(record, status), **about),
    ]
    with run.step("inspection") as seen:
        inspected = inspect_image(stack.name, request.root, run.client, console.say, record.image_id)
        seen.append(f"{inspected.verdict}, {len(inspected.checks)} checks")
        statements.append(statement_of(inspected, hardware=run.examined.builder, **about))
        found = _inventory(run, repository, image, record.image_id)
        if found.now is not None:
            statements.append(inventory_statement(found.now, **about))
    with run.step("gates") as seen:
        gates, more = _gates(run, repository, image, record.image_id)
        statements += more
        seen.append(", ".join(f"{gate.gate} {gate.verdict}" for gate in gates))
    with run.step("evidence") as seen:
        signed = _sign(run, statements)
        manifests = [upload_bundle(repository, image, one) for one in signed]
        attach_manifests(repository, image.digest, manifests)
        seen.append(f"{len(signed)} statements signed and attached")
    _refuse_failures(run, [inspected, *gates], image.digest)
    released = None
    if not request.candidate:
        with run.step("release") as seen:
            released = release(
                ReleaseRequest(
                    stack=stack.name,
                    engine_version=stack.engine.version,
                    policy=run.examined.policy,
                    tool_version=version("blackwell-stacks"),
                    evidence=request.evidence,
                    facts=found.facts,
                    waivers=request.waivers,
                ),
                repository,
                image.digest,
                key=request.key,
                trust=request.trust,
                now=datetime.now(UTC),
            )
            seen.append(f"{released.name}: {released.verification.status}, verified after the push")
    return ChainResult(
        stack=stack.name,
        image=f"{repository.name}@{image.digest}",
        released=released,
        steps=tuple(run.steps),
        evidence=run.bundles,
    )


def _sign(run: _Run, statements: list[Statement]) -> list[Signed]:
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


def _gates(
    run: _Run, repository: Repository, image: Manifest, image_id: str
) -> tuple[list[GateResult], list[Statement]]:
    """The gates on a running engine where this machine is the target; else those that need no target."""
    stack, request = run.examined.file.stack, run.request
    about = _About(image=repository.name, digest=image.digest)
    if run.examined.here is None or not runs_here(run.examined.policy, run.examined.here):
        words = stack_contract(stack).command[len(stack.serve.command) :]
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
        baselines=options.baselines,
        output=run.folder / "gates",
    )
    statements = verify_statements(record, image_id=image_id, hardware=run.examined.here, **about)
    return list(record.gates), statements


def _refuse_failures(run: _Run, gates: list[GateResult], digest: str) -> None:
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
class _Found:
    """What the inspection knows beside its verdict."""

    now: Inventory | None
    facts: ReleaseFacts


def _inventory(run: _Run, repository: Repository, image: Manifest, image_id: str) -> _Found:
    """Device code and arch gates of the image, held against those of the previous release."""
    stack, request = run.examined.file.stack, run.request
    previous = previous_release(
        repository, stack.name, request.trust, now=datetime.now(UTC), besides=image.digest
    )
    digest = previous.digest if previous else ""
    if not stack.targets.required:
        return _Found(None, ReleaseFacts(previous=digest))
    console.say("inventory: device code and arch gates, for later releases to be compared with")
    lock = read_lock(run.examined.file, request.root)
    packages = {wheel.name: wheel.version for wheel in lock.wheels}
    plans = ingredients_of(run.examined.file, lock, request.root / "images").plans
    scans = scans_of(run.client, image_id, site_packages(stack), packages, plans, say=console.say)
    found = inventory(census_of_image(image_id, run.client), scans)
    if previous is None:
        return _Found(found, ReleaseFacts(unjudged_arch_gates=new_unjudged(scans, None)))
    before = [
        signed.statement.read(Inventory)
        for signed in collect_referrers(repository, digest, request.trust).of(Inventory)
    ]
    if not before:
        return _Found(found, ReleaseFacts(previous=digest))
    return _Found(
        found,
        ReleaseFacts(
            previous=digest,
            unjudged_arch_gates=new_unjudged(scans, before[-1]),
            census_worse=lost_code(before[-1].census, found.census, stack.targets.required),
        ),
    )


def attest_stack(request: ChainRequest, image: str) -> ChainResult:
    """Run a stack's gates on this machine, on an image that another one has pushed, and sign what came of it.

    Args:
        request: As for the release; the registry is the image's own.
        image: `host[:port]/repository@sha256:...`.

    Raises:
        InputError: The image is not named by its digest, or this machine is not the stack's target.
        ToolkitError: A step failed.
    """
    reference = parse_reference(image)
    if not reference.digest:
        raise InputError("evidence is about a digest, a tag can be moved", where=image, fix="add @sha256:...")
    examined = examine(request.stack, request.root)
    if not runs_here(examined.policy, examined.here):
        policy = examined.policy
        raise InputError(
            f"this machine is not what stack {request.stack} is for",
            where=examined.here.describe() if examined.here else "no GPU with a driver",
            fix=f"run it on GPUs {' or '.join(policy.compute_capabilities)}, driver {policy.driver_min} or newer",
        )
    folder = request.output or request.root / "build" / request.stack / f"attest-{now().replace(':', '')}"
    with closing(ensure_engine(console.say)) as client, Repository(reference, request.settings) as repository:
        run = _Run(request, examined, folder, client)
        with run.step("pull") as seen:
            manifest = repository.manifest(reference.digest)
            image_id = pull(client, f"{repository.name}@{manifest.digest}")
            seen.append(image_id)
        with run.step("gates") as seen:
            gates, statements = _gates(run, repository, manifest, image_id)
            seen.append(", ".join(f"{gate.gate} {gate.verdict}" for gate in gates))
        signed = _sign(run, statements)
        if request.evidence:
            for statement in statements:
                write_evidence(statement, request.key, request.evidence)
        else:
            attach_manifests(
                repository, manifest.digest, [upload_bundle(repository, manifest, one) for one in signed]
            )
    return ChainResult(
        stack=request.stack,
        image=f"{repository.name}@{manifest.digest}",
        released=None,
        steps=tuple(run.steps),
        evidence=request.evidence or run.bundles,
    )


def pull(client: docker.DockerClient, image: str) -> str:
    """Pull an image by digest; the engine's id of it."""
    repository, _, digest = image.partition("@")
    return str(client.images.pull(repository, tag=digest).id)
