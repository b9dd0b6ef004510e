"""Small wheels and a package index on loopback, for builds that need no network."""

from __future__ import annotations

import base64
import hashlib
import html
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def make_wheel(
    folder: Path, name: str, version: str, files: dict[str, str], requires: list[str] | None = None
) -> Path:
    """Write a pure-Python wheel with the given files; its RECORD has a hash for each."""
    info = f"{name}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires or []]
    contents = {
        **files,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    for path, text in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(text.encode())}")
    record.append(f"{info}/RECORD,,")
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**contents, f"{info}/RECORD": "\n".join(record) + "\n"}.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), text)
    return wheel


@dataclass
class Index:
    """A simple index (PEP 503) over a folder of wheels.

    Attributes:
        folder: Its wheels.
        address: Where it listens.
        yanked: File names that it has withdrawn.
        before_file: Called with a file's name before it is sent, e.g. to wait.
        requests: Every path that was asked for, with the Authorization header.
    """

    folder: Path
    address: str = ""
    yanked: set[str] = field(default_factory=set)
    before_file: Callable[[str], None] = lambda _: None
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def start(self) -> ThreadingHTTPServer:
        """Serve on a free port of the loopback until the server is shut down."""
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                index.requests.append((self.path, self.headers.get("Authorization")))
                body = index.answer(self.path)
                self.send_response(404 if body is None else 200)
                page = self.path.endswith("/")
                self.send_header("Content-Type", "text/html" if page else "application/octet-stream")
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body or b"")

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """A client that goes away mid-answer is what some tests are about."""

        server = Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{server.server_port}/simple"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def answer(self, path: str) -> bytes | None:
        """Body for a request; None is not found."""
        parts = path.strip("/").split("/")
        if parts[0] == "files":
            file = self.folder / parts[-1]
            self.before_file(file.name)
            return file.read_bytes() if file.is_file() else None
        wheels = [wheel for wheel in sorted(self.folder.glob("*.whl")) if wheel.name.split("-")[0] == parts[-1]]
        if not wheels:
            return None
        links = []
        for wheel in wheels:
            mark = ' data-yanked="withdrawn for this test"' if wheel.name in self.yanked else ""
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            links.append(f'<a href="/files/{wheel.name}#sha256={digest}"{mark}>{html.escape(wheel.name)}</a>')
        return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()
