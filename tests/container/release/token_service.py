"""A token service as the registry's token authentication wants it: logins, anonymous readers, refusals."""

from __future__ import annotations

import base64
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tests.container.release.registry_server import PASSWORD, USER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.container.release.registry_server import Authority

#: Repositories whose name starts so may be read by everybody.
PUBLIC = "test/public"
#: What stands for a login that was stored as an identity token.
REFRESH_TOKEN = "only-for-tests-refresh"  # noqa: S105


def _b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class _Handler(BaseHTTPRequestHandler):
    authority: Authority
    seen: list[str]

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _serve(self) -> None:
        if self.command == "POST":
            query = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            known = query.get("refresh_token") == [REFRESH_TOKEN]
            login = "refresh"
        else:
            query = parse_qs(urlsplit(self.path).query)
            login = self.headers.get("Authorization", "")
            right = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            known = login == f"Basic {right}"
        self.seen.append("anonymous" if not login else "known" if known else "refused")
        if login and not known:
            self._answer(403, {"errors": [{"code": "DENIED", "message": "denied"}]})
            return
        kind, name, actions = query["scope"][0].split(":")
        granted = actions.split(",") if known else ["pull"] if name.startswith(PUBLIC) else []
        self._answer(200, {"token": self._token(kind, name, granted)})

    def _token(self, kind: str, name: str, actions: list[str]) -> str:
        certificate = x509.load_pem_x509_certificate(self.authority.certificate.read_bytes())
        key = serialization.load_pem_private_key(self.authority.key.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        der = certificate.public_bytes(serialization.Encoding.DER)
        now = int(time.time())
        parts: list[dict[str, Any]] = [
            {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(der).decode()]},
            {
                "iss": "tests",
                "sub": "",
                "aud": "registry",
                "exp": now + 300,
                "nbf": now - 10,
                "iat": now,
                "jti": "1",
                "access": [{"type": kind, "name": name, "actions": actions}],
            },
        ]
        text = ".".join(_b64url(json.dumps(part).encode()) for part in parts)
        r, s = decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text}.{_b64url(r.to_bytes(32) + s.to_bytes(32))}"

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


for _method in ("GET", "POST"):
    setattr(_Handler, f"do_{_method}", _Handler._serve)


@contextmanager
def token_service(authority: Authority) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Run the service.

    Yields:
        The `auth` part of the registry's configuration, and who asked so far.
    """
    seen: list[str] = []
    handler = type("Handler", (_Handler,), {"authority": authority, "seen": seen})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield (
            {
                "token": {
                    "realm": f"http://127.0.0.1:{server.server_address[1]}/token",
                    "service": "registry",
                    "issuer": "tests",
                    "rootcertbundle": str(authority.ca_file),
                }
            },
            seen,
        )
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
