"""The build context: everything that a build may read, gathered in one folder and hashed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uv
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tooling.base.bootstrap import USER
from tooling.errors import EngineError
from tooling.lock.lockfile import pin_lines
from tooling.records import sha256_of, sha256_of_file

if TYPE_CHECKING:
    from tooling.base.bootstrap import BaseImage
    from tooling.lock.lockfile import Lock, LockedWheel
    from tooling.stack.model import Stack

#: Libraries that the checks inside the image use; bound in during the build, never part of the image.
_CHECK_LIBRARIES = ("elftools", "packaging")
LABEL = "org.blackwell-stacks"


def stack_document(stack: Stack) -> dict[str, Any]:
    """What an image knows of its stack: how to serve, and the contract that its selftest checks."""
    return {
        "stack": stack.name,
        "engine": stack.engine.model_dump(mode="json"),
        "cuda": stack.cuda,
        "targets": stack.targets.model_dump(mode="json"),
        "python": stack.platform.python,
        "serve": stack.serve.model_dump(mode="json"),
        "environment": stack.environment,
    }


def gather(
    stack: Stack, lock: Lock, layers: dict[str, list[LockedWheel]], *, images: Path, context: Path, epoch: int
) -> dict[str, str]:
    """Fill the context folder; returns SHA-256 by file.

    Args:
        stack: The stack.
        lock: Its lock.
        layers: Wheels by layer.
        images: The checkout's `images/`.
        context: An empty folder.
        epoch: Seconds since 1970 that every file gets as its time.
    """
    (context / "layers").mkdir()
    for name, wheels in layers.items():
        (context / "layers" / f"{name}.txt").write_text("\n".join([*pin_lines(wheels), ""]), encoding="utf-8")
    shutil.copytree(images / "build", context / "bin", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(uv.find_uv_bin(), context / "bin" / "uv")
    shutil.copytree(images / "runtime", context / "runtime", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(images / "checks", context / "checks", ignore=shutil.ignore_patterns("__pycache__"))
    for library in _CHECK_LIBRARIES:
        shutil.copytree(
            _package_directory(library),
            context / "checks" / "site" / library,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    expected = {
        "packages": {wheel.name: wheel.version for wheel in lock.wheels},
        "cuda": stack.cuda,
        "targets": list(stack.targets.required),
        "allow": [allowance.finding for allowance in stack.allow],
    }
    for name, document in (("expected.json", expected), ("stack.json", stack_document(stack))):
        (context / name).write_text(json.dumps(document, indent=1, sort_keys=True), encoding="utf-8")
    hashes = {}
    for path in sorted(context.rglob("*")):
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        os.utime(path, (epoch, epoch))
        if path.is_file():
            hashes[str(path.relative_to(context))] = sha256_of_file(path)
    return hashes


def _package_directory(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise EngineError(
            f"the toolkit's own environment lacks {name}", fix="install the toolkit from its lock"
        )
    return Path(spec.submodule_search_locations[0])


def render_dockerfile(stack: Stack, base: BaseImage, images: Path, labels: dict[str, str], *, ca: bool) -> str:
    """The Dockerfile of a stack.

    Args:
        stack: The stack.
        base: The base that it stands on.
        images: The checkout's `images/`.
        labels: Labels of the image.
        ca: Whether a CA bundle comes in as a secret.
    """
    major = (stack.cuda or "").split(".")[0]
    python = stack.platform.python
    cuda_home = f"/opt/stack/lib/python{python}/site-packages/nvidia/cu{major}" if stack.cuda else ""
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
