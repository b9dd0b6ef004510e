"""What counts as an answer, and what as a right one; against a server that says what it is told."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.unit.host_examples import request
from tooling.errors import CheckError
from tooling.host.answers import (
    Answer,
    NotYetError,
    ask,
    check_answers,
    fault_of,
    models,
    read_answer,
    wait_ready,
)
from tooling.host.request import Health, Question

QUESTION = Question("What is 17*23?", "391")
HEALTH = Health(port=1, questions=(QUESTION,), ready_timeout_seconds=0.3, interval_seconds=0.01)


@pytest.fixture
def server():
    """An OpenAI-like server; `server.answers` is what it says to each path."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            status, body = made.answers.get(self.path, (404, {}))  # type: ignore[attr-defined]
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            made.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))  # type: ignore[attr-defined]
            self.do_GET()

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.answers = {"/v1/models": (200, {"data": [{"id": "m"}]})}  # type: ignore[attr-defined]
    made.asked = []  # type: ignore[attr-defined]
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def base(server) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def chat(content: str | None, *, logprob: float = -0.1, **message: str) -> dict[str, object]:
    return {
        "choices": [
            {"message": {"content": content, **message}, "logprobs": {"content": [{"logprob": logprob}]}}
        ]
    }


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (Answer("It is 391.", "", [-0.1]), ""),
        (Answer("391", "", [-0.1, 0]), ""),
        (Answer("1391", "", [-0.1]), "was expected"),
        (Answer("3910", "", [-0.1]), "was expected"),
        (Answer("319", "", [-0.1]), "was expected"),
        (Answer("", "", [-0.1]), "no text at all"),
        (Answer(" \n", "391, I think", [-0.1]), "only reasoning"),
        (Answer("391", "", None), "no log-probabilities"),
        (Answer("391", "", []), "no log-probabilities"),
        (Answer("391", "", [None]), "not finite"),
        (Answer("391", "", [-0.1, float("nan")]), "1 of 2 log-probabilities are not finite"),
        (Answer("391", "", [float("-inf")]), "not finite"),
        (Answer("391", "", ["NaN"]), "not finite"),
    ],
)
def test_what_is_wrong_with_an_answer(answer, fault):
    found = fault_of(QUESTION, answer, logprobs=True)
    assert (fault in found) if fault else found == ""


def test_case_of_letters_does_not_matter():
    assert fault_of(Question("?", "paris"), Answer("PARIS!", "", None), logprobs=False) == ""


def test_a_chat_answer_is_read(server):
    server.answers["/v1/chat/completions"] = (200, chat("391"))
    assert ask(base(server), "m", "?", HEALTH) == Answer("391", "", [-0.1])
    assert server.asked[0]["logprobs"] is True
    assert server.asked[0]["temperature"] == 0


def test_a_model_without_a_chat_template_is_asked_plainly(server):
    plain = {"choices": [{"text": "391", "logprobs": {"token_logprobs": [-0.2]}}]}
    server.answers |= {"/v1/chat/completions": (400, {}), "/v1/completions": (200, plain)}
    assert ask(base(server), "m", "?", HEALTH) == Answer("391", "", [-0.2])
    assert server.asked[1]["prompt"] == "?"


def test_a_nan_travels_as_json_and_is_found(server):
    server.answers["/v1/chat/completions"] = (200, json.dumps(chat("391", logprob=float("nan"))).encode())
    with pytest.raises(CheckError, match="1 of 1 answers are wrong") as caught:
        check_answers(base(server), "m", HEALTH)
    assert "not finite" in caught.value.details[0]


def test_right_answers_are_counted(server):
    server.answers["/v1/chat/completions"] = (200, chat("391"))
    assert check_answers(base(server), "m", HEALTH) == 1


@pytest.mark.parametrize("body", [{}, {"choices": []}, [], "x", None, {"choices": [1]}])
def test_what_is_no_completion_is_no_answer(body):
    with pytest.raises(NotYetError):
        read_answer(body)


@pytest.mark.parametrize("listed", [(503, {}), (200, {"data": []}), (200, b"<html>"), (200, [])])
def test_a_server_that_lists_no_model_is_not_ready(server, listed):
    server.answers["/v1/models"] = listed
    with pytest.raises(NotYetError):
        models(base(server))
    with pytest.raises(CheckError, match=r"no answer within 0.3 s"):
        wait_ready(base(server), HEALTH, lambda: None)


def test_a_crash_is_seen_before_the_time_is_over():
    patient = request(contract__health__ready_timeout_seconds=10_000).contract.health
    with pytest.raises(CheckError, match="exit code 17"):
        wait_ready("http://127.0.0.1:9", patient, lambda: "exit code 17")


def test_empty_answers_are_believed_after_a_few(server):
    server.answers["/v1/chat/completions"] = (200, chat(""))
    with pytest.raises(CheckError, match="3 completions in a row had no text"):
        wait_ready(base(server), HEALTH, lambda: None)
    # Not three times the same: a sound model may have nothing to say to one of them.
    asked = [request["messages"][0]["content"] for request in server.asked]
    assert [question.startswith("Repeat") for question in asked] == [True, False, True]
    assert asked[1] == "What is 17*23?"


def test_a_reasoning_model_is_ready_when_it_thinks(server):
    server.answers["/v1/chat/completions"] = (200, chat(None, reasoning_content="hmm"))
    model, seconds = wait_ready(base(server), HEALTH, lambda: None)
    assert model == "m"
    assert seconds < 0.3


def test_another_model_is_said_at_once(server):
    health = Health(port=1, model="other", questions=(QUESTION,), ready_timeout_seconds=1000)
    with pytest.raises(CheckError, match="serves m, not other"):
        wait_ready(base(server), health, lambda: None)
