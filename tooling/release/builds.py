"""What a build wrote down, as the release's evidence says it: provenance and package list."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tooling.attest.provenance import BuildFacts, BuildInput, InputKind
from tooling.attest.sbom import PackageList, PythonPackage, parse_dpkg_status
from tooling.errors import CheckError
from tooling.records import sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tooling.build.record import BuildRecord
    from tooling.stack.model import StackFile

#: Where the base keeps the list of its packages.
DPKG_STATUS = "/var/lib/dpkg/status"


def build_facts(record: BuildRecord, file: StackFile, *, source_commit: str = "") -> BuildFacts:
    """The facts of a build for its provenance.

    Args:
        record: The build's own record.
        file: The stack that was built.
        source_commit: Commit of the checkout, `-dirty` appended when it was changed.
    """
    stack = file.stack
    return BuildFacts(
        stack=stack.name,
        engine=stack.engine.name,
        engine_version=stack.engine.version,
        targets=stack.targets.required,
        inputs=tuple(_inputs(record, file)),
        drifted_packages=record.inputs.base_drift,
        source_commit=source_commit,
        builder=record.engine,
        tool_version=record.tool_version,
        started=record.started,
        ended=record.ended,
    )


def _inputs(record: BuildRecord, file: StackFile) -> Iterator[BuildInput]:
    inputs = record.inputs
    folder = file.path.parent.name
    yield BuildInput(kind=InputKind.BASE, name=inputs.base["reference"], sha256=inputs.base["packages_sha256"])
    yield BuildInput(kind=InputKind.LOCK, name=f"{folder}/{file.lock_path.name}", sha256=inputs.lock_sha256)
    yield BuildInput(kind=InputKind.STACK, name=f"{folder}/{file.path.name}", sha256=inputs.stack_sha256)
    yield BuildInput(kind=InputKind.DOCKERFILE, name="Dockerfile, rendered", sha256=inputs.dockerfile_sha256)
    yield BuildInput(
        kind=InputKind.DOCKERFILE,
        name=f"{len(inputs.context_sha256)} files of the build context",
        sha256=sha256_of(inputs.context_sha256),
    )
    for name, digest in sorted(inputs.patches.items()):
        yield BuildInput(kind=InputKind.PATCH, name=name, sha256=digest)
    for name, digest in sorted(inputs.kernels.items()):
        yield BuildInput(kind=InputKind.KERNEL, name=name, sha256=digest)


def package_list(record: BuildRecord, dpkg_status: str) -> PackageList:
    """What is installed in the image, for its bill of materials.

    Args:
        record: The build's record, which has looked at every Python package.
        dpkg_status: Content of `DPKG_STATUS` in the image.

    Raises:
        CheckError: The record names no Python package.
        InputError: The status lists nothing.
    """
    python = tuple(
        PythonPackage(name=entry["name"], version=entry["version"]) for entry in record.contents["packages"]
    )
    if not python:
        raise CheckError("the build's record names no Python package", where=record.reference)
    return PackageList(python=python, debian=parse_dpkg_status(dpkg_status))


def source_commit(root: Path) -> str:
    """Commit of a checkout, `-dirty` appended when it was changed; empty where there is no git."""
    try:
        head, status = (
            subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=30
            ).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{head}-dirty" if status else head
