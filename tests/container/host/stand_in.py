"""A stand-in for an engine: loads for a while, holds its "GPUs", answers, drains.

`/stand-in.json` of its image says which version it is and what is wrong with it; so does `STAND_IN_FAULT`.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

IMAGE = json.loads(Path("/stand-in.json").read_text())
FAULT = os.environ.get("STAND_IN_FAULT", IMAGE.get("fault", ""))
GPUS = Path("/gpus")
PORT = 8000
NAN = float("nan")
running = threading.Lock()
open_streams = 0


def count(change: int) -> None:
    global open_streams  # noqa: PLW0603
    with running:
        open_streams += change


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, code: object = "-", size: object = "-") -> None:
        del code, size

    def reply(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if FAULT == "unhealthy":
            self.reply({"error": "loading"}, 503)
            return
        self.reply({"data": [{"id": "stand-in"}], "version": IMAGE["version"]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if request.get("stream"):
            self.stream(float(request["seconds"]))
            return
        prompt = request["messages"][-1]["content"]
        text = "391" if "17*23" in prompt else f"version {IMAGE['version']}: {prompt}"
        value: float | None = -0.25
        if FAULT == "wrong-answers":
            text = text.replace("391", "319")
        if FAULT == "nan":
            # What a NaN in the weights looks like from outside: fluent text, no probability.
            value = NAN
        if FAULT == "null-logprobs":
            value = None
        if FAULT == "empty":
            text = ""
        choice = {"message": {"content": text}, "logprobs": {"content": [{"token": "x", "logprob": value}]}}
        self.reply({"choices": [choice], "usage": {"completion_tokens": 3}})

    def stream(self, seconds: float) -> None:
        count(1)
        try:
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self.wfile.write(b'data: {"choices": [{"delta": {"content": "."}}]}\n\n')
                self.wfile.flush()
                time.sleep(0.1)
            self.wfile.write(b"data: [DONE]\n\n")
            self.wfile.flush()
        finally:
            count(-1)


def hold_gpus() -> list[object]:
    """Lock the file of every GPU that was handed out; somebody else's is a crash, as on real ones."""
    held: list[object] = []
    for gpu in filter(None, os.environ.get("NVIDIA_VISIBLE_DEVICES", "").replace("void", "").split(",")):
        file = (GPUS / f"gpu{gpu}").open("r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(17)
        held.append(file)
    return held


def main() -> None:
    held = hold_gpus()
    print(f"loading version {IMAGE['version']} on {len(held)} GPUs", flush=True)
    time.sleep(30 if FAULT == "slow" else float(IMAGE.get("load_s", 0.3)))
    if FAULT == "crash":
        print("torch.OutOfMemoryError: CUDA out of memory", flush=True)
        sys.exit(3)
    if FAULT == "breaks" and Path(os.environ["STAND_IN_BREAK"]).exists():
        sys.exit(4)
    server = ThreadingHTTPServer(("0.0.0.0", PORT), Handler)  # noqa: S104
    server.daemon_threads = True

    def drain() -> None:
        while open_streams:
            time.sleep(0.02)
        server.shutdown()

    def terminate(*_: object) -> None:
        if FAULT != "ignores-sigterm":
            threading.Thread(target=drain).start()

    signal.signal(signal.SIGTERM, terminate)
    server.serve_forever(poll_interval=0.02)
    print("drained", flush=True)


main()
