"""What the operator asks of a host, as data; `reading.parse_request` checks the JSON document."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Optional

SCHEMA = "blackwell-stacks/host-request/v1"


@dataclass(frozen=True)
class Layer:
    """One layer of an image, in bytes.

    Attributes:
        diff_id: Hash of its content.
        compressed: As it travels.
        unpacked: As it lies on disk.
    """

    diff_id: str
    compressed: int
    unpacked: int


@dataclass(frozen=True)
class Sizes:
    """Size of an image in bytes.

    Attributes:
        compressed: As it travels.
        unpacked: As it lies on disk.
        layers: The same by layer, base first; empty: not known, then the whole image counts as missing.
        margin: Free bytes that stay untouched: the engine's own files, logs, what else lives there.
    """

    compressed: int = 0
    unpacked: int = 0
    layers: tuple[Layer, ...] = ()
    margin: int = 512 << 20


@dataclass(frozen=True)
class Mount:
    """A file or directory of the host in the container."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True)
class CacheMount:
    """Where compiled kernels are kept: below `source_root`, in a folder of this very image and GPU target."""

    source_root: str
    target: str


@dataclass(frozen=True)
class Port:
    """A published port."""

    address: str
    host: int
    container: int


@dataclass(frozen=True)
class Question:
    """A question and a text that a right answer contains."""

    prompt: str
    expect: str


@dataclass(frozen=True)
class Health:
    """What makes an engine ready and right.

    Attributes:
        port: That it listens on, inside the container.
        model: Name under which it serves; the first of its list if empty.
        questions: At least one, with what the answer must contain, in any case of letters.
        system_prompt: Sent before each question, if any.
        max_tokens: Of each answer.
        logprobs: Ask for log-probabilities and refuse those that are missing or not finite.
        ready_timeout_seconds: From the start of the container to its first answer.
        answer_timeout_seconds: For one answer.
        interval_seconds: Between two looks.
    """

    port: int
    model: str = ""
    questions: tuple[Question, ...] = ()
    system_prompt: str = ""
    max_tokens: int = 64
    logprobs: bool = True
    ready_timeout_seconds: float = 1800.0
    answer_timeout_seconds: float = 120.0
    interval_seconds: float = 0.25


@dataclass(frozen=True)
class Contract:
    """How the image is run; see `contract.create_argv` for what becomes of each field.

    Attributes:
        gpus: Indices or UUIDs; empty: none.
        gpu_mode: `cdi` (`--device nvidia.com/gpu=`), `gpus` (`--gpus`), `runtime` (`--runtime nvidia` and the
            environment, for engines that know neither), or `none`.
        arguments: After the image's entry point.
        environment: Never secrets, they are shown in process lists and records.
        environment_files: Files of the host with `NAME=value` lines, for secrets.
        mounts: Files and directories.
        cache_mount: Compiled kernels.
        ports: Published ports.
        ipc: Docker's `--ipc`, or empty.
        shm_bytes: Size of the container's own /dev/shm; 0: Docker's default.
        memlock: Limit of locked memory in bytes; -1: none; 0: Docker's default.
        log_max_bytes: Of one log file.
        log_files: Kept log files.
        stop_grace_seconds: For streams to end before the engine is killed.
        gpu_release_seconds: For the driver to let go of the old processes.
        labels: Further labels, e.g. for a metrics scraper.
        user: User in the container; empty: the image's.
        network: Docker network; empty: the default bridge.
        init: Docker's own init reaps the engine's children.
        health: What makes it ready.
    """

    health: Health
    gpus: tuple[str, ...] = ()
    gpu_mode: str = "none"
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    environment_files: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cache_mount: Optional[CacheMount] = None
    ports: tuple[Port, ...] = ()
    ipc: str = ""
    shm_bytes: int = 0
    memlock: int = 0
    log_max_bytes: int = 50_000_000
    log_files: int = 3
    stop_grace_seconds: int = 60
    gpu_release_seconds: float = 60.0
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    user: str = ""
    network: str = ""
    init: bool = True


@dataclass(frozen=True)
class Model:
    """The model that is served: recorded, and looked for on the host before the old stack stops.

    Attributes:
        id: Its public name.
        revision: Commit of its repository, or empty for files without one.
        path: Directory or file on the host; empty: nothing to look for.
    """

    id: str
    revision: str = ""
    path: str = ""


@dataclass(frozen=True)
class Requirements:
    """What the host must have.

    Attributes:
        driver_minimum: Lowest driver, e.g. `580.65.06`; empty: any.
        target: GPU architecture, e.g. `sm_120`; empty: any.
        gpu_count: GPUs that must be there; 0: as many as the contract names.
        platform: Of the image, e.g. `linux/amd64`; empty: seen after the pull.
    """

    driver_minimum: str = ""
    target: str = ""
    gpu_count: int = 0
    platform: str = ""


@dataclass(frozen=True)
class Request:
    """One wanted deployment.

    Attributes:
        release: Name of the release.
        reference: `registry/repository@sha256:...`.
        digest: Of the manifest.
        image_id: Digest of the image's configuration.
        sizes: For the disk check.
        stack: Name of the stack.
        group: GPUs that have a line of generations of their own.
        contract: How it is run.
        model: What is served.
        requirements: What the host must have.
        attestations: Digests of the evidence, for the record.
        records: Signed statements (Sigstore bundles) that name the digest.
        trust: Public keys (PEM) that those are held against where the host has none of its own.
        keep: Earlier generations whose images stay.
        pull: `registry`, or `present` when the image was brought here before.
        confirm_seconds: Revert unless somebody confirms within this time after the answers; 0: no need.
    """

    release: str
    reference: str
    digest: str
    image_id: str
    stack: str
    contract: Contract
    sizes: Sizes = Sizes()
    group: str = "default"
    model: Optional[Model] = None
    requirements: Requirements = Requirements()
    attestations: tuple[str, ...] = ()
    records: tuple[dict[str, Any], ...] = ()
    trust: tuple[str, ...] = ()
    keep: int = 3
    pull: str = "registry"
    confirm_seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The document again; `parse_request` of it gives an equal request."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}
