"""A proxy in front of a real registry that breaks requests on command, and can add the referrers API to it."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


@dataclass
class Plan:
    """What the proxy does; tests change it while it runs.

    Attributes:
        fault: `500`, `429`, `cut` (before the registry sees it), `lost` (after: the answer is lost), `half`
            (half of the request's body arrives), `torn` (half of the answer's body arrives) or nothing.
        when: Told number, method and path of a request; whether it is broken.
        referrers_api: Answer the referrers API, which registry 2.8 lacks.
        seen: Method and path of every request, in order.
    """

    fault: str = ""
    when: Callable[[int, str, str], bool] = lambda _number, _method, _path: False
    referrers_api: bool = False
    seen: list[tuple[str, str]] = field(default_factory=list)
    referrers: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reset(self) -> None:
        """Forget what was seen and break nothing."""
        self.fault, self.when = "", lambda _number, _method, _path: False
        self.seen.clear()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    plan: Plan
    upstream: str

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _body(self) -> bytes:
        """The request's body; the Docker Engine sends layers in chunks."""
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _relay(self) -> None:
        plan = self.plan
        body = self._body()
        with plan.lock:
            plan.seen.append((self.command, self.path.partition("?")[0]))
            broken = plan.fault if plan.when(len(plan.seen), self.command, self.path) else ""
        if broken in {"500", "429"}:
            self._answer(int(broken), {"Retry-After": "0"}, b"{}")
            return
        if broken == "cut" or (broken == "half" and not body):
            self.close_connection = True
            return
        if plan.referrers_api and "/referrers/" in self.path:
            manifests = plan.referrers.get(self.path.rpartition("/")[2], [])
            index = {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.index.v1+json",
                "manifests": manifests,
            }
            self._answer(200, {"Content-Type": str(index["mediaType"])}, json.dumps(index).encode())
            return
        status, headers, content = self._forward(body, half=broken == "half")
        if broken in {"lost", "half"}:
            self.close_connection = True
            return
        if plan.referrers_api and self.command == "PUT" and "/manifests/" in self.path:
            headers |= self._note_subject(body, headers)
        self._answer(status, headers, content, torn=broken == "torn")

    def _note_subject(self, body: bytes, headers: dict[str, str]) -> dict[str, str]:
        document = json.loads(body)
        if "subject" not in document:
            return {}
        subject = document["subject"]["digest"]
        descriptor = {
            "mediaType": document["mediaType"],
            "digest": headers["Docker-Content-Digest"],
            "size": len(body),
            "artifactType": document.get("artifactType", ""),
        }
        with self.plan.lock:
            known = self.plan.referrers.setdefault(subject, [])
            if descriptor not in known:
                known.append(descriptor)
        return {"OCI-Subject": subject}

    def _forward(self, body: bytes, *, half: bool) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection(self.upstream, timeout=20)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    connection.putheader(name, value)
            if body or self.command in {"POST", "PUT", "PATCH"}:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body[: len(body) // 2] if half else body)
            if half:
                return 0, {}, b""
            answer = connection.getresponse()
            content = answer.read()
            headers = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
            if self.command == "HEAD":
                headers["X-Length"] = answer.getheader("Content-Length") or "0"
            return answer.status, headers, content
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], content: bytes, *, torn: bool = False) -> None:
        self.send_response(status)
        length = headers.pop("X-Length", "")
        for name, value in headers.items():
            self.send_header(name, value)
        # The engine takes the size of a layer that is there from the answer to HEAD.
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if torn else content)
        self.close_connection = self.close_connection or torn


for _method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler._relay)


@contextmanager
def proxy(upstream: str) -> Iterator[tuple[str, Plan]]:
    """Run the proxy.

    Args:
        upstream: `host:port` of the registry.

    Yields:
        Its own `host:port`, and the plan to change.
    """
    plan = Plan()
    handler = type("Handler", (_Handler,), {"plan": plan, "upstream": upstream})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", plan
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
