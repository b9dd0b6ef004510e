"""An engine's report on itself: found on either route, and never taken from what is none."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from tooling.verify.boots import server_info

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextmanager
def server(answers: Mapping[str, bytes]) -> Iterator[str]:
    """A server with a body for some paths."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{httpd.server_address[1]}"
        finally:
            httpd.shutdown()
            thread.join()


@pytest.mark.parametrize("route", ["/server_info", "/get_server_info"])
def test_the_report_is_found_on_either_route(route: str):
    with server({route: b'{"enable_metrics": true}'}) as url:
        assert server_info(url) == {"enable_metrics": True}


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"null"])
def test_what_is_no_report_is_none(body: bytes):
    with server({"/server_info": body}) as url:
        assert server_info(url) is None
    assert server_info(url) is None  # and nobody listens any more


def test_a_proxy_page_does_not_hide_the_other_route():
    with server({"/server_info": b"<html>", "/get_server_info": b'{"a": 1}'}) as url:
        assert server_info(url) == {"a": 1}
