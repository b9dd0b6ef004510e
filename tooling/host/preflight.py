"""All that can fail before the old stack stops: the host, the disk, the image, the ports, the files."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Sequence

from tooling.errors import CheckError, EngineError, InputError
from tooling.host import gpus
from tooling.host.contract import cache_directory

if TYPE_CHECKING:
    from tooling.host.docker import Docker
    from tooling.host.events import Events
    from tooling.host.request import Contract, Layer, Request
    from tooling.host.state import Generation

#: Free bytes that the state needs: a swap must never fail for want of a few kilobytes.
STATE_BYTES = 8 << 20
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def check_engine(docker: Docker, request: Request) -> str:
    """The engine answers its client and runs this platform.

    Returns:
        The engine's version.

    Raises:
        EngineError: It does not.
    """
    server = docker.version()["Server"]
    here = f"{server['Os']}/{server['Arch']}"
    _same_platform(request.requirements.platform, here, request.reference)
    return str(server["Version"])


def _same_platform(image: str, here: str, where: str) -> None:
    if image and image.split("/")[:2] != here.split("/")[:2]:
        raise EngineError(
            f"the image is for {image} and this host is {here}",
            where=where,
            fix="use a release for this platform",
        )


def check_gpus(smi: gpus.Smi, request: Request) -> list[gpus.Gpu]:
    """GPUs, driver and architecture are as the release needs them.

    Raises:
        CheckError: They are not.
    """
    if not request.contract.gpus:
        return []
    here = gpus.chosen(smi.gpus(), request.contract.gpus)
    lacks = gpus.unmet(here, request.requirements, len(request.contract.gpus))
    if lacks:
        raise CheckError(
            "this host is not what the release needs",
            where=request.release,
            details=lacks,
            fix="upgrade the driver, or choose a release for this host; the running stack is untouched",
        )
    return list(here)


def check_strangers(smi: gpus.Smi, here: Sequence[gpus.Gpu], own: Sequence[str]) -> None:
    """Nobody but our own containers is on some GPUs.

    Args:
        smi: Who is asked.
        here: The GPUs.
        own: Ids of the group's running containers.

    Raises:
        CheckError: Somebody is.
    """
    held = gpus.foreign(smi.holders(), here, own) if here else []
    if held:
        raise CheckError(
            f"GPUs are held by process {', '.join(str(one.pid) for one in held)}, which is not ours",
            details=gpus.describe(held),
            fix="end that process yourself if it is yours to end; nothing was stopped or killed",
        )


def check_disjoint(here: Sequence[gpus.Gpu], request: Request, others: Sequence[Generation]) -> None:
    """No other group of this host has the same GPUs or ports.

    Raises:
        InputError: One has.
    """
    names = {name: gpu.uuid for gpu in here for name in (gpu.index, gpu.uuid)}
    mine = {names.get(one, one) for one in request.contract.gpus}
    for other in others:
        theirs = {names.get(one, one) for one in other.request.contract.gpus}
        both = sorted(mine & theirs)
        if both:
            raise InputError(
                f"GPU {', '.join(both)} belongs to group {other.request.group}",
                where=f"group {request.group}",
                fix="give each group its own GPUs",
            )
        ports = {port.host for port in request.contract.ports} & {
            port.host for port in other.request.contract.ports
        }
        if ports:
            raise InputError(
                f"port {', '.join(map(str, sorted(ports)))} belongs to group {other.request.group}",
                where=f"group {request.group}",
                fix="give each group ports of its own",
            )


def check_files(request: Request) -> None:
    """Mounts, environment files and the model are there.

    Raises:
        InputError: One is not.
    """
    contract, model = request.contract, request.model
    if model and model.path:
        path = Path(model.path)
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            revision = f" at revision {model.revision}" if model.revision else ""
            raise InputError(
                f"the model {model.id}{revision} is not on this host",
                where=model.path,
                fix="download that very revision there first; the engine runs offline",
            )
    for source in (mount.source for mount in contract.mounts):
        if not Path(source).exists():
            raise InputError(f"{source} is to be mounted and is not there", where=source, fix="create it first")
    for source in contract.environment_files:
        if not os.access(source, os.R_OK):
            raise InputError(
                "an environment file is missing or cannot be read", where=source, fix="put it there, mode 0600"
            )


def make_cache_directory(request: Request) -> None:
    """Have the directory for compiled kernels.

    Its last part is open to the container's user, whoever that is; the part above it is closed to all others.
    """
    path = cache_directory(request)
    if path:
        directory = Path(path)
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(exist_ok=True)
        directory.chmod(0o777)


def check_ports(contract: Contract, own: Optional[Contract]) -> None:
    """Nobody else listens on the ports that the stack publishes.

    Args:
        contract: What is wanted.
        own: Contract of what runs now; its ports become free by themselves.

    Raises:
        CheckError: Somebody does.
    """
    ours = {port.host for port in own.ports} if own else set()
    for port in contract.ports:
        if port.host in ours:
            continue
        address = port.address.strip("[]") or "0.0.0.0"  # noqa: S104  # what Docker would bind
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port.host))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                    continue  # a low port without the right to it: the engine has that right
                raise CheckError(
                    f"port {port.host} of {address} cannot be published: {error.strerror}",
                    fix="end who listens there (ss -ltnp), or publish another port or address",
                ) from error


def find_image(docker: Docker, request: Request) -> Optional[dict[str, Any]]:
    """The image on this host, by content. Engines name an image by its configuration or by its manifest."""
    for name in (request.image_id, request.digest):
        found = docker.inspect(name, "image")
        if found:
            return found
    return None


def missing_layers(images: Sequence[dict[str, Any]], layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Layers that no image here has on the same ones below: an engine keeps and skips layers in that way."""
    wanted = [layer.diff_id for layer in layers]
    longest = 0
    for image in images:
        here = (image.get("RootFS") or {}).get("Layers") or []
        common = 0
        while common < min(len(here), len(wanted)) and here[common] == wanted[common]:
            common += 1
        longest = max(longest, common)
    return tuple(layers[longest:])


def check_command(entrypoint: Sequence[str], arguments: Sequence[str]) -> None:
    """The arguments do not begin with the program that the image starts anyway.

    `/bin/bash bash -c ...` makes bash read its own binary as a script: "cannot execute binary file", which
    looks like a wrong architecture and is none.

    Raises:
        InputError: They do.
    """
    if entrypoint and arguments and Path(entrypoint[-1]).name == Path(arguments[0]).name:
        raise InputError(
            f"the arguments repeat the image's entry point: {' '.join(entrypoint)} {arguments[0]} ...",
            fix=f"leave the leading {arguments[0]!r} out of the arguments",
        )


def check_disk(docker: Docker, root: Path, request: Request, *, needs_pull: bool) -> dict[str, int]:
    """The image fits on the engine's disk, packed and unpacked at once, and the state on its own.

    Returns:
        Bytes: `download`, `needed`, `free`.

    Raises:
        CheckError: It does not.
    """
    free_for_state = shutil.disk_usage(root).free
    if free_for_state < STATE_BYTES:
        raise CheckError(
            f"{free_for_state >> 10} KiB are free for the state, {STATE_BYTES >> 10} are needed",
            where=str(root),
            fix="free space there",
        )
    directory = docker.root()
    free = shutil.disk_usage(directory).free if Path(directory).is_dir() else -1
    sizes = request.sizes
    compressed, unpacked = (sizes.compressed, sizes.unpacked) if needs_pull else (0, 0)
    if needs_pull and sizes.layers:
        missing = missing_layers(docker.images(), sizes.layers)
        compressed = sum(layer.compressed for layer in missing)
        unpacked = sum(layer.unpacked for layer in missing)
    needed = compressed + unpacked
    if needs_pull and 0 <= free < needed + sizes.margin:
        raise CheckError(
            f"the pull needs {_gb(needed + sizes.margin)} of free disk (packed and unpacked at once, and a "
            f"margin), {_gb(free)} are there",
            where=directory,
            fix="free space (docker system df shows who has it), or move the data-root; nothing was pulled",
        )
    return {"download": compressed, "needed": needed, "free": free}


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def bring_image(docker: Docker, request: Request, events: Events) -> str:
    """Have the image on this host, pulled by digest where it is missing, and be sure that it is the one.

    Returns:
        Its content id here.

    Raises:
        EngineError: It cannot be pulled, or is another one.
        InputError: It was to be here already.
    """
    found = find_image(docker, request)
    if found is None and request.pull == "present":
        raise InputError(
            "the image is not on this host, and it was to be brought here without a registry",
            where=request.reference,
            fix="load it first (docker load), or allow the registry",
        )
    if found is None:
        events.start("pull", f"pulling {request.reference}")
        docker.pull(
            request.reference,
            lambda progress: events.progress(
                "pull",
                "{unpacked} of {layers} layers unpacked, {present} were here".format(**progress.as_json()),
                **progress.as_json(),
            ),
        )
        found = docker.inspect(request.reference, "image") or find_image(docker, request)
        events.done("pull", "the image is here")
    if found is None:
        raise EngineError("the pull succeeded and the image is not there", where=request.reference)
    if found["Id"] not in (request.image_id, request.digest):
        raise EngineError(
            f"the image here is {found['Id']}, the release is {request.image_id}",
            where=request.reference,
            fix="do not deploy it; check the release and the registry",
        )
    here = docker.version()["Server"]
    _same_platform(f"{found['Os']}/{found['Architecture']}", f"{here['Os']}/{here['Arch']}", request.reference)
    check_command(found["Config"].get("Entrypoint") or [], request.contract.arguments)
    return str(found["Id"])
