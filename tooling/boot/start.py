"""Start a container of an image and wait until it answers."""

from __future__ import annotations

import secrets
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker.errors

from tooling.boot.container import (
    ContainerWatch,
    bytes_of,
    explain_refusal,
    find_image,
    published_port,
)
from tooling.boot.contract import LOOPBACK, RunContract, container_options
from tooling.boot.endpoint import BootFacts, Endpoint, release, tell
from tooling.boot.failure import BootError, Reason
from tooling.boot.follower import LogFollower
from tooling.boot.platforms import check_architecture, check_command
from tooling.boot.readiness import Patience
from tooling.boot.waiting import wait_ready
from tooling.console import say
from tooling.dockerhost.daemon import connect
from tooling.triage import LogTriage

if TYPE_CHECKING:
    from collections.abc import Callable

    from docker.models.containers import Container
    from docker.models.images import Image


def boot(
    image: str,
    contract: RunContract,
    *,
    evidence: Path,
    stack: str = "",
    model: str = "",
    engine: str = "",
    version: str = "",
    device: str = "gpu",
    host_port: int | None = None,
    patience: Patience | None = None,
) -> Endpoint:
    """Boot an image; use the result as a context manager.

    Args:
        image: Reference or id of an image on this host.
        contract: How to run it.
        evidence: Folder for the log of this boot.
        stack: Name of the stack.
        model: Name that must be served; any if empty.
        engine: Engine, for triage.
        version: Its version, for triage.
        device: `cpu` for a dry boot.
        host_port: Port on the loopback; chosen by Docker if None.
        patience: Limits.

    Returns:
        An endpoint that has answered.

    Raises:
        BootError: With the kind of failure, as soon as it is known; our container is gone, its log is kept.
        EngineError: The Docker Engine does not answer.
    """
    patience = patience or Patience()
    boot_id = secrets.token_hex(6)
    begin = time.monotonic()
    watch: ContainerWatch | None = None
    follower: LogFollower | None = None
    container: Container | None = None
    client = connect()
    try:
        found = find_image(client, image)
        architecture = str(client.version()["Arch"])
        _refuse(image, found, contract, architecture, host_port)
        options = container_options(
            contract, image_id=str(found.id), stack=stack, boot_id=boot_id, host_port=host_port
        )
        container = _create(client.containers.create, options, architecture)
        _start(container, architecture)
        watch = ContainerWatch(
            container, host_architecture=architecture, image_architecture=architecture, owned=True
        )
        say(f"boot {boot_id}: container {str(container.id)[:12]} of {image} ({str(found.id)[:19]}) started")
        stream = watch.log_chunks(since=None)
        reader = LogTriage(
            engine=engine, version=version, device=device, arguments=contract.command, one_boot=True
        )
        follower = LogFollower(
            bytes_of(stream), reader, evidence / f"{boot_id}.log", stream.close, tell(boot_id)
        )
        watch.raise_if_ended(follower)
        url = f"http://{LOOPBACK}:{published_port(container, contract.port)}"
        ready = wait_ready(url, model=model, patience=patience, watch=watch, follower=follower)
    except BaseException:
        # Ctrl-C as well: nothing that we started goes on behind the user's back.
        if container is not None and watch is None:
            container.remove(force=True, v=True)
        release(watch, follower, patience)
        client.close()
        raise
    seconds = round(time.monotonic() - begin, 2)
    say(f"boot {boot_id}: answers after {seconds:g} s at {url}")
    assert ready.answer is not None  # noqa: S101  # READY has one
    facts = BootFacts(
        boot_id=boot_id,
        stack=stack,
        url=url,
        model=ready.model,
        device=device,
        image=image,
        image_id=str(found.id),
        image_digests=tuple(found.attrs.get("RepoDigests") or ()),
        container_id=str(container.id),
        started_at=watch.first.started_at,
        owned=True,
        ready_after_s=seconds,
        answer=ready.answer,
    )
    return Endpoint(facts, patience=patience, watch=watch, follower=follower)


def _refuse(image: str, found: Image, contract: RunContract, host: str, host_port: int | None) -> None:
    """Everything that can be known to fail before a container exists."""
    check_architecture(image, str(found.attrs.get("Architecture") or host), host)
    entry_point = contract.entrypoint
    if entry_point is None:
        entry_point = tuple(found.attrs["Config"].get("Entrypoint") or ())
    check_command(entry_point, contract.command)
    check_models(contract)
    if host_port is not None:
        check_port(host_port)


def check_models(contract: RunContract) -> None:
    """Refuse model mounts that hold no model.

    Docker would make an empty directory of a missing one.

    Raises:
        BootError: A source is missing or has neither a `config.json` nor a `.gguf` file.
    """
    for mount in contract.models:
        source = Path(mount.source)
        if not source.is_absolute() or not source.exists():
            problem = "does not exist" if source.is_absolute() else "must be an absolute path"
        elif source.is_dir() and not (source / "config.json").is_file() and not any(source.glob("*.gguf")):
            problem = "has neither a config.json nor a .gguf file"
        else:
            continue
        raise BootError(
            f"the model at {source} {problem}",
            where=f"mounted at {mount.target}",
            fix="stage the model's pinned revision on this host first",
            reason=Reason.MODEL_MISSING,
        )


def check_port(port: int) -> None:
    """Refuse a port that somebody listens on.

    Raises:
        BootError: It is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise BootError(
                f"port {port} of this host is taken by another process",
                where=f"{LOOPBACK}:{port}",
                fix=f"find it with `ss -ltnp 'sport = :{port}'` and stop it yourself, or choose another port",
                reason=Reason.PORT_IN_USE,
            ) from error


def _create(create: Callable[..., Container], options: dict[str, Any], architecture: str) -> Container:
    try:
        return create(**options)
    except docker.errors.APIError as error:
        raise explain_refusal(error, "docker create", architecture) from error


def _start(container: Container, architecture: str) -> None:
    try:
        container.start()
    except docker.errors.APIError as error:
        raise explain_refusal(error, f"container {str(container.id)[:12]}", architecture) from error
