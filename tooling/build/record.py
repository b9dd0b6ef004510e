"""The record of a build: what went in, what came out, how long it took."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tooling.records import Record, sha256_of


class BuildInputs(Record):
    """Everything that decides what an image is; its hash is in the image's labels.

    Attributes:
        stack: Name of the stack.
        stack_sha256: Hash of the declaration, what a release needs left out.
        base: Reference of the base, and hash of the versions found in it.
        base_drift: What of the base is not as locked; a release refuses any.
        lock_sha256: Hash of the pins.
        dockerfile_sha256: Hash of the rendered Dockerfile, its labels left out.
        context_sha256: SHA-256 by file of everything else that the build could read.
        patches: SHA-256 by patch, `<series>/<patch>`, of those that are applied.
        kernels: By kernel module, hash of all that it is compiled from.
        epoch: Seconds since 1970 that the files carry as their time.
    """

    stack: str
    stack_sha256: str
    base: dict[str, str]
    base_drift: tuple[str, ...]
    lock_sha256: str
    dockerfile_sha256: str
    context_sha256: dict[str, str]
    patches: dict[str, str]
    kernels: dict[str, str]
    epoch: int

    @property
    def sha256(self) -> str:
        """Hash of the inputs."""
        return sha256_of(self)


class ImageLayer(Record):
    """A layer of the image.

    Attributes:
        diff_id: SHA-256 of its uncompressed tar.
        bytes: Size of its files.
        created_by: The step that made it.
    """

    diff_id: str
    bytes: int
    created_by: str


class PatchReceipt(Record):
    """What was done to the files of one package, as the step that did it wrote it down.

    Attributes:
        series: Name of the series.
        package: Distribution that owns the files.
        version: Its version.
        applied: Names of the patches that were applied, in order.
        off: Names of those that are off.
        files: Path below site-packages -> hex SHA-256 of the patched file.
        tree: Hash of all of them.
        not_importable: Changed modules that a machine without a GPU cannot import, patched or not.
    """

    series: str
    package: str
    version: str
    applied: tuple[str, ...]
    off: tuple[str, ...]
    files: dict[str, str]
    tree: str
    not_importable: tuple[str, ...] = ()


class KernelReceipt(Record):
    """A kernel module as it was compiled into the image.

    Attributes:
        module: Its name.
        path: In the image.
        sha256: Of the library.
        architecture: What it was compiled for.
        needed: Libraries that it needs at run time.
        functions: Functions that it exports; each was looked up once.
    """

    module: str
    path: str
    sha256: str
    architecture: str
    needed: tuple[str, ...]
    functions: tuple[str, ...]


class BuildRecord(Record):
    """What a build did.

    Attributes:
        schema_version: Version of this record's shape.
        tool_version: Version of this toolkit.
        inputs: What went in.
        inputs_sha256: Hash of the inputs, as in the image's label.
        image_id: Id of the image (SHA-256 of its configuration).
        reference: The name that only this image carries.
        size_bytes: Sum of the layers.
        layers: From the base up.
        contents: Report of the checks over the files of all packages.
        pruned: Totals of the pruning, files by status and bytes; empty for an image that was not pruned.
        patches: Receipts of the patch series.
        kernels: Receipts of the kernel modules.
        kernel_count: Kernels in those modules, all of them looked at.
        selftest: Report of the image's own selftest.
        engine: Versions of the Docker Engine and of the client that built.
        started: ISO 8601, UTC.
        ended: ISO 8601, UTC.
        durations_s: Seconds by phase.
        log: File with everything that the builder printed.
    """

    schema_version: int = 1
    tool_version: str
    inputs: BuildInputs
    inputs_sha256: str
    image_id: str
    reference: str
    size_bytes: int
    layers: tuple[ImageLayer, ...]
    contents: dict[str, Any]
    pruned: dict[str, int] = Field(default_factory=dict)
    patches: tuple[PatchReceipt, ...] = ()
    kernels: tuple[KernelReceipt, ...] = ()
    kernel_count: int = 0
    selftest: dict[str, Any]
    engine: dict[str, str]
    started: str
    ended: str
    durations_s: dict[str, float]
    log: str
