"""Attaching records to images so that nothing is lost: by concurrent writers, or by garbage collection.

Registry 2.8 has no referrers API and no compare-and-swap, so clients keep an index under a tag, and ten
writers that read, add and write leave five records there (measured). Here each record first gets a tag of its
own, which no other writer touches; the index is only a copy of what those tags say. A writer is done when it
has read back an index that holds every record that the tags show. Whoever writes the index last looks at the
tags after that write, so a record whose writer had finished cannot be missing from the last index. A writer
that dies between its write and its look may leave a poorer index; our readers look at the tags too, and the
next writer completes it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tooling.errors import BusyError
from tooling.registry.manifest import EMPTY_CONFIG, Manifest, artifact_manifest, index_manifest
from tooling.registry.repository import fallback_tag, image_tag, record_tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.registry.repository import Repository

#: Rounds of read, merge, write before we say that too many write at once.
_ROUNDS = 60
#: Longest pause between two rounds, in seconds; random, so that writers fall out of step.
_PAUSE_MAX_S = 0.4


def pin(repository: Repository, image: Manifest) -> None:
    """Give an image, and every image of an index, a tag of its own.

    Raises:
        RegistryError: The registry failed.
    """
    for child in image.manifests:
        pin(repository, repository.manifest(child.digest))
    repository.tag_once(image, image_tag(image.digest))


def attach(
    repository: Repository,
    image: Manifest,
    content: bytes,
    *,
    artifact_type: str,
    annotations: dict[str, str],
) -> Manifest:
    """Attach one blob to an image; doing it twice changes nothing.

    Args:
        repository: Holds the image.
        image: The image's manifest.
        content: The blob, e.g. a signature bundle.
        artifact_type: Its media type.
        annotations: Shown in lists of referrers.

    Returns:
        The manifest of the record.

    Raises:
        BusyError: The index did not come to rest; the record itself is stored and will be found.
        RegistryError: The registry failed.
    """
    record = upload_record(repository, image, content, artifact_type=artifact_type, annotations=annotations)
    attach_manifests(repository, image.digest, [record])
    return record


def upload_record(
    repository: Repository,
    image: Manifest,
    content: bytes,
    *,
    artifact_type: str,
    annotations: dict[str, str],
) -> Manifest:
    """Write the blobs of a record and make its manifest, which is not written yet."""
    repository.upload(EMPTY_CONFIG)
    repository.upload(content)
    return artifact_manifest(subject=image, artifact_type=artifact_type, layer=content, annotations=annotations)


def attach_manifests(repository: Repository, subject: str, records: Sequence[Manifest]) -> None:
    """Attach records whose blobs are there already; doing it twice changes nothing.

    Args:
        repository: Holds the image.
        subject: Digest of the image.
        records: Manifests of the records.

    Raises:
        BusyError: The index did not come to rest; the records themselves are stored and will be found.
        RegistryError: The registry failed.
    """
    pushed = [repository.tag_once(record, record_tag(subject, record.digest)) for record in records]
    if pushed and all(answer is not None and answer.keeps_referrers for answer in pushed):
        return
    if repository.referrers_from_api(subject) is None:
        _converge(repository, subject)


def _converge(repository: Repository, subject: str) -> None:
    """Write the fallback index until it holds everything that is attached."""
    for _ in range(_ROUNDS):
        listed = repository.referrers_from_index(subject)
        every = repository.with_own_tags(subject, listed)
        if len(every) == len(listed):
            return
        repository.put_manifest(index_manifest(every), fallback_tag(subject))
        repository.settings.sleep(random.uniform(0, _PAUSE_MAX_S))  # noqa: S311  # jitter
    raise BusyError(
        "others keep changing the list of records of this image",
        where=f"{repository.name}@{subject}",
        fix="run the command again: the record itself is stored",
    )
