"""The engine pushes an image; what arrived is compared with what the engine has before anybody relies on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docker.errors import APIError, ImageNotFound

from tooling.errors import EngineError, InputError
from tooling.registry.errors import ContentError, RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable

    import docker

    from tooling.registry.manifest import Manifest
    from tooling.registry.repository import Repository


def pushed_tag(image_id: str) -> str:
    """The tag under which an image arrives: it names the engine's image and says nothing of its quality."""
    return f"pushed-{image_id.removeprefix('sha256:')[:12]}"


def push_image(
    client: docker.DockerClient, image_id: str, repository: Repository, say: Callable[[str], None]
) -> Manifest:
    """Push an image of the engine.

    Layers that the registry has are not sent again, so a push that broke off goes on where it stopped.

    Args:
        client: The engine that has it.
        image_id: The image.
        repository: Where it goes.
        say: Told of each layer that is there.

    Returns:
        Its manifest, read back from the registry.

    Raises:
        InputError: The engine has no such image.
        RegistryError: The registry or the engine refused.
        ContentError: Another image arrived.
    """
    tag = pushed_tag(image_id)
    try:
        image = client.images.get(image_id)
        image.tag(repository.name, tag)
        last = ""
        for line in client.api.push(repository.name, tag=tag, stream=True, decode=True):
            last = _tell(line, last, repository, say)
    except ImageNotFound as error:
        raise InputError(f"the engine has no image {image_id}", fix="build it first") from error
    except APIError as error:
        raise EngineError("the engine could not push", where=repository.name, details=[str(error)]) from error
    manifest = repository.manifest(tag)
    # The id of an image is the digest of its configuration; with containerd's store it is the manifest's.
    if image_id not in {manifest.digest, manifest.config.digest if manifest.config else ""}:
        raise ContentError(
            "the registry has another image than was pushed",
            where=f"{repository.name}:{tag}",
            details=[f"pushed: {image_id}", f"there: {manifest.digest}"],
            fix="somebody else writes there: find out who before anything else",
        )
    return manifest


def _tell(line: dict[str, Any], last: str, repository: Repository, say: Callable[[str], None]) -> str:
    """Pass on what matters of the engine's progress; an error is in the stream, not in the answer's status."""
    if "error" in line:
        raise RegistryError(
            "the engine could not push the image",
            where=repository.name,
            details=[str(line["error"])],
            fix="check the registry and `docker login`; what arrived is kept, so run the command again",
        )
    status = line.get("status", "")
    if "id" in line and status in {"Pushed", "Layer already exists"}:
        text = f"push: {line['id']} {status.lower()}"
        if text != last:
            say(text)
        return text
    return last
