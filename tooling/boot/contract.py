"""What a boot is told: its command, what it may see and use; and the Docker options that follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.stack.model import Stack

#: Labels of containers that the toolkit makes.
LABEL = "blackwell-stacks"
LABEL_STACK, LABEL_IMAGE, LABEL_BOOT = f"{LABEL}.stack", f"{LABEL}.image", f"{LABEL}.boot"
#: Published ports are bound here and nowhere else.
LOOPBACK = "127.0.0.1"


class Mount(Record):
    """A directory or file of the host that the engine may read."""

    source: str
    target: str


class RunContract(Record):
    """How an image is run.

    Attributes:
        command: Arguments after the image's entry point.
        entrypoint: Replaces the image's own one, if given.
        environment: Variables on top of the image's; never secrets, they are shown in records.
        models: Model files, mounted read-only.
        mounts: Other files, mounted read-only.
        port: Port that the engine listens on inside the container.
        gpus: `all`, device ids, or none at all.
        ipc_host: Share the host's /dev/shm.
        shm_bytes: Size of the container's own /dev/shm.
        memory_bytes: Limit of memory, or none.
        memlock_unlimited: NCCL pins host memory.
        init: Docker's own init process reaps the engine's children; for images that bring none.
        network: Docker network; the default bridge unless given.
    """

    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    models: tuple[Mount, ...] = ()
    mounts: tuple[Mount, ...] = ()
    port: int = Field(default=30000, ge=1, le=65535)
    gpus: tuple[str, ...] | str = ()
    ipc_host: bool = False
    shm_bytes: int | None = None
    memory_bytes: int | None = None
    memlock_unlimited: bool = False
    init: bool = False
    network: str = ""


def serve_arguments(stack: Stack, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """Serve arguments of a stack, as its image's entrypoint writes them; an extra one replaces the stack's."""
    replaced = {word[2:].partition("=")[0] for word in extra if word.startswith("--")}
    words: list[str] = []
    for name, value in stack.serve.arguments.items():
        if name in replaced or value is False:
            continue
        words.append(f"--{name}")
        if value is not True:
            words.append(str(value))
    return (*words, *extra)


def stack_contract(
    stack: Stack, *, models: Sequence[Mount] = (), extra: Sequence[str] = (), gpus: tuple[str, ...] | str = ()
) -> RunContract:
    """The run contract of a stack's image.

    The command is written out, not left to `serve`, so that a dry boot can leave arguments out.

    Args:
        stack: The stack.
        models: Model files.
        extra: Serve arguments of this run, e.g. the model's path.
        gpus: `all`, device ids, or none.
    """
    with_gpus = bool(gpus)
    return RunContract(
        command=(*stack.serve.command, *serve_arguments(stack, extra)),
        models=tuple(models),
        port=stack.serve.port,
        gpus=gpus,
        # NCCL's rings lie in shared and in pinned memory.
        shm_bytes=16 << 30 if with_gpus else None,
        memlock_unlimited=with_gpus,
    )


def container_options(
    contract: RunContract, *, image_id: str, stack: str, boot_id: str, host_port: int | None
) -> dict[str, Any]:
    """Options for `docker.containers.create`.

    No restart policy: it would hide the first exit.

    Args:
        contract: How to run.
        image_id: Content id of the image (`sha256:...`), so that a tag that moves changes nothing.
        stack: Name of the stack, for the label.
        boot_id: Id of this boot, for the label and the name.
        host_port: Port on the host's loopback, or None to let Docker choose.
    """
    options: dict[str, Any] = {
        "image": image_id,
        "command": list(contract.command),
        "name": f"{LABEL}-{boot_id}",
        "labels": {LABEL_STACK: stack, LABEL_IMAGE: image_id, LABEL_BOOT: boot_id},
        "environment": dict(contract.environment),
        "ports": {f"{contract.port}/tcp": (LOOPBACK, host_port)},
        "volumes": {
            mount.source: {"bind": mount.target, "mode": "ro"} for mount in (*contract.models, *contract.mounts)
        },
        "restart_policy": {"Name": "no"},
        "detach": True,
    }
    if contract.entrypoint is not None:
        options["entrypoint"] = list(contract.entrypoint)
    if contract.gpus:
        by_id = None if contract.gpus == "all" else list(contract.gpus)
        options["device_requests"] = [
            {"Driver": "", "Count": 0 if by_id else -1, "DeviceIDs": by_id, "Capabilities": [["gpu"]]}
        ]
    if contract.init:
        options["init"] = True
    if contract.ipc_host:
        options["ipc_mode"] = "host"
    if contract.shm_bytes is not None:
        options["shm_size"] = contract.shm_bytes
    if contract.memory_bytes is not None:
        # The same limit for memory and swap: an engine that swaps is not measured but dead.
        options["mem_limit"] = options["memswap_limit"] = contract.memory_bytes
    if contract.memlock_unlimited:
        options["ulimits"] = [{"Name": "memlock", "Soft": -1, "Hard": -1}]
    if contract.network:
        options["network"] = contract.network
    return options
