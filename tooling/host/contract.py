"""From a request to the exact `docker create`: pure, so that what is exported is what deploy starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.host.request import Contract, Request

#: Labels of what the program makes.
LABEL_GROUP = "blackwell-stacks.group"
LABEL_GENERATION = "blackwell-stacks.generation"
LABEL_ROLE = "blackwell-stacks.role"
LABEL_RELEASE = "blackwell-stacks.release"
LABEL_STACK = "blackwell-stacks.stack"
LABEL_DIGEST = "blackwell-stacks.digest"
#: An image by this variable says which GPUs it wants, and a host whose default runtime is the vendor's obeys.
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def container_name(group: str, generation: int) -> str:
    """Name of the container of a generation."""
    return f"blackwell-{group}-g{generation:04d}"


def pin_name(group: str, generation: int) -> str:
    """Name of the container that keeps a generation's image from being pruned."""
    return f"{container_name(group, generation)}-pin"


def cache_directory(request: Request) -> str:
    """Directory of the host for the kernels that this very image compiles; empty without a cache mount.

    Kernels of another image or target are never shared: a generation that is rolled back to finds its own.
    """
    mount = request.contract.cache_mount
    if mount is None:
        return ""
    target = request.requirements.target or "any"
    return f"{mount.source_root.rstrip('/')}/{request.digest[7:19]}-{target}/kernels"


def generation_labels(request: Request, generation: int) -> dict[str, str]:
    """Labels by which the program finds its containers again."""
    return {
        LABEL_GROUP: request.group,
        LABEL_GENERATION: str(generation),
        LABEL_ROLE: "stack",
        LABEL_RELEASE: request.release,
        LABEL_STACK: request.stack,
        LABEL_DIGEST: request.digest,
    }


def run_options(request: Request, *, labels: Mapping[str, str], name: str, restart: str) -> list[str]:
    """Options of `docker create` or `docker run` for a request, everything but the command word and the image.

    Args:
        request: What is run.
        labels: Labels on top of the contract's.
        name: Name of the container.
        restart: Restart policy. `no` until a generation is committed: a policy hides the first crash.
    """
    contract = request.contract
    options = ["--name", name]
    for key, value in sorted({**contract.labels, **labels}.items()):
        options += ["--label", f"{key}={value}"]
    options += ["--restart", restart, "--stop-timeout", str(contract.stop_grace_seconds)]
    options += ["--log-driver", "json-file", "--log-opt", f"max-size={contract.log_max_bytes}"]
    options += ["--log-opt", f"max-file={contract.log_files}"]
    options += _process_options(contract)
    options += gpu_options(contract)
    for key, value in sorted(contract.environment.items()):
        options += ["--env", f"{key}={value}"]
    for path in contract.environment_files:
        options += ["--env-file", path]
    return options + _mount_options(request) + _port_options(contract)


def _process_options(contract: Contract) -> list[str]:
    options = ["--init"] if contract.init else []
    for option, value in (
        ("--user", contract.user),
        ("--network", contract.network),
        ("--ipc", contract.ipc),
        ("--shm-size", str(contract.shm_bytes or "")),
        ("--ulimit", f"memlock={contract.memlock}:{contract.memlock}" if contract.memlock else ""),
    ):
        if value:
            options += [option, value]
    return options


def _mount_options(request: Request) -> list[str]:
    contract, options = request.contract, []
    for mount in contract.mounts:
        options += ["--mount", _bind(mount.source, mount.target, read_only=mount.read_only)]
    if contract.cache_mount:
        options += ["--mount", _bind(cache_directory(request), contract.cache_mount.target, read_only=False)]
    return options


def _port_options(contract: Contract) -> list[str]:
    options = []
    for port in contract.ports:
        address = f"[{port.address}]" if ":" in port.address and "[" not in port.address else port.address
        published = f"{port.host}:{port.container}"
        options += ["--publish", f"{address}:{published}" if address else published]
    return options


def gpu_options(contract: Contract) -> list[str]:
    """Options that hand out the GPUs of a contract, and keep all others out."""
    if contract.gpu_mode == "gpus":
        # The inner quotes are the client's: its value is a list of fields, and commas separate those.
        return ["--gpus", f'"device={",".join(contract.gpus)}"']
    if contract.gpu_mode == "runtime":
        return ["--runtime", "nvidia", "--env", f"{VISIBLE}={','.join(contract.gpus)}"]
    # Only what is named here may come in, whatever the image asks for by itself.
    options = [] if VISIBLE in contract.environment else ["--env", f"{VISIBLE}=void"]
    for gpu in contract.gpus:
        options += ["--device", f"nvidia.com/gpu={gpu}"]
    return options


def _bind(source: str, target: str, *, read_only: bool) -> str:
    return f"type=bind,source={source},target={target}{',readonly' if read_only else ''}"


def create_argv(request: Request, generation: int, image: str, *, docker: str = "docker") -> list[str]:
    """The command that makes a generation's container, stopped.

    Args:
        request: What is run.
        generation: Its number.
        image: Content id of the image on this host. Never a tag; a digest's name is lost by a prune.
        docker: The client.
    """
    options = run_options(
        request,
        labels=generation_labels(request, generation),
        name=container_name(request.group, generation),
        restart="no",
    )
    return [docker, "create", *options, image, *request.contract.arguments]


def run_argv(request: Request, *, name: str = "", docker: str = "docker") -> list[str]:
    """The command by which a person starts the same, outside of the program, by the digest's name.

    Args:
        request: What is run.
        name: Name of the container; the stack's if empty.
        docker: The client.
    """
    options = run_options(request, labels={}, name=name or request.stack, restart="unless-stopped")
    return [docker, "run", "--detach", *options, request.reference, *request.contract.arguments]
