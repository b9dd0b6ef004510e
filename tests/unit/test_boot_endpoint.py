"""Readiness, attaching and log following against a real HTTP server and real files, without Docker."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tooling.boot import BootError, Patience, Reason, attach
from tooling.boot.attach import check_url
from tooling.boot.follower import FileTail, LogFollower
from tooling.boot.readiness import ProbeState, answer_text, model_names, probe
from tooling.errors import InputError, ToolkitError
from tooling.triage import LogTriage, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tooling.triage import Finding

Reply = tuple[int, Any]
QUICK = Patience(ready_s=0.2, answer_s=20, poll_s=0.01)


@contextmanager
def served(reply: Callable[[str, Any], Reply]) -> Iterator[str]:
    """A server whose answers a function of path and request makes."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self, body: Any) -> None:
            status, said = reply(self.path, body)
            data = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self.answer(None)

        def do_POST(self) -> None:
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_request(self, code: object = "-", size: object = "-") -> None:
            del code, size

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def chat(text: Any, **message: Any) -> Callable[[str, Any], Reply]:
    def reply(path: str, body: Any) -> Reply:
        del body
        if path == "/v1/models":
            return 200, {"data": [{"id": "m"}]}
        choices = [{"message": {"content": text, **message}}]
        return 200, {"choices": choices, "usage": {"completion_tokens": 5}}

    return reply


def echo(path: str, body: Any) -> Reply:
    if path == "/v1/models":
        return 200, {"data": [{"id": "m"}]}
    return chat(body["messages"][0]["content"])(path, body)


def sums_only(path: str, body: Any) -> Reply:
    """A sound model that has nothing to say to a word that it never saw; a cache of requests has no answer."""
    if path == "/v1/models":
        return 200, {"data": [{"id": "m"}]}
    assert len(body["user"]) == 8
    return chat("391" if "17*23" in body["messages"][0]["content"] else "")(path, body)


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        (echo, ProbeState.READY),
        (sums_only, ProbeState.READY),
        (chat(None, reasoning_content="hm"), ProbeState.READY),
        (chat(None, reasoning="hm"), ProbeState.READY),
        (chat(""), ProbeState.EMPTY),
        (chat(None), ProbeState.EMPTY),
        (lambda _p, _b: (503, {}), ProbeState.LOADING),
        (lambda _p, _b: (401, {}), ProbeState.WRONG),
        (lambda _p, _b: (200, {"data": []}), ProbeState.LOADING),
        (lambda _p, _b: (200, b"<html>not an engine</html>"), ProbeState.LOADING),
        (lambda p, _b: (200, {"data": [{"id": "m"}]}) if p == "/v1/models" else (500, {}), ProbeState.LOADING),
        (lambda p, _b: (200, {"data": [{"id": "m"}]}) if p == "/v1/models" else (404, {}), ProbeState.WRONG),
        (lambda p, _b: (200, {"data": [{"id": "m"}]}) if p == "/v1/models" else (200, b"x"), ProbeState.EMPTY),
    ],
)
def test_only_text_is_an_answer(reply: Callable[[str, Any], Reply], state: ProbeState):
    with served(reply) as url:
        assert probe(url, answer_s=20).state is state


def test_an_echoed_nonce_is_recorded_and_a_wrong_model_is_named():
    with served(echo) as url:
        answer = probe(url, answer_s=20).answer
        assert answer is not None
        assert answer.echoed
        assert answer.nonce in answer.text
        wrong = probe(url, model="other", answer_s=20)
    assert wrong.state is ProbeState.WRONG
    assert "lists m, not other" in wrong.seen
    assert probe(url, answer_s=20).state is ProbeState.CLOSED


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"choices": []}, {"choices": [1]}, {"choices": [{"message": 1}]}]
)
def test_broken_answers_have_no_text(answer: Any):
    assert answer_text(answer) == ("", 0)
    assert model_names(answer) == []


def test_attach_leaves_the_engine_alone_and_reads_only_the_last_boot_of_its_log(tmp_path: Path):
    log = tmp_path / "engine.log"
    log.write_text(
        "server_args=ServerArgs(x)\nThe server is fired up and ready to roll!\nCUDA out of memory\n"
        "server_args=ServerArgs(x)\nThe server is fired up and ready to roll!\n"
    )
    with served(echo) as url:
        with attach(f"{url}/v1/", evidence=tmp_path, log=log, patience=QUICK) as engine:
            wait_for(lambda: engine.report().ready_line and engine.report().lines_of_other_boots == 3)
            assert engine.report().outcome is Outcome.OK
            assert not engine.facts.owned
            with log.open("a") as file:
                file.write("Detected errors during sampling! NaN in the logits.\n")
            wait_for(lambda: engine.report().outcome is Outcome.FAIL)
        assert engine.evidence is not None
        kept = Path(engine.evidence.path).read_bytes()
        assert kept == log.read_bytes()
        assert hashlib.sha256(kept).hexdigest() == engine.evidence.sha256
        assert probe(url, answer_s=20).state is ProbeState.READY


def test_attach_can_be_told_that_only_new_lines_count(tmp_path: Path):
    log = tmp_path / "engine.log"
    log.write_text("CUDA out of memory\n")
    with (
        served(echo) as url,
        attach(url, evidence=tmp_path, log=log, only_new_lines=True, patience=QUICK) as engine,
    ):
        assert engine.report().lines_read == 0
        with log.open("a") as file:
            file.write("No space left on device\n")
        wait_for(lambda: engine.report().lines_read == 1)
        assert [finding.signature for finding in engine.report().findings] == ["disk-full"]


def test_attach_without_a_log_has_no_report(tmp_path: Path):
    with served(echo) as url, attach(url, evidence=tmp_path, patience=QUICK) as engine:
        assert not engine.has_log
        assert engine.check().text
        with pytest.raises(ToolkitError, match="no log belongs"):
            engine.report()


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (chat(""), Reason.EMPTY_ANSWER),
        (lambda _p, _b: (503, {}), Reason.NEVER_ANSWERED),
        (lambda _p, _b: (401, {}), Reason.WRONG_ENDPOINT),
    ],
)
def test_an_endpoint_that_gives_no_answer_is_named(
    reply: Callable[[str, Any], Reply], reason: Reason, tmp_path: Path
):
    with served(reply) as url, pytest.raises(BootError) as caught:
        attach(url, evidence=tmp_path, patience=QUICK.model_copy(update={"empty_answers": 1}))
    assert caught.value.reason is reason
    assert caught.value.as_record()["reason"] == reason.value


def test_a_closed_port_is_named(tmp_path: Path):
    with served(echo) as url:
        pass
    with pytest.raises(BootError) as caught:
        attach(url, evidence=tmp_path, patience=QUICK)
    assert caught.value.reason is Reason.NEVER_LISTENED


def test_bad_addresses_and_logs_are_refused(tmp_path: Path):
    for url in ("localhost:30000", "ftp://x", "http://", ""):
        with pytest.raises(InputError, match="no HTTP address"):
            check_url(url)
    with served(echo) as url, pytest.raises(InputError, match="log cannot be read"):
        attach(url, evidence=tmp_path, log=tmp_path / "none", only_new_lines=True)
    with pytest.raises(InputError, match="not both"):
        attach("http://x", evidence=tmp_path, log=tmp_path / "l", container="c")


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came")


def test_a_log_that_is_rotated_or_cut_goes_on_from_its_start(tmp_path: Path):
    log = tmp_path / "log"
    log.write_bytes(b"old\n")
    tail = FileTail(log, 4)
    found: list[Finding] = []
    follower = LogFollower(tail, LogTriage(), tmp_path / "kept", tail.stop, found.append)
    with log.open("ab") as file:
        file.write(b"CUDA out of memory\n")
    wait_for(lambda: follower.report().lines_read == 1)
    log.rename(tmp_path / "log.1")
    log.write_bytes(b"No space left on device\n")
    wait_for(lambda: follower.report().lines_read == 2)
    log.write_bytes(b"x\n")
    wait_for(lambda: follower.report().lines_read == 3)
    assert follower.close().path == str(tmp_path / "kept")
    assert [finding.signature for finding in found] == ["cuda-out-of-memory", "disk-full"]
    assert (tmp_path / "kept").read_bytes() == b"CUDA out of memory\nNo space left on device\nx\n"


def test_a_log_that_breaks_off_is_told(tmp_path: Path):
    def broken() -> Iterator[bytes]:
        yield b"fine\n"
        raise OSError("the engine went away")

    follower = LogFollower(broken(), LogTriage(), tmp_path / "kept", lambda: None, lambda _finding: None)
    follower.wait(10)
    assert "the engine went away" in follower.report().notes[0]
    assert follower.last_lines() == ["fine"]
    follower.close()
