"""The build context: everything that a build may read, gathered in one folder and hashed."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uv
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tooling.base.bootstrap import USER
from tooling.build.local import local_packages
from tooling.build.patching import package_directory, plan_files, put_applier, put_toolkit_files
from tooling.census.architecture import parse_architecture, runs_on
from tooling.census.rules import Expectation
from tooling.lock.lockfile import pin_lines
from tooling.prune.run import build_input, package_files
from tooling.records import sha256_of, sha256_of_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.base.bootstrap import BaseImage
    from tooling.census.architecture import Architecture
    from tooling.census.rules import CensusRules
    from tooling.lock.lockfile import Lock, LockedWheel
    from tooling.patches.overlay import Plan
    from tooling.prune.records import PruneRules
    from tooling.stack.model import Stack

#: Libraries that the checks inside the image use; bound in during the build, never part of the image.
_CHECK_LIBRARIES = ("elftools", "packaging")
LABEL = "org.blackwell-stacks"


#: Files of the toolkit that the selftest of an image uses; the standard library is all they need.
SELFTEST_FILES = (
    "tooling/__init__.py",
    "tooling/census/__init__.py",
    "tooling/patches/__init__.py",
    "tooling/patches/receipt.py",
    *(f"tooling/census/reader/{name}.py" for name in ("__init__", "archive", "cubin", "elf", "fatbin")),
    *(f"tooling/census/reader/{name}.py" for name in ("files", "scan", "span")),
)
SHARE = "/opt/stack/share"
#: Files of `images/kernels` that compile modules of other packages; the rest there is a package of our own.
COMPILE_FILES = ("compile_kernel.py",)
#: Kernel modules that an earlier build made; they are no input, since equal inputs made them.
IMPORTED = "imported"


@dataclass(frozen=True)
class Ingredients:
    """What a build puts on top of the packages.

    Attributes:
        plans: Patch series with their switches decided.
        census: Rules on the device code; None for a stack without targets.
    """

    plans: Sequence[Plan] = ()
    census: CensusRules | None = None


def site_packages(stack: Stack) -> str:
    """Where an image keeps its packages."""
    return f"/opt/stack/lib/python{stack.platform.python}/site-packages"


def stack_document(stack: Stack, added: Ingredients) -> dict[str, Any]:
    """What an image knows of its stack: how to serve, and the contract that its selftest checks."""
    return {
        "stack": stack.name,
        "engine": stack.engine.model_dump(mode="json"),
        "cuda": stack.cuda,
        "targets": stack.targets.model_dump(mode="json"),
        "python": stack.platform.python,
        "serve": stack.serve.model_dump(mode="json"),
        "environment": stack.environment,
        "patches": {plan.series: [patch.name for patch in plan.patches] for plan in added.plans},
        "kernels": list(stack.kernels.names) if stack.kernels else [],
        "local_packages": list(stack.local_packages),
        "census": required_code(added.census, stack.targets.required) if added.census else [],
    }


def required_code(rules: CensusRules, targets: Sequence[str]) -> list[dict[str, Any]]:
    """The rules that demand machine code, with the architectures that count, so that an image needs no table.

    Args:
        rules: The stack's rules on device code.
        targets: The stack's required targets, e.g. `sm_120`.
    """
    devices = [parse_architecture(target) for target in targets]
    return [
        {
            "name": rule.name,
            "files": list(rule.files),
            "at_least": rule.at_least,
            "device": device.capability,
            "architectures": runnable(device),
        }
        for rule in rules.rules
        if rule.expect is Expectation.SASS
        for device in devices
        if not rule.devices or device.capability in rule.devices
    ]


def runnable(device: Architecture) -> list[str]:
    """Every architecture whose machine code runs on a device: of its own major version, not newer than it."""
    names = [
        f"{device.major}.{minor}{suffix}" for minor in range(device.minor + 1) for suffix in ("", "a", "f")
    ]
    return [name for name in names if runs_on("sass", parse_architecture(name), device)]


def gather(
    stack: Stack,
    lock: Lock,
    layers: dict[str, list[LockedWheel]],
    added: Ingredients,
    *,
    images: Path,
    context: Path,
    epoch: int,
) -> dict[str, str]:
    """Fill the context folder; returns SHA-256 by file.

    Args:
        stack: The stack.
        lock: Its lock.
        layers: Wheels by layer.
        added: What comes on top of the packages.
        images: The checkout's `images/`.
        context: A folder with nothing but imported kernel modules.
        epoch: Seconds since 1970 that every file gets as its time.
    """
    (context / "layers").mkdir()
    for name, wheels in layers.items():
        (context / "layers" / f"{name}.txt").write_text("\n".join([*pin_lines(wheels), ""]), encoding="utf-8")
    ignored = shutil.ignore_patterns("__pycache__")
    for folder, name in (("build", "bin"), ("runtime", "runtime"), ("checks", "checks")):
        shutil.copytree(images / folder, context / name, ignore=ignored)
    (context / "kernels").mkdir()
    for name in COMPILE_FILES:
        shutil.copy2(images / "kernels" / name, context / "kernels")
    for package in local_packages(stack, images):
        package.put(context)
    shutil.copy2(uv.find_uv_bin(), context / "bin" / "uv")
    put_toolkit_files(SELFTEST_FILES, context / "runtime" / "lib")
    for library in _CHECK_LIBRARIES:
        shutil.copytree(package_directory(library), context / "checks" / "site" / library, ignore=ignored)
    if added.plans:
        put_applier(added.plans, context)
    if stack.prune_rules is not None:
        _put_pruner(stack, stack.prune_rules, images, context)
    expected = {
        "packages": {wheel.name: wheel.version for wheel in lock.wheels},
        "cuda": stack.cuda,
        "targets": list(stack.targets.required),
        "allow": [allowance.finding for allowance in stack.allow],
        "pruned": f"{SHARE}/prune.json" if stack.prune_rules is not None else "",
    }
    for name, document in (("expected.json", expected), ("stack.json", stack_document(stack, added))):
        (context / name).write_text(json.dumps(document, indent=1, sort_keys=True), encoding="utf-8")
    return _settle(context, epoch)


def _put_pruner(stack: Stack, rules: PruneRules, images: Path, context: Path) -> None:
    """The pruner and what it keeps; the layers bind it, so that a change in it makes them again."""
    folder = context / "prune"
    for name, content in package_files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    shutil.copy2(images / "prune" / "prune.py", folder / "prune.py")
    targets = (*stack.targets.required, *stack.targets.optional)
    (folder / "policy.json").write_bytes(build_input(targets, rules))


def _settle(context: Path, epoch: int) -> dict[str, str]:
    """Give every file one time and plain permissions; the answer is the hash of each that is an input."""
    hashes = {}
    for path in sorted(context.rglob("*")):
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        os.utime(path, (epoch, epoch))
        name = path.relative_to(context)
        if path.is_file() and name.parts[0] != IMPORTED:
            hashes[str(name)] = sha256_of_file(path)
    return hashes


def render_dockerfile(
    stack: Stack, base: BaseImage, added: Ingredients, images: Path, labels: dict[str, str], *, ca: bool
) -> str:
    """The Dockerfile of a stack.

    Args:
        stack: The stack.
        base: The base that it stands on.
        added: What comes on top of the packages.
        images: The checkout's `images/`.
        labels: Labels of the image.
        ca: Whether a CA bundle comes in as a secret.
    """
    major = (stack.cuda or "").split(".")[0]
    python = stack.platform.python
    cuda_home = f"{site_packages(stack)}/nvidia/cu{major}" if stack.cuda else ""
    plans = dict(zip(plan_files(added.plans), added.plans, strict=True))
    own = [name for name, plan in plans.items() if stack.kernels and plan.package == stack.kernels.package]
    environment = Environment(
        loader=FileSystemLoader(images),
        undefined=StrictUndefined,
        trim_blocks=True,
        autoescape=False,  # noqa: S701  # a Dockerfile, not a page
    )
    environment.filters["quoted"] = quoted
    return environment.get_template("Dockerfile.j2").render(
        base=base.reference,
        layers=[layer.name for layer in stack.layers],
        python=f"/usr/bin/python{python}",
        epoch=base.epoch,
        cuda_home=cuda_home,
        environment=sorted(stack.environment.items()),
        user=USER,
        port=stack.serve.port,
        labels=sorted(labels.items()),
        ca=ca,
        lock=labels.get(f"{LABEL}.lock-sha256", "none")[:12],
        site=site_packages(stack),
        share=SHARE,
        plans=list(plans),
        kernels=stack.kernels,
        kernel_plans=own,
        jobs=stack.budget.compile_jobs,
        local_packages=local_packages(stack, images),
        prune=stack.prune_rules is not None,
    )


def quoted(value: str) -> str:
    """A value as the Dockerfile language quotes it: neither it nor the builder expands anything inside."""
    for character in '\\"$':
        value = value.replace(character, f"\\{character}")
    return f'"{value}"'


def labels_of(stack: Stack, lock: Lock, base: BaseImage) -> dict[str, str]:
    """Labels of the image that follow from what goes in; the hash of all inputs is added by the builder."""
    return {
        "org.opencontainers.image.title": f"{stack.name}: {stack.engine.name} {stack.engine.version}",
        "org.opencontainers.image.version": stack.engine.version,
        "org.opencontainers.image.description": stack.description,
        f"{LABEL}.stack": stack.name,
        f"{LABEL}.cuda": stack.cuda or "none",
        f"{LABEL}.targets": " ".join(stack.targets.required) or "none",
        f"{LABEL}.lock-sha256": lock.content_sha256,
        f"{LABEL}.base-packages-sha256": sha256_of(base.packages),
        f"{LABEL}.base": "drifted" if base.drift else "locked",
    }
