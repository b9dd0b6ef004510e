"""Synthetic images of a few hundred bytes, pushed by the toolkit's own client."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING

from tooling.registry.manifest import INDEX, MANIFEST, Manifest

if TYPE_CHECKING:
    from tooling.registry.repository import Repository


def _descriptor(content: bytes, media_type: str) -> dict[str, object]:
    return {
        "mediaType": media_type,
        "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
        "size": len(content),
    }


def push_image(repository: Repository, text: str, *, tag: str = "", layers: int = 1) -> Manifest:
    """Make an image whose layers hold a text file each, and push it."""
    blobs, diff_ids = [], []
    for number in range(layers):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            content = f"{text} {number}\n".encode()
            entry = tarfile.TarInfo("hello")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        diff_ids.append(f"sha256:{hashlib.sha256(buffer.getvalue()).hexdigest()}")
        blobs.append(gzip.compress(buffer.getvalue(), mtime=0))
    config = json.dumps(
        {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    ).encode()
    for blob in (config, *blobs):
        repository.upload(blob)
    manifest = Manifest.parse(
        json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": _descriptor(config, "application/vnd.oci.image.config.v1+json"),
                "layers": [_descriptor(blob, "application/vnd.oci.image.layer.v1.tar+gzip") for blob in blobs],
            }
        ).encode()
    )
    repository.put_manifest(manifest, tag)
    return manifest


def push_index(repository: Repository, *children: Manifest, tag: str = "") -> Manifest:
    """Push an index of images."""
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [child.descriptor().as_json() for child in children],
    }
    manifest = Manifest.parse(json.dumps(index).encode())
    repository.put_manifest(manifest, tag)
    return manifest
