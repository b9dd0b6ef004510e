"""Blobs on their way up: in pieces, resumed where the registry allows it, never taken for written unseen.

Source: the OCI distribution specification 1.1, "Pushing a blob in chunks". Registry 2.8 refuses to go on with
an upload after a cut; then the blob starts again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from tooling.records import sha256_of, sha256_of_file
from tooling.registry.errors import (
    AccessDeniedError,
    CertificateError,
    RateLimitedError,
    RegistryError,
    RegistryFailureError,
    UnreachableError,
)

if TYPE_CHECKING:
    from pathlib import Path

    import requests

    from tooling.registry.repository import Repository

_CREATED, _ACCEPTED, _NO_CONTENT = 201, 202, 204
_PATCHED = frozenset({_ACCEPTED, _NO_CONTENT, _CREATED})


def upload_blob(repository: Repository, content: bytes | Path) -> str:
    """Write a blob, unless it is there.

    Args:
        repository: Where it goes.
        content: Bytes, or a file.

    Returns:
        Its digest.

    Raises:
        RegistryError: The registry failed.
    """
    size, digest = _measure(content)
    for attempt in range(1, repository.settings.attempts + 1):
        # Also after a failure: the last answer may be all that was lost.
        if repository.has_blob(digest):
            return digest
        location = _start(repository)
        try:
            _send_pieces(repository, location, content, size, digest)
        except (AccessDeniedError, CertificateError):
            raise
        except RegistryError:
            if attempt == repository.settings.attempts:
                raise
            repository.settings.sleep(repository.settings.backoff_s * 2 ** (attempt - 1))
        else:
            return digest
    raise AssertionError("unreachable")  # the last attempt returned or raised


def _start(repository: Repository) -> str:
    path = f"/v2/{repository.reference.repository}/blobs/uploads/"
    return _location(repository.transport.request("POST", path, ok={_ACCEPTED}, push=True))


def _send_pieces(repository: Repository, location: str, content: bytes | Path, size: int, digest: str) -> None:
    offset = stalled = 0
    while offset < size:
        piece = _piece(content, offset, repository.settings.chunk_bytes)
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Range": f"{offset}-{offset + len(piece) - 1}",
        }
        try:
            answer = repository.transport.request(
                "PATCH", location, ok=_PATCHED, push=True, headers=headers, data=piece, once=True
            )
        except (UnreachableError, RegistryFailureError, RateLimitedError):
            repository.settings.sleep(repository.settings.backoff_s)
            answer = repository.transport.request("GET", location, ok={_NO_CONTENT, _ACCEPTED}, push=True)
            reached = _end_of_range(answer.headers.get("Range", ""), default=offset)
        else:
            reached = _end_of_range(answer.headers.get("Range", ""), default=offset + len(piece))
        location = _location(answer)
        stalled = 0 if reached > offset else stalled + 1
        if stalled == repository.settings.attempts:
            raise RegistryError(
                "an upload does not advance", where=f"{repository.name}, byte {offset} of {size}"
            )
        offset = reached
    mark = "&" if urlsplit(location).query else "?"
    repository.transport.request(
        "PUT",
        f"{location}{mark}digest={quote(digest, safe='')}",
        ok={_CREATED, _NO_CONTENT},
        push=True,
        headers={"Content-Type": "application/octet-stream"},
        data=b"",
    )


def _measure(content: bytes | Path) -> tuple[int, str]:
    """Size in bytes, and digest."""
    if isinstance(content, bytes):
        return len(content), f"sha256:{sha256_of(content)}"
    return content.stat().st_size, f"sha256:{sha256_of_file(content)}"


def _piece(content: bytes | Path, offset: int, length: int) -> bytes:
    if isinstance(content, bytes):
        return content[offset : offset + length]
    with content.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _end_of_range(header: str, *, default: int) -> int:
    """Bytes that the registry has of an upload, from its `Range: 0-<last>`.

    Without the header it is what we think; `0-0` may mean one byte or none, so there too.
    """
    match = re.fullmatch(r"(?:bytes=)?0-(\d+)", header)
    if match is None:
        return default
    last = int(match[1])
    return last + 1 if last else min(default, 1)


def _location(answer: requests.Response) -> str:
    """Where an upload goes on.

    Raises:
        RegistryError: The registry does not say.
    """
    location = answer.headers.get("Location", "")
    if not location:
        raise RegistryError("the registry does not say where an upload goes on")
    return location
