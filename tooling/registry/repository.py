"""One repository of one registry: manifests, blobs and tags, each checked against its digest.

Source: the OCI distribution specification 1.1; deviations of registry 2.8 are named where they matter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import requests

from tooling.records import sha256_of, sha256_of_file
from tooling.registry.errors import (
    ContentError,
    NotFoundError,
    RegistryError,
    TagConflictError,
    UnreachableError,
)
from tooling.registry.manifest import INDEX, MANIFEST_TYPES, Descriptor, Manifest
from tooling.registry.transport import NOT_FOUND, Settings, Transport
from tooling.registry.upload import upload_blob

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from tooling.registry.reference import Reference

_OK, _CREATED, _ACCEPTED, _PARTIAL = 200, 201, 202, 206
#: Largest manifest or record that is read into memory; the specification asks registries for 4 MiB.
DOCUMENT_MAX_BYTES = 32 * 1024 * 1024
#: Bytes read at once from a download.
_READ_BYTES = 1024 * 1024


def fallback_tag(digest: str) -> str:
    """Tag of the index of referrers, as the distribution specification names it."""
    return digest.replace(":", "-")


def image_tag(digest: str) -> str:
    """The own tag of an image, which keeps garbage collection off it whatever happens to other tags."""
    return f"{fallback_tag(digest)}.image"


def record_tag(subject: str, digest: str) -> str:
    """The own tag of a record: it names its subject, so the tags alone tell what is attached to what.

    Args:
        subject: Digest of the image.
        digest: Digest of the record's manifest.
    """
    return f"{fallback_tag(subject)}.record-{digest.removeprefix('sha256:')[:16]}"


def is_record_tag(tag: str, subject: str) -> bool:
    """Whether a tag is the own tag of a record of this image."""
    return re.fullmatch(rf"{fallback_tag(subject)}\.record-[0-9a-f]{{16}}", tag) is not None


@dataclass(frozen=True)
class Pushed:
    """The registry's answer to a manifest.

    Attributes:
        digest: Digest of what was written.
        keeps_referrers: The registry maintains the list of referrers itself.
    """

    digest: str
    keeps_referrers: bool


class Repository:
    """A repository; use it as a context manager, one in each thread."""

    def __init__(self, reference: Reference, settings: Settings | None = None) -> None:
        self.reference = reference
        self.settings = settings or Settings()
        self.transport = Transport(reference, self.settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.transport.close()

    @property
    def name(self) -> str:
        """Host and repository."""
        return self.reference.name

    def _path(self, rest: str) -> str:
        return f"/v2/{self.reference.repository}/{rest}"

    # --- manifests and tags -----------------------------------------------------------------------------------

    def manifest(self, name: str) -> Manifest:
        """Fetch a manifest by tag or digest and check it.

        Raises:
            NotFoundError: It is not there.
            ContentError: It does not have the digest that was asked for, or that the registry claims.
            RegistryError: The registry failed.
        """
        answer, content = self._document(f"manifests/{name}", {"Accept": ", ".join(MANIFEST_TYPES)})
        digest = f"sha256:{sha256_of(content)}"
        claimed = name if name.startswith("sha256:") else answer.headers.get("Docker-Content-Digest", digest)
        if claimed != digest:
            raise ContentError(
                f"the registry answers {claimed} with content of digest {digest}",
                where=f"{self.name}@{name}",
                fix="do not use this registry before its owner has explained it",
            )
        return Manifest.parse(content, answer.headers.get("Content-Type", "").partition(";")[0].strip())

    def digest_of_tag(self, tag: str) -> str | None:
        """Digest that a tag points to now; None when there is no such tag."""
        try:
            return self.manifest(tag).digest
        except NotFoundError:
            return None

    def put_manifest(self, manifest: Manifest, tag: str = "") -> Pushed:
        """Write a manifest, under a tag or under its digest alone, and make sure that it is there.

        Raises:
            ContentError: The registry stored something else.
            RegistryError: The registry failed.
        """
        name = tag or manifest.digest
        answer = self.transport.request(
            "PUT",
            self._path(f"manifests/{name}"),
            ok={_CREATED, _OK, _ACCEPTED},
            push=True,
            headers={"Content-Type": manifest.media_type},
            data=manifest.content,
        )
        stored = answer.headers.get("Docker-Content-Digest", manifest.digest)
        if stored != manifest.digest:
            raise ContentError(
                f"the registry stored {stored} instead of {manifest.digest}", where=f"{self.name}:{name}"
            )
        return Pushed(manifest.digest, "OCI-Subject" in answer.headers)

    def tag_once(self, manifest: Manifest, tag: str) -> Pushed | None:
        """Give a manifest a tag that never moves, and read it back.

        Registries have no compare-and-swap: between the look and the write somebody else may write. The
        read-back finds that; whoever lost is told.

        Returns:
            None when the tag was there already, with this digest.

        Raises:
            TagConflictError: The tag exists with another digest, before or after the write.
        """
        before = self.digest_of_tag(tag)
        if before not in {None, manifest.digest}:
            raise self._conflict(tag, before, manifest.digest)
        if before == manifest.digest:
            return None
        pushed = self.put_manifest(manifest, tag)
        after = self.digest_of_tag(tag)
        if after != manifest.digest:
            raise self._conflict(tag, after, manifest.digest)
        return pushed

    def _conflict(self, tag: str, found: str | None, wanted: str) -> TagConflictError:
        return TagConflictError(
            f"tag {tag} exists already with another digest" if found else f"tag {tag} vanished after the write",
            where=f"{self.name}:{tag}",
            details=[f"there:  {found}", f"wanted: {wanted}"],
            fix="a release tag never moves; release under a new name",
        )

    def tags(self) -> list[str]:
        """Every tag of the repository, sorted; none when the repository does not exist.

        Raises:
            RegistryError: The registry failed, or lists its tags without end.
        """
        found: set[str] = set()
        path = self._path("tags/list?n=1000")
        while path:
            answer = self.transport.request("GET", path, ok={_OK, NOT_FOUND})
            if answer.status_code == NOT_FOUND:
                return []
            try:
                page = answer.json().get("tags") or []
            except (ValueError, AttributeError) as error:
                raise RegistryError("the list of tags is no JSON", where=self.name) from error
            following = _next_page(answer)
            if following and found.issuperset(page):
                raise RegistryError("the registry lists its tags without end", where=self.name)
            found.update(page)
            path = following
        return sorted(found)

    # --- referrers --------------------------------------------------------------------------------------------

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """Everything that is attached to an image, from every place where that may be written.

        The referrers API where the registry has one, else the fallback index under the tag `sha256-<hex>`; and
        always the own tags of our records, so that an index that lost an update hides nothing.

        Args:
            digest: Of the image, `sha256:<64 hex>`.
        """
        listed = self.referrers_from_api(digest)
        return self.with_own_tags(digest, self.referrers_from_index(digest) if listed is None else listed)

    def with_own_tags(self, digest: str, listed: tuple[Descriptor, ...]) -> tuple[Descriptor, ...]:
        """A list of referrers, completed by the records that only their own tags show."""
        known = {item.digest: item for item in listed}
        have = {record_tag(digest, item) for item in known}
        for tag in self.tags():
            if is_record_tag(tag, digest) and tag not in have:
                try:
                    record = self.manifest(tag)
                except NotFoundError:
                    # Registry 2.8 lists a tag before it can be read: its writer is not done and will see to it.
                    continue
                known[record.digest] = record.descriptor()
        return tuple(known[key] for key in sorted(known))

    def referrers_from_api(self, digest: str) -> tuple[Descriptor, ...] | None:
        """The registry's own list; None when it keeps none (registry 2.8 answers 404)."""
        found: list[Descriptor] = []
        path = self._path(f"referrers/{digest}")
        while path:
            answer = self.transport.request("GET", path, ok={_OK, NOT_FOUND}, headers={"Accept": INDEX})
            if answer.status_code == NOT_FOUND or not answer.headers.get("Content-Type", "").startswith(INDEX):
                return None
            page = Manifest.parse(answer.content, INDEX).manifests
            following = _next_page(answer)
            if following and not page:
                raise RegistryError("the registry lists referrers without end", where=self.name)
            found.extend(page)
            path = following
        return tuple(found)

    def referrers_from_index(self, digest: str) -> tuple[Descriptor, ...]:
        """The fallback index that clients maintain; empty when there is none."""
        try:
            return self.manifest(fallback_tag(digest)).manifests
        except NotFoundError:
            return ()

    # --- blobs ------------------------------------------------------------------------------------------------

    def has_blob(self, digest: str) -> bool:
        """Whether a blob is there."""
        answer = self.transport.request("HEAD", self._path(f"blobs/{digest}"), ok={_OK, NOT_FOUND})
        return answer.status_code == _OK

    def blob(self, descriptor: Descriptor) -> bytes:
        """Fetch a small blob into memory and check it.

        Raises:
            ContentError: It is too large for a record, or does not have its digest.
            NotFoundError: It is not there.
        """
        if descriptor.size > DOCUMENT_MAX_BYTES:
            raise ContentError(f"a record of {descriptor.size} bytes is not read", where=descriptor.digest)
        _, content = self._document(f"blobs/{descriptor.digest}", {})
        if f"sha256:{sha256_of(content)}" != descriptor.digest:
            raise ContentError(
                "a blob does not have its digest: the registry's copy is damaged",
                where=f"{self.name}@{descriptor.digest}",
                fix="push it again from where it was made",
            )
        return content

    def _document(self, path: str, headers: dict[str, str]) -> tuple[requests.Response, bytes]:
        """Fetch something small; an answer that breaks off is asked for again."""
        for attempt in range(1, self.settings.attempts + 1):
            answer = self.transport.request("GET", self._path(path), ok={_OK}, headers=headers, stream=True)
            try:
                return answer, self._body(answer)
            except requests.exceptions.RequestException as error:
                if attempt == self.settings.attempts:
                    raise UnreachableError(
                        "the answer broke off",
                        where=f"{self.name}, {path}: {type(error).__name__}",
                        fix="run the command again",
                    ) from error
                self.settings.sleep(self.settings.backoff_s * 2 ** (attempt - 1))
        raise AssertionError("unreachable")  # the last attempt returned or raised

    def _body(self, answer: requests.Response) -> bytes:
        """The whole body, up to a limit: a hostile registry must not fill the memory."""
        content = bytearray()
        try:
            for piece in answer.iter_content(_READ_BYTES):
                content += piece
                if len(content) > DOCUMENT_MAX_BYTES:
                    raise ContentError(f"the answer is larger than {DOCUMENT_MAX_BYTES} bytes", where=self.name)
        finally:
            answer.close()
        return bytes(content)

    def download(self, descriptor: Descriptor, path: Path) -> None:
        """Fetch a blob into a file, going on where a broken transfer stopped, and check it.

        Raises:
            ContentError: The file does not have the digest; it is removed.
            RegistryError: The registry failed.
        """
        path.touch()
        for attempt in range(1, self.settings.attempts + 1):
            try:
                self._download_rest(descriptor, path)
                break
            except requests.exceptions.RequestException as error:
                if attempt == self.settings.attempts:
                    raise UnreachableError(
                        "the download broke off", where=f"{self.name}@{descriptor.digest}"
                    ) from error
                self.settings.sleep(self.settings.backoff_s * 2 ** (attempt - 1))
        if f"sha256:{sha256_of_file(path)}" != descriptor.digest:
            path.unlink()
            raise ContentError(
                "a blob does not have its digest: the registry's copy is damaged",
                where=f"{self.name}@{descriptor.digest}",
                fix="push it again from where it was made",
            )

    def _download_rest(self, descriptor: Descriptor, path: Path) -> None:
        have = path.stat().st_size
        if have >= descriptor.size:
            return
        answer = self.transport.request(
            "GET",
            self._path(f"blobs/{descriptor.digest}"),
            ok={_OK, _PARTIAL},
            headers={"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})},
            stream=True,
        )
        try:
            with path.open("ab" if answer.status_code == _PARTIAL else "wb") as file:
                for piece in answer.iter_content(_READ_BYTES):
                    file.write(piece)
        finally:
            answer.close()

    def upload(self, content: bytes | Path) -> str:
        """Write a blob, unless it is there.

        Returns:
            Its digest.

        Raises:
            RegistryError: The registry failed.
        """
        return upload_blob(self, content)


def _next_page(answer: requests.Response) -> str:
    """Path of the next page of a list; empty on the last one."""
    return answer.links.get("next", {}).get("url", "")
