"""OCI image layout directories: a release with all its records as files, for hosts without a registry.

Source of the shape: the OCI image specification 1.1, `image-layout.md`.
"""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.errors import CheckError, InputError, ToolkitError
from tooling.records import canonical_json, sha256_of, sha256_of_file
from tooling.registry.attach import attach_manifests, pin
from tooling.registry.errors import ContentError, NotFoundError
from tooling.registry.manifest import INDEX, Descriptor, Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tooling.registry.repository import Repository

REF_NAME = "org.opencontainers.image.ref.name"
_MARK = {"imageLayoutVersion": "1.0.0"}


class LayoutError(CheckError):
    """The directory is no OCI layout, or lacks a part."""


class StorageError(ToolkitError):
    """The disk does not take what should be written."""


@dataclass(frozen=True)
class Layout:
    """A layout directory, read like a repository.

    Attributes:
        path: The directory.
        entries: What `index.json` lists.
    """

    path: Path
    entries: tuple[Descriptor, ...]

    @classmethod
    def open(cls, path: Path) -> Layout:
        """Open a directory.

        Raises:
            LayoutError: It is no layout.
        """
        try:
            mark = json.loads((path / "oci-layout").read_text())
            index = Manifest.parse((path / "index.json").read_bytes(), INDEX)
        except OSError as error:
            raise LayoutError(
                f"the directory is no OCI layout: {error.strerror}", where=str(error.filename)
            ) from error
        except ValueError as error:
            raise LayoutError("the directory is no OCI layout", where=str(path)) from error
        if not isinstance(mark, dict) or mark.get("imageLayoutVersion") != _MARK["imageLayoutVersion"]:
            raise LayoutError("the OCI layout is of an unknown version", where=str(path))
        return cls(path, index.manifests)

    @property
    def name(self) -> str:
        """The directory, for messages."""
        return str(self.path)

    def tags(self) -> list[str]:
        """Names that the layout gives to images."""
        return sorted({(entry.annotations or {}).get(REF_NAME, "") for entry in self.entries} - {""})

    def manifest(self, name: str) -> Manifest:
        """Read a manifest by tag or digest and check it.

        Raises:
            NotFoundError: It is not there.
            ContentError: It does not have its digest.
        """
        if name.startswith("sha256:"):
            return Manifest.parse(self._read(name))
        for entry in self.entries:
            if (entry.annotations or {}).get(REF_NAME) == name:
                return Manifest.parse(self._read(entry.digest))
        raise NotFoundError(
            f"the layout has no {name}", where=str(self.path), details=self.tags(), fix="use a listed name"
        )

    def blob(self, descriptor: Descriptor) -> bytes:
        """Read a blob and check it."""
        return self._read(descriptor.digest)

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """Everything in the layout that is attached to an image."""
        manifests = (self.manifest(entry.digest) for entry in self.entries)
        found = {
            item.digest: item.descriptor()
            for item in manifests
            if item.subject is not None and item.subject.digest == digest
        }
        return tuple(found[key] for key in sorted(found))

    def file(self, digest: str) -> Path:
        """Where a blob lies; digests are validated, so this stays inside the directory."""
        return self.path / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def _read(self, digest: str) -> bytes:
        try:
            content = self.file(digest).read_bytes()
        except FileNotFoundError as error:
            raise NotFoundError(
                f"the layout does not have {digest}", where=str(self.path), fix="export the release again"
            ) from error
        if f"sha256:{sha256_of(content)}" != digest:
            raise ContentError(
                "a file of the layout does not have its digest",
                where=str(self.file(digest)),
                fix="copy or export it again",
            )
        return content


def export_layout(repository: Repository, image: Manifest, tag: str, path: Path) -> Layout:
    """Write an image and everything that is attached to it into a new directory.

    What was fetched before the network broke is kept beside it (`<path>.partial`) and used by the next try.
    When the disk is full nothing is kept.

    Args:
        repository: Holds the image.
        image: Its manifest.
        tag: Name that the layout gives to it.
        path: The new directory.

    Raises:
        InputError: The directory exists.
        StorageError: The disk is full or refuses.
        RegistryError: The registry failed.
    """
    if path.exists():
        raise InputError("the directory exists already", where=str(path), fix="choose a new one")
    partial = path.with_name(path.name + ".partial")
    layout = Layout(partial, ())
    try:
        layout.file("sha256:x").parent.mkdir(parents=True, exist_ok=True)
        entries = [image.descriptor().model_copy(update={"annotations": {REF_NAME: tag}})]
        _save(repository, image, layout)
        for descriptor in repository.referrers(image.digest):
            _save(repository, repository.manifest(descriptor.digest), layout)
            entries.append(descriptor)
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [item.as_json() for item in entries]}
        (partial / "index.json").write_bytes(canonical_json(index))
        (partial / "oci-layout").write_bytes(canonical_json(_MARK))
        partial.rename(path)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            shutil.rmtree(partial, ignore_errors=True)
        raise StorageError(
            f"the release cannot be written: {error.strerror}",
            where=str(path),
            fix="make room or choose another place; nothing was left there"
            if error.errno == errno.ENOSPC
            else "check the directory and its rights",
        ) from error
    return Layout.open(path)


def _save(repository: Repository, manifest: Manifest, layout: Layout) -> None:
    """Write a manifest with its blobs, and the children of an index with theirs."""
    for child in manifest.manifests:
        _save(repository, repository.manifest(child.digest), layout)
    for blob in manifest.blobs:
        file = layout.file(blob.digest)
        if not file.exists():
            fetched = file.with_name(file.name + ".fetching")
            repository.download(blob, fetched)
            fetched.rename(file)
    layout.file(manifest.digest).write_bytes(manifest.content)


def import_layout(layout: Layout, repository: Repository, tag: str) -> Manifest:
    """Write a release from a directory into a registry; the tag comes last.

    Args:
        layout: The directory.
        repository: Where it goes.
        tag: Name of the release in the layout.

    Returns:
        The image's manifest.

    Raises:
        NotFoundError, ContentError: The layout lacks a part or a part is damaged; nothing was tagged.
        TagConflictError: The registry has that release name with other content.
    """
    image = layout.manifest(tag)
    records = [layout.manifest(item.digest) for item in layout.referrers(image.digest)]
    for manifest in (image, *records):
        for descriptor in _every_blob(layout, manifest):
            _check_file(layout, descriptor)
    for child in image.manifests:
        _push(layout, repository, layout.manifest(child.digest))
    _push(layout, repository, image)
    pin(repository, image)
    for record in records:
        _push_blobs(layout, repository, record)
    attach_manifests(repository, image.digest, records)
    repository.tag_once(image, tag)
    return image


def _every_blob(layout: Layout, manifest: Manifest) -> Iterator[Descriptor]:
    yield from manifest.blobs
    for child in manifest.manifests:
        yield from _every_blob(layout, layout.manifest(child.digest))


def _check_file(layout: Layout, descriptor: Descriptor) -> None:
    file = layout.file(descriptor.digest)
    if not file.is_file():
        raise NotFoundError(
            f"the layout does not have {descriptor.digest}", where=str(layout.path), fix="export it again"
        )
    if f"sha256:{sha256_of_file(file)}" != descriptor.digest:
        raise ContentError(
            "a file of the layout does not have its digest", where=str(file), fix="copy it again"
        )


def _push_blobs(layout: Layout, repository: Repository, manifest: Manifest) -> None:
    for blob in manifest.blobs:
        repository.upload(layout.file(blob.digest))


def _push(layout: Layout, repository: Repository, manifest: Manifest) -> None:
    _push_blobs(layout, repository, manifest)
    for child in manifest.manifests:
        _push(layout, repository, layout.manifest(child.digest))
    repository.put_manifest(manifest)
