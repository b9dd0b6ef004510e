"""Build a stack's image: what can be refused is refused before the download, nothing is half-tagged."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections import deque
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docker.errors import APIError

from tooling import console, runner
from tooling.base.bootstrap import ensure_base, read_base_lock
from tooling.build.context import LABEL, SHARE, Ingredients, gather, labels_of, render_dockerfile
from tooling.build.failure import explain, yanked_pins
from tooling.build.job import Job, open_job
from tooling.build.kernels import (
    export_kernels,
    import_kernels,
    judge_module,
    kernel_inputs,
    read_kernels_of,
)
from tooling.build.layers import assign_layers
from tooling.build.patching import patch_hashes, plans_of
from tooling.build.progress import Progress
from tooling.build.record import BuildInputs, BuildRecord, ImageLayer, KernelReceipt, PatchReceipt
from tooling.census.rules import load_rules
from tooling.dockerhost import require_disk
from tooling.dockerhost.containers import read_files, run_once
from tooling.dockerhost.daemon import engine_versions
from tooling.dockerhost.disk import GB
from tooling.errors import CheckError, CommandError, EngineError, InputError
from tooling.gates.records import Verdict
from tooling.lock.indexes import index_addresses, on_loopback, uv_index_variables
from tooling.lock.resolve import read_lock
from tooling.prune.records import PruneReport
from tooling.prune.run import check_whole
from tooling.records import now, sha256_of
from tooling.stack import load_stack

if TYPE_CHECKING:
    import docker

    from tooling.base.bootstrap import BaseImage
    from tooling.dockerhost import BuildClient
    from tooling.lock.lockfile import Lock
    from tooling.prune.records import PruneRules
    from tooling.stack.model import Stack, StackFile

REPOSITORY = "blackwell-stacks"
_CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
#: Steps of a Dockerfile that change the configuration and make no layer.
_METADATA_ONLY = re.compile(
    r"^(?:/bin/sh -c #\(nop\)\s+)?"
    r"(ENV|USER|LABEL|EXPOSE|CMD|ENTRYPOINT|ARG|STOPSIGNAL|VOLUME|HEALTHCHECK|SHELL)\b"
)


def build(name: str, root: Path, output: Path | None = None, *, no_cache: bool = False) -> BuildRecord:
    """Build and check the image of a stack; only then it gets a name.

    Args:
        name: Name of the stack.
        root: The checkout.
        output: Folder for records and logs; by default `build/` in the checkout.
        no_cache: Run every step again, as on a machine that never built this stack.

    Returns:
        The record, which is also written beside the log.

    Raises:
        ToolkitError: Nothing was tagged, and an earlier image of the stack is as it was.
    """
    file = load_stack(name, root)
    stack = file.stack
    lock = read_lock(file, root)
    layers = assign_layers(stack, lock)
    base_lock = read_base_lock(file)
    added = ingredients_of(file, lock, root / "images")
    directory = (output or root / "build") / name
    directory.mkdir(parents=True, exist_ok=True)
    with open_job(stack, directory, no_cache=no_cache) as job:
        client = job.client
        if not _built_before(client, name):
            require_disk(client, stack.budget.build_disk_gb, console.say)
        clock = time.monotonic()
        base = ensure_base(stack, base_lock, client, console.say)
        job.durations_s["base"] = round(time.monotonic() - clock, 1)
        images = root / "images"
        compiled_from = kernel_inputs(stack, lock, base, added.plans, images)
        if kept := import_kernels(compiled_from, job.context):
            console.say(f"kernels: {', '.join(kept)} from the kernel cache")
        hashes = gather(stack, lock, layers, added, images=images, context=job.context, epoch=base.epoch)
        inputs = _inputs(stack, lock, base, added, images=images, hashes=hashes, compiled_from=compiled_from)
        labels = {**labels_of(stack, lock, base), f"{LABEL}.inputs-sha256": inputs.sha256}
        dockerfile = render_dockerfile(stack, base, added, images, labels, ca=ca_bundle() is not None)
        job.dockerfile.write_text(dockerfile, encoding="utf-8")
        image_id = run_build(job)
        try:
            record = _examine(job, image_id, inputs)
        except BaseException:
            _discard(client, image_id)
            raise
        _tag(client, image_id, record)
    path = directory / "record.json"
    path.write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
    console.say(f"built {record.reference}: {record.size_bytes / GB:.2f} GB, record {path}, log {record.log}")
    return record


def _built_before(client: docker.DockerClient, name: str) -> bool:
    """Whether the engine holds an image of this stack, so that most layers are there."""
    return bool(client.images.list(filters={"label": f"{LABEL}.stack={name}"}))


def ca_bundle() -> str | None:
    """This machine's CA bundle, which goes into the build as a secret and never stays."""
    given = os.environ.get("SSL_CERT_FILE")
    return next((path for path in (given, *_CA_BUNDLES) if path and Path(path).is_file()), None)


def ingredients_of(file: StackFile, lock: Lock, images: Path) -> Ingredients:
    """What a stack puts on top of its packages: patches, and the rules on its device code.

    Raises:
        InputError: A series does not fit the lock, or a stack with targets has no census rules.
    """
    census = load_rules(file.census_path) if file.stack.targets.required else None
    return Ingredients(plans=plans_of(file.stack, lock, images), census=census)


def _inputs(
    stack: Stack,
    lock: Lock,
    base: BaseImage,
    added: Ingredients,
    *,
    images: Path,
    hashes: dict[str, str],
    compiled_from: dict[str, str],
) -> BuildInputs:
    # The labels hold the hash of the inputs, so the Dockerfile is hashed without them.
    unlabelled = render_dockerfile(stack, base, added, images, {}, ca=False)
    return BuildInputs(
        stack=stack.name,
        stack_sha256=stack.image_sha256,
        base={"reference": base.reference, "packages_sha256": sha256_of(base.packages)},
        base_drift=base.drift,
        lock_sha256=lock.content_sha256,
        dockerfile_sha256=sha256_of(unlabelled.encode()),
        context_sha256=hashes,
        patches=patch_hashes(added.plans),
        kernels=compiled_from,
        epoch=base.epoch,
    )


def build_argv(
    builder: BuildClient,
    dockerfile: Path,
    context: Path,
    iid: Path,
    secrets: dict[str, str],
    *,
    host_network: bool,
) -> list[str]:
    """The build command.

    Args:
        builder: The client that builds.
        dockerfile: The rendered Dockerfile.
        context: The build context.
        iid: File that gets the id of the image.
        secrets: Files by secret id; they are mounted during a step and never part of a layer.
        host_network: Whether steps see this host's loopback, where a local package mirror may be.
    """
    argv = [*builder.build_argv, "--progress=plain", "--file", str(dockerfile), "--iidfile", str(iid)]
    for name, path in secrets.items():
        argv += ["--secret", f"id={name},src={path}"]
    for variable in _PROXIES:
        if os.environ.get(variable):
            argv += ["--build-arg", variable]
    if host_network:
        argv += ["--network", "host"]
    return [*argv, str(context)]


def run_build(job: Job) -> str:
    """Run the build; returns the image's id and notes the seconds by phase."""
    addresses = index_addresses(job.stack.lock.indexes)
    indexes = job.temporary / "indexes"
    indexes.touch(mode=0o600)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in uv_index_variables(addresses).items()]
    indexes.write_text("\n".join([*lines, ""]), encoding="utf-8")
    ca = ca_bundle()
    secrets = {"indexes": str(indexes)} | ({"ca": ca} if ca else {})
    iid = job.temporary / "iid"
    argv = build_argv(
        job.builder, job.dockerfile, job.context, iid, secrets, host_network=on_loopback(addresses)
    )
    argv[-1:-1] = [*(["--no-cache"] if job.no_cache else []), *(["--target", job.target] if job.target else [])]
    last: deque[str] = deque(maxlen=40)
    console.say(f"building {job.stack.name} with {job.builder.path} {job.builder.version}, log {job.log}")
    with job.log.open("w", encoding="utf-8") as stream, Progress(stream) as progress:

        def on_line(line: str) -> None:
            last.append(line)
            progress.line(line)

        code = runner.stream(argv, on_line, env=job.builder.environment)
    job.durations_s |= progress.durations_s
    if code != 0:
        _require_engine(job)
        raise explain(progress.failed, list(last), str(job.log))
    withdrawn = yanked_pins(job.log.read_text(encoding="utf-8").splitlines())
    pins = sorted(set(withdrawn) - set(job.stack.lock.allow_yanked))
    if pins:
        raise InputError(
            f"the index has withdrawn (yanked) what the lock needs: {', '.join(pins)}",
            where=f"stack {job.stack.name}",
            fix="lock again, or list it under lock.allow_yanked",
        )
    return iid.read_text(encoding="utf-8").strip()


def _require_engine(job: Job) -> None:
    """After a failed build: the client's last words differ between versions, an engine's silence does not."""
    try:
        runner.run([job.builder.path, "version", "--format", "{{.Server.Version}}"], timeout_s=30)
    except CommandError as error:
        raise EngineError(
            "the Docker Engine went away during the build",
            where=f"full log: {job.log}",
            details=error.details,
            fix="start it again and repeat the build: finished layers are kept",
        ) from error


def _examine(job: Job, image_id: str, inputs: BuildInputs) -> BuildRecord:
    """Look at the image that was built, run its selftest, and write down all of it."""
    clock = time.monotonic()
    stack = job.stack
    layers = image_layers(job.client, image_id)
    too_big = [layer for layer in layers if layer.bytes > stack.budget.layer_gb * GB]
    if too_big:
        raise CheckError(
            f"a layer is larger than {stack.budget.layer_gb:g} GB: a broken transfer would lose too much",
            where=f"stack {stack.name}, layers",
            details=[f"{layer.bytes / GB:.2f} GB: {layer.created_by[-80:]}" for layer in too_big],
            fix="split it into two layers in the stack",
        )
    contents = _contents(job.client, image_id)
    pruned = _pruned(job.client, image_id, stack.prune_rules) if stack.prune_rules is not None else None
    kernels, kernel_count = _kernels(job.client, image_id, stack, inputs.kernels)
    selftest = run_selftest(job.client, image_id)
    job.durations_s["selftest"] = round(time.monotonic() - clock, 1)
    return BuildRecord(
        tool_version=version("blackwell-stacks"),
        inputs=inputs,
        inputs_sha256=inputs.sha256,
        image_id=image_id,
        reference=f"{REPOSITORY}/{stack.name}:{image_id.removeprefix('sha256:')[:12]}",
        size_bytes=sum(layer.bytes for layer in layers),
        layers=tuple(layers),
        contents=contents,
        pruned=pruned.totals if pruned else {},
        patches=read_patch_receipts(job.client, image_id) if inputs.patches else (),
        kernels=kernels,
        kernel_count=kernel_count,
        selftest=selftest,
        engine={
            **engine_versions(job.client),
            "client": job.builder.version,
            "client_kind": job.builder.kind,
        },
        started=job.started,
        ended=now(),
        durations_s=job.durations_s,
        log=str(job.log),
    )


def image_layers(client: docker.DockerClient, image_id: str) -> list[ImageLayer]:
    """Layers of an image from the base up, each with the step that made it.

    Raises:
        CheckError: The engine's history does not tell which step made which layer.
    """
    inspected: dict[str, Any] = client.api.inspect_image(image_id)  # type: ignore[no-untyped-call]
    history: list[dict[str, Any]] = client.api.history(image_id)  # type: ignore[no-untyped-call]
    steps = [step for step in reversed(history) if not _METADATA_ONLY.match(step["CreatedBy"])]
    diff_ids = inspected["RootFS"]["Layers"]
    if len(steps) != len(diff_ids):
        raise CheckError(f"the image has {len(diff_ids)} layers and {len(steps)} steps that make one", image_id)
    return [
        ImageLayer(diff_id=diff_id, bytes=step["Size"], created_by=step["CreatedBy"] or step["Comment"])
        for diff_id, step in zip(diff_ids, steps, strict=True)
    ]


def _contents(client: docker.DockerClient, image_id: str) -> dict[str, Any]:
    """The report of the checks that ran while the image was built, read from the image itself."""
    done = run_once(client, image_id, ["cat", f"{SHARE}/contents.json"])
    if done.exit_code:
        raise CheckError(
            "the image carries no report of its contents", image_id, details=done.stderr.splitlines()
        )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _pruned(client: docker.DockerClient, image_id: str, rules: PruneRules) -> PruneReport:
    """What the pruner did in all layers together.

    Raises:
        CheckError: There is no report, nothing was pruned, or a rule matches no file.
    """
    done = run_once(client, image_id, ["cat", f"{SHARE}/prune.json"])
    if done.exit_code:
        raise CheckError(
            "the image carries no report of its pruning", image_id, details=done.stderr.splitlines()
        )
    report = PruneReport.model_validate_json(done.stdout)
    check_whole(report, rules)
    gone = {
        name: report.totals.get(f"bytes_{name}", 0) / GB
        for name in ("removed", "stripped", "dropped", "linked")
    }
    console.say(
        f"pruned: {gone['removed']:.2f} GB of device code in {report.totals['pruned']} libraries, "
        f"{gone['stripped']:.2f} GB of symbols, {gone['linked']:.2f} GB of copies, "
        f"{gone['dropped']:.2f} GB in {report.totals['dropped']} files that the stack drops"
    )
    return report


def _kernels(
    client: docker.DockerClient, image_id: str, stack: Stack, inputs: dict[str, str]
) -> tuple[tuple[KernelReceipt, ...], int]:
    """Look at every kernel that was compiled in, and keep the modules for later builds.

    Raises:
        CheckError: A module is missing, or one of its kernels is empty, spills or cannot run on the target.
    """
    if stack.kernels is None:
        return (), 0
    compiled = read_kernels_of(client, image_id, stack.kernels)
    count = 0
    bad = []
    for module, (_, library) in compiled.items():
        found, checks = judge_module(module, library, stack.kernels)
        count += len(found)
        bad += [f"{module}: {check.seen}" for check in checks if check.verdict is not Verdict.PASS]
    if bad:
        raise CheckError(
            "kernels that were compiled in cannot do their work",
            where=f"stack {stack.name}, kernels",
            details=bad,
            fix="see `blackwell-stacks kernels FILE`; correct the sources or patches, or leave the module out",
        )
    for path in export_kernels(compiled, inputs):
        console.say(f"kernels: kept {path}")
    return tuple(receipt for receipt, _ in compiled.values()), count


def read_patch_receipts(client: docker.DockerClient, image_id: str) -> tuple[PatchReceipt, ...]:
    """What the image says of its patches.

    Raises:
        CheckError: It says nothing.
    """
    place = f"{SHARE}/patches.json"
    found = read_files(client, image_id, [place])
    if place not in found:
        raise CheckError("the image carries no receipt of its patches", image_id)
    return tuple(PatchReceipt.model_validate(one) for one in json.loads(found[place]))


def run_selftest(client: docker.DockerClient, image_id: str) -> dict[str, Any]:
    """Run the image's own selftest without a GPU.

    Raises:
        CheckError: One of its checks failed, or it checked nothing.
    """
    done = run_once(client, image_id, ["selftest", "--json"])
    if done.exit_code:
        raise CheckError(
            "the image's selftest failed",
            where=image_id,
            details=done.stderr.splitlines()[-20:],
            fix="see the checks above",
        )
    report: dict[str, Any] = json.loads(done.stdout)
    if not report.get("checks"):
        raise CheckError("the image's selftest checked nothing", where=image_id)
    return report


def _tag(client: docker.DockerClient, image_id: str, record: BuildRecord) -> None:
    """Give the image its own name, and move the stack's local pointer to it."""
    image = client.images.get(image_id)
    repository, tag = record.reference.rsplit(":", 1)
    image.tag(repository, tag)
    image.tag(repository, "built")


def _discard(client: docker.DockerClient, image_id: str) -> None:
    """Remove an image that failed its checks, unless an earlier build gave it a name."""
    try:
        if not client.images.get(image_id).tags:
            client.images.remove(image_id)
    except APIError as error:
        console.say(f"the rejected image {image_id[:19]} could not be removed: {error}")
