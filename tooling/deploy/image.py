"""What a release is made of, as far as a host has to know before it pulls: platform, layers, sizes, records."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from os import SEEK_END
from typing import TYPE_CHECKING, Any

from pydantic import Field

from tooling.boot.platforms import architecture, check_platforms
from tooling.errors import CheckError
from tooling.records import Record
from tooling.registry.layout import Layout
from tooling.registry.manifest import Descriptor
from tooling.registry.repository import Repository
from tooling.release.evidence import Source, collect_referrers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.registry.manifest import Manifest
    from tooling.release.verify import Verification
    from tooling.sign.keys import Trust

#: A gzip stream ends with the size of its content modulo 2^32 (RFC 1952, section 2.3.1).
_GZIP_TAIL, _GZIP_WRAP = 4, 1 << 32
#: What to reckon with where the format does not tell: libraries and device code, compressed to a third.
_GUESSED_RATIO = 3
_OK, _PARTIAL = 200, 206


#: Reads the last bytes of a blob; fewer, or none, where that cannot be done cheaply.
Tail = Callable[[Descriptor, int], bytes]


class LayerFacts(Record):
    """One layer.

    Attributes:
        diff_id: Digest of the unpacked tar; hosts know their layers by it.
        digest: Digest of the blob.
        compressed: Bytes of the blob.
        unpacked: Bytes of the tar, or an estimate.
    """

    diff_id: str
    digest: str
    compressed: int
    unpacked: int


class ImageFacts(Record):
    """An image of a registry or layout.

    Attributes:
        digest: Of its manifest.
        image_id: Digest of its configuration, by which engines know it.
        platform: E.g. `linux/amd64`.
        layers: From the base up.
        entry_point: Its entry point.
        labels: Its labels.
    """

    digest: str
    image_id: str
    platform: str
    layers: tuple[LayerFacts, ...]
    entry_point: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)

    def missing(self, host_images: Sequence[Sequence[str]]) -> tuple[LayerFacts, ...]:
        """Layers that a host has to fetch.

        An engine reuses a layer only on top of the very layers that it lies on here, so what counts is the
        longest common beginning with any image of the host.

        Args:
            host_images: Diff ids of each image that the host has, from the base up.
        """
        own = [layer.diff_id for layer in self.layers]
        best = max((_common(own, other) for other in host_images), default=0)
        return self.layers[best:]


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    count = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        count += 1
    return count


def image_facts(source: Source, digest: str, machine: str, tail: Tail) -> ImageFacts:
    """Read an image; of an index the part for a host.

    Args:
        source: Registry or layout.
        digest: Of the manifest or index.
        machine: The host's architecture, in any spelling.
        tail: Reads the ends of blobs.

    Raises:
        BootError: The image has nothing for this architecture.
        CheckError: Its configuration does not fit its layers.
    """
    manifest = source.manifest(digest)
    if manifest.is_index:
        manifest = _of_platform(source, manifest, machine)
    if manifest.config is None:
        raise CheckError("the image has no configuration", where=manifest.digest, fix="release it again")
    config: dict[str, Any] = json.loads(source.blob(manifest.config))
    platform = f"{config.get('os', 'linux')}/{config.get('architecture', '')}"
    check_platforms(digest, (platform,), machine)
    diff_ids = config.get("rootfs", {}).get("diff_ids", [])
    if not diff_ids or len(diff_ids) != len(manifest.layers):
        raise CheckError(
            f"the image names {len(diff_ids)} layers and has {len(manifest.layers)}",
            where=manifest.digest,
            fix="build and release it again",
        )
    layers = tuple(
        LayerFacts(
            diff_id=diff_id,
            digest=layer.digest,
            compressed=layer.size,
            unpacked=unpacked_bytes(layer, tail),
        )
        for diff_id, layer in zip(diff_ids, manifest.layers, strict=True)
    )
    run = config.get("config") or {}
    return ImageFacts(
        digest=manifest.digest,
        image_id=manifest.config.digest,
        platform=platform,
        layers=layers,
        entry_point=tuple(run.get("Entrypoint") or ()),
        labels=run.get("Labels") or {},
    )


def _of_platform(source: Source, index: Manifest, machine: str) -> Manifest:
    """The child of an index that a host runs; attestations among the children have no platform."""
    offered: list[str] = []
    for child in index.manifests:
        manifest = source.manifest(child.digest)
        if manifest.config is None:
            continue
        config = json.loads(source.blob(manifest.config))
        platform = f"{config.get('os', 'unknown')}/{config.get('architecture', 'unknown')}"
        offered.append(platform)
        if architecture(platform) == architecture(machine):
            return manifest
    check_platforms(index.digest, offered, machine)
    raise AssertionError("unreachable")  # an index with a fitting child was answered above


def unpacked_bytes(layer: Descriptor, tail: Tail) -> int:
    """Size of a layer's tar in bytes, from the end of the compressed stream where the format says it.

    A gzip stream only knows its size modulo 4 GiB; the smallest size that is not below the compressed one is
    taken, which is right for layers below 4 GiB.
    """
    end = tail(layer, _GZIP_TAIL) if layer.media_type.endswith("gzip") else b""
    if len(end) == _GZIP_TAIL:
        size = int.from_bytes(end, "little")
        # An incompressible tar grows by at most a few bytes a block.
        while size < layer.size - layer.size // 1000 - 64:
            size += _GZIP_WRAP
        return size
    return layer.size if layer.media_type.endswith("tar") else layer.size * _GUESSED_RATIO


def tail_of(source: Source) -> Tail:
    """How the ends of blobs are read from a source."""
    if isinstance(source, Layout):
        return partial(_tail_of_file, source)
    if isinstance(source, Repository):
        return partial(_tail_by_range, source)
    return lambda _descriptor, _length: b""


def _tail_of_file(layout: Layout, descriptor: Descriptor, length: int) -> bytes:
    with layout.file(descriptor.digest).open("rb") as file:
        file.seek(-min(length, descriptor.size), SEEK_END)
        return file.read()


def _tail_by_range(repository: Repository, descriptor: Descriptor, length: int) -> bytes:
    path = f"/v2/{repository.reference.repository}/blobs/{descriptor.digest}"
    headers = {"Range": f"bytes={max(descriptor.size - length, 0)}-{descriptor.size - 1}"}
    answer = repository.transport.request("GET", path, ok={_OK, _PARTIAL}, headers=headers, stream=True)
    try:
        # A registry that does not know ranges would send the whole layer.
        return answer.content if answer.status_code == _PARTIAL else b""
    finally:
        answer.close()


def signed_records(source: Source, release: Verification, trust: Trust) -> tuple[dict[str, Any], ...]:
    """The signed statements that a release rests on, itself first: the host keeps and checks them again."""
    collected = collect_referrers(source, release.digest, trust)
    wanted = [release.record_sha256, *(item.payload_sha256 for item in release.release.attestations)]
    found = {item.payload_sha256: item for item in collected.signed}
    return tuple(json.loads(found[payload].bundle) for payload in wanted if payload in found)
