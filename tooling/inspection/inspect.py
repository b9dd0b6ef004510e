"""Inspect an image: device code, compiled kernels, patches, arch gates, contents, torch's targets."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from docker.errors import ImageNotFound

from tooling.archgates.records import PackageScan, Polarity
from tooling.build.builder import REPOSITORY, ingredients_of, read_patch_receipts
from tooling.build.context import LABEL, SHARE, site_packages
from tooling.build.kernels import judge_module, read_kernels_of
from tooling.census.rules import judge
from tooling.census.take import census_of_image
from tooling.dockerhost.containers import read_files
from tooling.errors import CheckError, InputError
from tooling.gates.records import Check, GateResult, Verdict, worst
from tooling.inspection.sources import scans_of
from tooling.lock.resolve import read_lock
from tooling.prune.records import PruneReport
from tooling.prune.run import check_whole
from tooling.records import now, sha256_of
from tooling.stack import load_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import docker

    from tooling.build.context import Ingredients
    from tooling.build.record import KernelReceipt, PatchReceipt
    from tooling.patches.overlay import Plan
    from tooling.prune.records import PruneRules
    from tooling.stack.model import Kernels, Stack

GATE = "inspection"


def inspect_image(
    name: str, root: Path, client: docker.DockerClient, say: Callable[[str], None], image: str | None = None
) -> GateResult:
    """Hold an image against its stack; needs no GPU and no CUDA toolkit.

    Args:
        name: The stack.
        root: The checkout.
        client: The Docker Engine that holds the image.
        say: Told what takes longer than a moment.
        image: Reference of the image; by default what was built last.

    Raises:
        InputError: There is no such stack or image, or the image is one of another stack.
    """
    started = now()
    file = load_stack(name, root)
    stack = file.stack
    lock = read_lock(file, root)
    added = ingredients_of(file, lock, root / "images")
    image_id = _image_of(client, stack, image or f"{REPOSITORY}/{name}:built")
    contents = _contents(client, image_id)
    checks = [*contents_checks(contents, {wheel.name: wheel.version for wheel in lock.wheels})]
    if stack.prune_rules is not None:
        checks.append(pruning_check(_pruning(client, image_id), contents, stack.prune_rules))
    limitations = ["dynamic shared memory and kernels made at run time (Triton, JIT) are not in any file"]
    if stack.targets.required:
        say("device code: reading it inside a container of the image ...")
        checks += torch_checks(contents, stack.targets.required)
        if added.census is not None:
            record = census_of_image(image_id, client)
            found = judge(record, added.census, stack.targets.required)
            checks += [check.model_copy(update={"name": f"census: {check.name}"}) for check in found]
    if stack.kernels is not None:
        checks += _kernel_checks(client, image_id, stack.kernels)
    if added.plans:
        receipts, patched = _patch_checks(client, image_id, stack, added.plans)
        checks += patched
        limitations += [
            f"{module} cannot be imported without a GPU, so its patch was compiled and not imported"
            for receipt in receipts
            for module in receipt.not_importable
        ]
    packages = {entry["name"]: entry["version"] for entry in contents["packages"]}
    if stack.targets.required:
        gates, more = _gate_checks(client, image_id, stack, packages, added, say=say)
        checks += gates
        limitations += more
    return GateResult(
        gate=GATE,
        verdict=worst(check.verdict for check in checks),
        checks=tuple(checks),
        limitations=tuple(limitations),
        configuration_sha256=sha256_of(
            {
                "stack": stack.image_sha256,
                "census": added.census.model_dump(mode="json") if added.census else None,
                "plans": [plan.to_json() for plan in added.plans],
            }
        ),
        started=started,
        ended=now(),
    )


def _image_of(client: docker.DockerClient, stack: Stack, reference: str) -> str:
    try:
        image = client.images.get(reference)
    except ImageNotFound as error:
        raise InputError(
            f"no image {reference!r} in the Docker Engine", fix=f"build it (build {stack.name}) or pull it"
        ) from error
    made_for = image.labels.get(f"{LABEL}.stack")
    if made_for != stack.name:
        raise InputError(
            f"{reference} is an image of stack {made_for or 'none'}, not of {stack.name}",
            fix="name an image of the stack, or the stack of the image",
        )
    return str(image.id)


def _contents(client: docker.DockerClient, image_id: str) -> dict[str, Any]:
    place = f"{SHARE}/contents.json"
    found = read_files(client, image_id, [place])
    if place not in found:
        raise CheckError("the image carries no report of its contents", image_id, fix="build it again")
    report: dict[str, Any] = json.loads(found[place])
    return report


def _check(name: str, bad: Sequence[str], seen: str, details: Sequence[str] = ()) -> Check:
    """A check that fails with the lines that are wrong."""
    return Check(
        name=name,
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        seen=f"{len(bad)} wrong: {bad[0]}" if bad else seen,
        value=len(bad),
        threshold=0,
        details=tuple(bad) or tuple(details),
    )


def contents_checks(contents: Mapping[str, Any], locked: Mapping[str, str]) -> Iterator[Check]:
    """What the build found when it looked at every file, and whether the packages are those of the lock."""
    bad = [*contents["findings"], *(f"stale: {entry}" for entry in contents["stale"])]
    if not contents["hashed_files"]:
        bad.append("no file was looked at")
    seen = f"{contents['hashed_files']} files as in their wheels, {len(contents['allowed'])} known findings"
    yield _check("contents", bad, seen, contents["allowed"])
    have = {entry["name"]: entry["version"] for entry in contents["packages"]}
    wrong = [
        f"{name}: locked {locked.get(name, 'no')}, in the image {have.get(name, 'no')}"
        for name in sorted(locked.keys() | have.keys())
        if locked.get(name) != have.get(name)
    ]
    yield _check("packages", wrong, f"{len(have)} packages, each as locked")


def _pruning(client: docker.DockerClient, image_id: str) -> PruneReport | None:
    place = f"{SHARE}/prune.json"
    found = read_files(client, image_id, [place])
    return PruneReport.model_validate_json(found[place]) if place in found else None


def pruning_check(report: PruneReport | None, contents: Mapping[str, Any], rules: PruneRules) -> Check:
    """Whether all that left the wheels' files is what the stack says, and is what the check of contents saw.

    Args:
        report: The pruner's, as the image carries it.
        contents: The report of the check of contents, which held every file against wheel and pruner.
        rules: The stack's.
    """
    if report is None:
        return _check("pruned", ["the image carries no report of its pruning"], "")
    totals = report.totals
    bad = []
    if contents.get("pruned") != totals:
        bad.append("the check of contents ran over another pruning than the one that the image reports")
    try:
        check_whole(report, rules)
    except CheckError as error:
        bad.append(str(error))
    rows = (("drop", report.dropped), ("strip", report.stripped), ("link", report.linked))
    bad += [
        f"{file.path} left by {field} {file.rule!r}, which the stack does not say"
        for field, files in rows
        for file in files
        if file.rule not in getattr(rules, field)
    ]
    seen = ", ".join(
        f"{totals.get(name, 0)} {what} ({totals.get(size, 0) / 1e6:.0f} MB)"
        for name, what, size in (
            ("pruned", "libraries without code for others", "bytes_removed"),
            ("stripped", "without symbols", "bytes_stripped"),
            ("dropped", "files dropped", "bytes_dropped"),
            ("linked", "copies linked", "bytes_linked"),
        )
    )
    kept = [f"{file.path} kept its symbols: {file.reason}" for file in report.stripped if file.reason]
    return _check("pruned", bad, seen, kept)


def torch_checks(contents: Mapping[str, Any], targets: Sequence[str]) -> Iterator[Check]:
    """Which architectures torch says that its own kernels were compiled for."""
    torch = contents["torch"]
    if torch is None:
        if any(entry["name"] == "torch" for entry in contents["packages"]):
            yield _check("torch targets", ["torch is installed and did not answer"], "")
        return
    bad = [f"no {target}" for target in targets if target not in torch["targets"]]
    yield _check("torch targets", bad, f"torch {torch['version']}: {' '.join(torch['targets'])}")


def _kernel_checks(client: docker.DockerClient, image_id: str, kernels: Kernels) -> Iterator[Check]:
    try:
        compiled = read_kernels_of(client, image_id, kernels)
    except CheckError as error:
        yield _check("kernels", [error.what], "")
        return
    for module, (receipt, library) in compiled.items():
        found, checks = judge_module(module, library, kernels)
        bad = [f"{check.name}: {check.seen}" for check in checks if check.verdict is not Verdict.PASS]
        bad += wrong_architecture(receipt, kernels)
        registers = max((kernel.registers for kernel in found), default=0)
        seen = f"{len(found)} kernels for {receipt.architecture}, at most {registers} registers, none empty"
        yield _check(f"kernels: {module}", bad, seen)


def wrong_architecture(receipt: KernelReceipt, kernels: Kernels) -> list[str]:
    """The complaint about a module that was compiled for something else than the stack says; or none."""
    wanted = kernels.architecture_of(receipt.module)
    if receipt.architecture == wanted:
        return []
    return [f"compiled for {receipt.architecture}, the stack says {wanted}"]


def _patch_checks(
    client: docker.DockerClient, image_id: str, stack: Stack, plans: Sequence[Plan]
) -> tuple[tuple[PatchReceipt, ...], list[Check]]:
    try:
        receipts = read_patch_receipts(client, image_id)
    except CheckError as error:
        return (), [_check("patches", [error.what], "")]
    site = site_packages(stack)
    paths = [f"{site}/{path}" for receipt in receipts for path in receipt.files]
    found = read_files(client, image_id, paths)
    hashes = {path.removeprefix(f"{site}/"): hashlib.sha256(data).hexdigest() for path, data in found.items()}
    by_series = {receipt.series: receipt for receipt in receipts}
    checks = [patch_check(plan, by_series.pop(plan.series, None), hashes) for plan in plans]
    checks += [
        _check(f"patches: {series}", ["applied in the image and not in the stack"], "") for series in by_series
    ]
    return receipts, checks


def patch_check(plan: Plan, receipt: PatchReceipt | None, hashes: Mapping[str, str]) -> Check:
    """Whether a series is in the image exactly as the stack switches it.

    Args:
        plan: What the stack says.
        receipt: What the image says; None when it says nothing.
        hashes: SHA-256 of the image's files by path below site-packages.
    """
    name = f"patches: {plan.series}"
    if receipt is None:
        return _check(name, ["the image has none of them"], "")
    wanted = [patch.name for patch in plan.patches]
    expected = {path: after for patch in plan.patches for path, (_, after) in patch.files.items()}
    bad = [f"{patch} is not applied" for patch in wanted if patch not in receipt.applied]
    bad += [f"{patch} is applied and off in the stack" for patch in receipt.applied if patch not in wanted]
    bad += [f"{path} is not the patched file" for path, after in expected.items() if hashes.get(path) != after]
    seen = f"{len(wanted)} patches in {len(expected)} files as recorded, {len(plan.off)} off"
    return _check(name, bad, seen, [*wanted, *(f"off: {patch}" for patch in plan.off)])


def _gate_checks(
    client: docker.DockerClient,
    image_id: str,
    stack: Stack,
    packages: Mapping[str, str],
    added: Ingredients,
    *,
    say: Callable[[str], None],
) -> tuple[list[Check], list[str]]:
    try:
        scans = scans_of(client, image_id, site_packages(stack), packages, added.plans, say=say)
    except CheckError as error:
        return [_check("arch gates", [error.what, *error.details], "")], []
    if not scans:
        return [_check("arch gates", ["no package with known gates is installed"], "")], []
    limitations = [
        f"{scan.package} {scan.version}: {unjudged} arch gates are unjudged"
        for scan in scans
        if (unjudged := _polarities(scan)[Polarity.UNJUDGED])
    ]
    return [gate_check(scan, added.plans) for scan in scans], limitations


def _polarities(scan: PackageScan) -> Counter[Polarity]:
    return Counter(gate.polarity for gate in scan.gates)


def gate_check(scan: PackageScan, plans: Sequence[Plan]) -> Check:
    """The gates of one package; the patch that handles a gate must be in the stack, on or knowingly off."""
    known = {
        f"{plan.series}/{name[:4]}"
        for plan in plans
        for name in (*(patch.name for patch in plan.patches), *plan.off)
    }
    bad = [
        f"{gate.id} ({gate.hit.path}:{gate.hit.line}), {gate.polarity}: {gate.patch} is not in the stack"
        for gate in scan.gates
        if gate.patch and _short(gate.patch) not in known
    ]
    bad += [f"not read: {line}" for line in scan.unreadable]
    counts = _polarities(scan)
    kinds = [kind for kind in Polarity if kind is not Polarity.UNJUDGED]
    judged = [f"{counts[kind]} {kind}" for kind in kinds if counts[kind]]
    seen = (
        f"{len(scan.gates)} gates in {scan.files} files: {', '.join(judged) or 'none judged'}, "
        f"{counts[Polarity.UNJUDGED]} unjudged"
    )
    return _check(f"arch gates: {scan.package} {scan.version}", bad, seen)


def _short(patch: str) -> str:
    """`<series>/<number>` of a patch that may be given by its whole name."""
    series, _, name = patch.rpartition("/")
    return f"{series}/{name[:4]}"
