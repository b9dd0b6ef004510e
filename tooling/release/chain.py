"""The whole chain of one stack: build, push, gates on what was pushed, signed evidence, release, verification.

Evidence names the digest of the manifest, so the image is pushed first, under a tag that says nothing of its
quality. The release's own tag is the last write: wherever the chain breaks, there is no release.
"""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

from tooling import console
from tooling.attest.inventory import inventory_statement
from tooling.attest.provenance import build_statement
from tooling.attest.sbom import sbom_statement
from tooling.build import build
from tooling.dockerhost import ensure_engine
from tooling.dockerhost.containers import read_files
from tooling.errors import InputError
from tooling.inspection.inspect import inspect_image
from tooling.records import now
from tooling.registry import local
from tooling.registry.attach import attach_manifests, pin
from tooling.registry.push import push_image
from tooling.registry.reference import parse_reference
from tooling.registry.repository import Repository
from tooling.release.builds import DPKG_STATUS, build_facts, package_list, source_commit
from tooling.release.evidence import collect_referrers, read_directory, upload_bundle, write_evidence
from tooling.release.gates import statement_of
from tooling.release.preflight import Prospects, refuse_if_hopeless, runs_here
from tooling.release.publish import ReleaseRequest, release
from tooling.release.run import Brought, ChainRequest, ChainResult, Examined, Run, examine
from tooling.release.steps import About, pull, refuse_failures, run_gates, sign_all, take_inventory

if TYPE_CHECKING:
    from tooling.attest.statement import Statement
    from tooling.registry.manifest import Manifest
    from tooling.registry.reference import Reference
    from tooling.sign.bundle import Signed
    from tooling.sign.keys import Trust


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
        if not request.candidate:
            refuse_early(examined, request, request.trust)
    reference = _target(request)
    folder = request.output or request.root / "build" / request.stack / f"release-{now().replace(':', '')}"
    with closing(ensure_engine(console.say)) as client, Repository(reference, request.settings) as repository:
        return _run(Run(request, examined, folder, client), repository)


def _target(request: ChainRequest) -> Reference:
    """Where the release goes; an image that is there already says so itself."""
    if request.image:
        return _by_digest(request.image)
    registry = request.registry or local.start(console.say).host
    return parse_reference(f"{registry}/{request.stack}")


def _by_digest(image: str) -> Reference:
    reference = parse_reference(image)
    if not reference.digest:
        raise InputError("a tag can be moved, evidence is about a digest", where=image, fix="add @sha256:...")
    return reference


def refuse_early(examined: Examined, brought: Brought, trust: Trust | None) -> None:
    """Refuse before anything is built when something is missing that this machine cannot make.

    Args:
        examined: The stack and this machine.
        brought: What exists already.
        trust: Whose evidence is believed; needed when there is some.

    Raises:
        ReleaseRefusedError: With the checklist, and the commands that bring what is missing.
    """
    signed: list[Signed] = []
    digest = ""
    if brought.evidence and trust:
        signed += read_directory(brought.evidence, trust).signed
    if brought.image and trust:
        reference = _by_digest(brought.image)
        digest = reference.digest
        with Repository(reference, brought.settings) as repository:
            signed += collect_referrers(repository, digest, trust).signed
    prospects = Prospects(examined.policy, examined.here, tuple(signed), digest, brought.waivers)
    refuse_if_hopeless(examined.file.stack.name, brought.registry, prospects, datetime.now(UTC))


def _made(run: Run, repository: Repository) -> tuple[Manifest, str, list[Statement]]:
    """The image, as the registry and as the engine know it: built and pushed, or pulled when it is there."""
    request, file = run.request, run.examined.file
    if request.image:
        with run.step("pull") as seen:
            image = repository.manifest(parse_reference(request.image).digest)
            image_id = pull(run.client, f"{repository.name}@{image.digest}")
            seen.append(image_id)
        return image, image_id, []
    with run.step("build") as seen:
        record = build(file.stack.name, request.root)
        seen.append(f"{record.reference}, {record.size_bytes / 1e6:.0f} MB")
    with run.step("push") as seen:
        image = push_image(run.client, record.image_id, repository, console.say)
        pin(repository, image)
        seen.append(image.digest)
    about = About(image=repository.name, digest=image.digest)
    facts = build_facts(record, file, source_commit=source_commit(request.root))
    status = read_files(run.client, record.image_id, [DPKG_STATUS]).get(DPKG_STATUS, b"").decode()
    bill = sbom_statement(package_list(record, status), **about)
    return image, record.image_id, [build_statement(facts, **about), bill]


def _run(run: Run, repository: Repository) -> ChainResult:
    request, stack = run.request, run.examined.file.stack
    image, image_id, statements = _made(run, repository)
    about = About(image=repository.name, digest=image.digest)
    with run.step("inspection") as seen:
        inspected = inspect_image(stack.name, request.root, run.client, console.say, image_id)
        seen.append(f"{inspected.verdict}, {len(inspected.checks)} checks")
        statements.append(statement_of(inspected, hardware=run.examined.builder, **about))
        found = take_inventory(run, repository, image, image_id)
        if found.now is not None:
            statements.append(inventory_statement(found.now, **about))
    with run.step("gates") as seen:
        gates, more = run_gates(run, repository, image, image_id)
        statements += more
        seen.append(", ".join(f"{gate.gate} {gate.verdict}" for gate in gates))
    with run.step("evidence") as seen:
        signed = sign_all(run, statements)
        manifests = [upload_bundle(repository, image, one) for one in signed]
        attach_manifests(repository, image.digest, manifests)
        seen.append(f"{len(signed)} statements signed and attached")
    refuse_failures(run, [inspected, *gates], image.digest)
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


def attest_stack(request: ChainRequest, image: str) -> ChainResult:
    """Run a stack's gates on this machine, on an image that another one has pushed, and sign what came of it.

    Args:
        request: As for the release; the registry is the image's own.
        image: `host[:port]/repository@sha256:...`.

    Raises:
        InputError: The image is not named by its digest, or this machine is not the stack's target.
        ToolkitError: A step failed.
    """
    reference = _by_digest(image)
    examined = examine(request.stack, request.root)
    if not runs_here(examined.policy, examined.here):
        policy = examined.policy
        raise InputError(
            f"this machine is not what stack {request.stack} is for",
            where=examined.here.describe() if examined.here else "no GPU with a driver",
            fix=f"run it on GPUs {' or '.join(policy.compute_capabilities)}, driver from {policy.driver_min}",
        )
    folder = request.output or request.root / "build" / request.stack / f"attest-{now().replace(':', '')}"
    with closing(ensure_engine(console.say)) as client, Repository(reference, request.settings) as repository:
        run = Run(request, examined, folder, client)
        with run.step("pull") as seen:
            manifest = repository.manifest(reference.digest)
            image_id = pull(client, f"{repository.name}@{manifest.digest}")
            seen.append(image_id)
        with run.step("gates") as seen:
            gates, statements = run_gates(run, repository, manifest, image_id)
            seen.append(", ".join(f"{gate.gate} {gate.verdict}" for gate in gates))
        signed = sign_all(run, statements)
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
