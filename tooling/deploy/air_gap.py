"""A registry for one image on this machine's loopback, read-only, for as long as a host pulls from it.

The host's own engine asks for what it lacks, by digest, through a port that ssh forwards back to us. So only
missing layers travel, nothing is unpacked by us, and a broken transfer is the engine's own business.
Source of the API: the OCI distribution specification 1.1, "Pull".
"""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from tooling.registry.errors import RegistryError
from tooling.registry.layout import Layout
from tooling.registry.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.registry.manifest import Descriptor, Manifest
    from tooling.release.evidence import Source

#: Name of the image on the host while it is pulled.
REPOSITORY = "blackwell-stacks/air-gap"
_PATH = re.compile(r"/v2/(?P<name>.+)/(?P<kind>manifests|blobs)/(?P<digest>sha256:[0-9a-f]{64})")
_PIECE = 1 << 20


@dataclass
class Endpoint:
    """A running registry and what it was asked for.

    Attributes:
        port: On 127.0.0.1.
        blobs: Digest to bytes that were sent of it.
    """

    port: int
    blobs: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, digest: str, size: int) -> None:
        """Note bytes of a blob."""
        with self._lock:
            self.blobs[digest] = self.blobs.get(digest, 0) + size

    @property
    def sent(self) -> int:
        """Bytes of blobs that left this machine."""
        with self._lock:
            return sum(self.blobs.values())


@contextmanager
def serve_image(source: Source, digest: str) -> Iterator[Endpoint]:
    """Serve one image and what belongs to it until the block ends.

    Args:
        source: Layout or registry that holds the image.
        digest: Of its manifest or index; nothing else is answered.

    Raises:
        RegistryError: The source lacks the image.
    """
    manifests = {each.digest: each for each in _family(source, digest)}
    blobs = {blob.digest: blob for each in manifests.values() for blob in each.blobs}
    endpoint = Endpoint(0)
    handler = partial(_Handler, source=source, manifests=manifests, blobs=blobs, endpoint=endpoint)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    endpoint.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _family(source: Source, digest: str) -> Iterator[Manifest]:
    manifest = source.manifest(digest)
    yield manifest
    for child in manifest.manifests:
        try:
            yield from _family(source, child.digest)
        except RegistryError:
            # An export may leave out other platforms; the engine only asks for its own.
            continue


def pieces(source: Source, blob: Descriptor) -> Iterator[bytes]:
    """A blob, piece by piece; the engine checks its digest.

    Raises:
        RegistryError: The source cannot give it.
    """
    if isinstance(source, Layout):
        with source.file(blob.digest).open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece
    elif isinstance(source, Repository):
        path = f"/v2/{source.reference.repository}/blobs/{blob.digest}"
        answer = source.transport.request(
            "GET", path, ok={HTTPStatus.OK}, headers={"Accept-Encoding": "identity"}, stream=True
        )
        try:
            yield from answer.iter_content(_PIECE)
        finally:
            answer.close()
    else:
        yield source.blob(blob)


class _Handler(BaseHTTPRequestHandler):
    """Answers what an engine asks in a pull by digest."""

    protocol_version = "HTTP/1.1"

    def __init__(  # type: ignore[no-untyped-def]
        self,
        *arguments,  # noqa: ANN002
        source: Source,
        manifests: dict[str, Manifest],
        blobs: dict[str, Descriptor],
        endpoint: Endpoint,
    ) -> None:
        self.source, self.manifests, self.blobs, self.endpoint = source, manifests, blobs, endpoint
        super().__init__(*arguments)

    def log_message(self, *_: object) -> None:
        """Nothing: the caller counts what was sent."""

    def do_HEAD(self) -> None:
        """Headers alone."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """Manifest or blob."""
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        if self.path.rstrip("/") == "/v2":
            self._send(HTTPStatus.OK, "application/json", b"{}", body=body)
            return
        match = _PATH.fullmatch(self.path)
        digest = match["digest"] if match and match["name"] == REPOSITORY else ""
        if match and match["kind"] == "manifests" and digest in self.manifests:
            manifest = self.manifests[digest]
            self._send(HTTPStatus.OK, manifest.media_type, manifest.content, body=body, digest=digest)
        elif match and match["kind"] == "blobs" and digest in self.blobs:
            self._send_blob(self.blobs[digest], body=body)
        else:
            self._send(HTTPStatus.NOT_FOUND, "application/json", b'{"errors": []}', body=body)

    def _send(self, status: HTTPStatus, kind: str, content: bytes, *, body: bool, digest: str = "") -> None:
        self._head(status, kind, len(content), digest)
        if body:
            self.wfile.write(content)

    def _head(self, status: HTTPStatus, kind: str, length: int, digest: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.send_header("Docker-Distribution-API-Version", "registry/2.0")
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()

    def _send_blob(self, blob: Descriptor, *, body: bool) -> None:
        self._head(HTTPStatus.OK, "application/octet-stream", blob.size, blob.digest)
        if not body:
            return
        try:
            for piece in pieces(self.source, blob):
                self.wfile.write(piece)
                self.endpoint.count(blob.digest, len(piece))
        except (OSError, RegistryError):
            # Too few bytes: the engine sees that the answer broke off, and asks again.
            self.close_connection = True
