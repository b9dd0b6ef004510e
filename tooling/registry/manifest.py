"""OCI manifests as data: the bytes that were pushed, their digest, and what they point to.

Source of the shapes: the OCI image specification 1.1 (`manifest.md`, `image-index.md`) and the distribution
specification 1.1 (referrers).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from tooling.attest.statement import Digest, WireRecord
from tooling.records import canonical_json, sha256_of
from tooling.registry.errors import ContentError

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFEST_TYPES = (MANIFEST, DOCKER_MANIFEST, INDEX, DOCKER_INDEX)
INDEX_TYPES = frozenset({INDEX, DOCKER_INDEX})

EMPTY_CONFIG_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY_CONFIG = b"{}"


class Descriptor(WireRecord):
    """Points to content by its digest and size; fields that we do not use are kept out of sight."""

    model_config = ConfigDict(**{**WireRecord.model_config, "extra": "ignore"})

    media_type: str
    digest: Digest
    size: int = Field(ge=0)
    artifact_type: str | None = None
    annotations: dict[str, str] | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON of specification, without empty fields."""
        return self.model_dump(mode="json", exclude_none=True)


class _Document(WireRecord):
    """The parts of manifests and indexes that are used here."""

    model_config = ConfigDict(**{**WireRecord.model_config, "extra": "ignore"})

    media_type: str | None = None
    artifact_type: str | None = None
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()
    manifests: tuple[Descriptor, ...] = ()
    subject: Descriptor | None = None
    annotations: dict[str, str] | None = None


@dataclass(frozen=True)
class Manifest:
    """A manifest or an index, byte for byte.

    Attributes:
        content: The bytes; the digest is over them.
        media_type: As the registry said.
        config: Configuration blob, None for an index.
        layers: Layers.
        manifests: Children of an index.
        subject: What this is attached to.
        artifact_type: Kind of the artifact.
    """

    content: bytes
    media_type: str
    config: Descriptor | None
    layers: tuple[Descriptor, ...]
    manifests: tuple[Descriptor, ...]
    subject: Descriptor | None
    artifact_type: str
    annotations: dict[str, str]

    @classmethod
    def parse(cls, content: bytes, media_type: str = "") -> Manifest:
        """Read a manifest.

        Raises:
            ContentError: It is none.
        """
        try:
            document = _Document.model_validate(json.loads(content))
        except (ValidationError, ValueError) as error:
            raise ContentError(
                "the content is no OCI manifest", where=f"sha256:{sha256_of(content)}"
            ) from error
        kind = document.media_type or media_type
        if kind not in MANIFEST_TYPES:
            raise ContentError(f"manifests of type {kind!r} are not known here")
        return cls(
            content,
            kind,
            document.config,
            document.layers,
            document.manifests,
            document.subject,
            document.artifact_type or (document.config.media_type if document.config else ""),
            document.annotations or {},
        )

    @property
    def digest(self) -> str:
        """`sha256:<64 hex>` of the content."""
        return f"sha256:{sha256_of(self.content)}"

    @property
    def is_index(self) -> bool:
        """Whether this only lists other manifests."""
        return self.media_type in INDEX_TYPES

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Configuration and layers, each once."""
        every = [*([self.config] if self.config else []), *self.layers]
        return tuple({blob.digest: blob for blob in every}.values())

    def descriptor(self) -> Descriptor:
        """What points to this."""
        return Descriptor(
            media_type=self.media_type,
            digest=self.digest,
            size=len(self.content),
            artifact_type=self.artifact_type or None,
            annotations=self.annotations or None,
        )


def artifact_manifest(
    *, subject: Manifest, artifact_type: str, layer: bytes, annotations: dict[str, str]
) -> Manifest:
    """A manifest that attaches one blob to an image; equal content gives an equal digest.

    Args:
        subject: The image.
        artifact_type: Kind of the artifact, also the blob's media type.
        layer: The blob.
        annotations: Of the manifest; referrer lists show them.
    """
    target = Descriptor(media_type=subject.media_type, digest=subject.digest, size=len(subject.content))
    config = Descriptor(
        media_type=EMPTY_CONFIG_TYPE, digest=f"sha256:{sha256_of(EMPTY_CONFIG)}", size=len(EMPTY_CONFIG)
    )
    blob = Descriptor(media_type=artifact_type, digest=f"sha256:{sha256_of(layer)}", size=len(layer))
    return Manifest.parse(
        canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "artifactType": artifact_type,
                "config": config.as_json(),
                "layers": [blob.as_json()],
                "subject": target.as_json(),
                "annotations": annotations,
            }
        )
    )


def index_manifest(manifests: tuple[Descriptor, ...]) -> Manifest:
    """An index that lists manifests, ordered by digest so that equal sets have equal bytes."""
    ordered = sorted({item.digest: item for item in manifests}.values(), key=lambda item: item.digest)
    return Manifest.parse(
        canonical_json(
            {"schemaVersion": 2, "mediaType": INDEX, "manifests": [item.as_json() for item in ordered]}
        )
    )
