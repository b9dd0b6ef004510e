"""What a host has to pull of an image: pushed to a registry, as the engine compresses it, and read back."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from docker.errors import ImageNotFound

from tooling.build.builder import image_layers
from tooling.errors import CheckError, InputError
from tooling.records import Record
from tooling.registry import local
from tooling.registry.push import push_image, pushed_tag
from tooling.registry.reference import parse_reference
from tooling.registry.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import docker


class PullLayer(Record):
    """One layer.

    Attributes:
        created_by: The step that made it.
        unpacked: Bytes on the disk of who pulls it.
        compressed: Bytes of the download.
    """

    created_by: str
    unpacked: int
    compressed: int


class PullSize(Record):
    """An image on the wire and on the disk.

    Attributes:
        image: As it was asked for.
        image_id: The engine's.
        layers: From the base upwards.
    """

    image: str
    image_id: str
    layers: tuple[PullLayer, ...]

    @property
    def unpacked(self) -> int:
        """Bytes of all layers on the disk."""
        return sum(layer.unpacked for layer in self.layers)

    @property
    def compressed(self) -> int:
        """Bytes of all layers as downloaded."""
        return sum(layer.compressed for layer in self.layers)


def measure_pulls(
    client: docker.DockerClient, images: Sequence[str], say: Callable[[str], None]
) -> tuple[PullSize, ...]:
    """Push images to a registry that lives as long as this call, and read their manifests.

    Args:
        client: The engine that has the images.
        images: Names or ids, at least one.
        say: Told of each layer that is there.

    Raises:
        InputError: No image, or the engine has none of that name.
        RegistryError: A push failed.
        CheckError: The manifest has another number of layers than the engine's image.
    """
    if not images:
        raise InputError("no image to measure", fix="name at least one, e.g. blackwell-stacks/cu130:built")
    found = {name: _image_id(client, name) for name in images}
    with tempfile.TemporaryDirectory(prefix="blackwell-stacks-pull-") as directory:
        folder = Path(directory)
        say("pushing to a registry of this run; the engine compresses a GB in half a minute or so ...")
        registry = local.start(_unsaid, folder)
        try:
            return tuple(_measure(client, name, found[name], registry.host, say) for name in found)
        finally:
            local.stop(folder)


def _unsaid(_: str) -> None:
    """What the registry says of itself is for one that stays."""


def _image_id(client: docker.DockerClient, name: str) -> str:
    try:
        return str(client.images.get(name).id)
    except ImageNotFound as error:
        raise InputError(f"the engine has no image {name}", fix="build it or pull it first") from error


def _measure(
    client: docker.DockerClient, name: str, image_id: str, host: str, say: Callable[[str], None]
) -> PullSize:
    layers = image_layers(client, image_id)
    with Repository(parse_reference(f"{host}/pull-size")) as repository:
        try:
            manifest = push_image(client, image_id, repository, say)
        finally:
            client.images.remove(f"{repository.name}:{pushed_tag(image_id)}", noprune=True)
    if len(manifest.layers) != len(layers):
        raise CheckError(f"the engine has {len(layers)} layers, the registry {len(manifest.layers)}", name)
    pairs = zip(layers, manifest.layers, strict=True)
    return PullSize(
        image=name,
        image_id=image_id,
        layers=tuple(
            PullLayer(created_by=here.created_by, unpacked=here.bytes, compressed=there.size)
            for here, there in pairs
        ),
    )
