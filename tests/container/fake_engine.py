"""A small OpenAI-compatible server with faults; runs in a container, its behaviour is its argument."""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BEHAVIOUR = sys.argv[1]
PORT = int(os.environ.get("PORT", "8000"))
answers = 0


def log(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


class Handler(BaseHTTPRequestHandler):
    def log_request(self, code: object = "-", size: object = "-") -> None:
        del size
        log(f'INFO:     127.0.0.1:1 - "{self.requestline}" {code}')

    def reply(self, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.reply({"data": [{"id": "fake"}]})

    def do_POST(self) -> None:
        global answers  # noqa: PLW0603
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if BEHAVIOUR == "chatless" and self.path.endswith("/chat/completions"):
            self.send_error(400)
            return
        answers += 1
        if BEHAVIOUR == "falls-silent" and answers > 1:
            log("No available shared memory broadcast block found in 60 seconds.")
            time.sleep(60)
        text = "" if BEHAVIOUR == "empty" else str(request.get("prompt") or request["messages"][0]["content"])
        choice = {"text": text} if self.path == "/v1/completions" else {"message": {"content": text}}
        self.reply({"choices": [choice], "usage": {"completion_tokens": 12}})


def main() -> None:
    log("server_args=ServerArgs(model_path='/models/m')")
    log("Load weight begin. avail mem=93.80 GB")
    if BEHAVIOUR == "exits-17":
        log("Traceback (most recent call last):\n  File 'x', line 1\nRuntimeError: the flux capacitor is empty")
        sys.exit(17)
    if BEHAVIOUR == "crashes-by-turns":
        marker = Path("/booted")
        if not marker.exists():
            marker.touch()
            log("The server is fired up and ready to roll!")
            log("Received sigquit from a child process. It usually means the child failed.")
            sys.exit(1)
    if BEHAVIOUR == "always-crashes":
        time.sleep(1)
        log("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
        sys.exit(3)
    if BEHAVIOUR == "eats-memory":
        hoard = []
        while True:
            hoard.append(b"x" * (1 << 22))
    if BEHAVIOUR == "disk-full":
        log(
            "UserWarning: Not enough free disk space to download the file. The expected file size is: "
            "4915.92 MB. The target location /models/blobs only has 748.94 MB free disk space."
        )
        time.sleep(600)
    if BEHAVIOUR == "deaf":
        log("The server is fired up and ready to roll!")
        time.sleep(600)
    log("The server is fired up and ready to roll!")
    ThreadingHTTPServer(("0.0.0.0", PORT), Handler).serve_forever()  # noqa: S104


main()
