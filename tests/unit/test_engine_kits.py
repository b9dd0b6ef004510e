"""The engine's own kits: the script runs a real mixin against a real server, and nothing passes vacuously."""

import http.server
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tooling.errors import CheckError
from tooling.gates.engine_kits import GATE, Kit, engine_kits_gate, kits_of
from tooling.gates.engine_kits.gate import EngineKits, KitReport, Probe, judge_kits, kit_command, parse_reports
from tooling.gates.records import GateResult, Verdict

KIT = """
import urllib.request

class Mixin:
    limit = 3

    def _read(self):
        with urllib.request.urlopen(self.base_url + "/answer") as reply:
            return reply.read().decode()

    def test_answer(self):
        self.assertIn("391", self._read())

    def test_model(self):
        self.assertEqual(self.model, "tiny")

    def test_skipped(self):
        self.skipTest("not on this engine")
"""


class Server(http.server.ThreadingHTTPServer):
    """A server whose answer the test sets."""

    answer = b"391"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers everything alike."""

    server: Server

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_):
        """Quiet."""


@pytest.fixture
def server():
    """The server, running."""
    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def package(tmp_path: Path):
    """An installed engine with one kit, and the kits record that names it."""
    folder = tmp_path / "engine_of_test" / "kits"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('a kit must not import its engine')\n")
    (folder / "kit.py").write_text(KIT)
    return tmp_path, EngineKits(package="engine_of_test", kits=(Kit(file="kits/kit.py", mixin="Mixin"),))


def run_here(package: Any, server: Any, kits: EngineKits | None = None, unsuitable: Any = None) -> GateResult:
    root, known = package

    def execute(command: list[str]) -> tuple[int, str, str]:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    url = f"http://127.0.0.1:{server.server_address[1]}"
    return engine_kits_gate(
        execute, kits or known, python=sys.executable, url=url, model="tiny", unsuitable=unsuitable or {}
    )


def test_the_probes_of_a_kit_run_against_the_server(package, server):
    gate = run_here(package, server, unsuitable={"test_skipped": "this model has no such thing"})
    assert gate.gate == GATE
    assert gate.verdict is Verdict.PASS
    assert gate.checks[0].seen == "2 of 2 probes passed"
    assert gate.limitations == ("Mixin.test_skipped does not count (skipped): this model has no such thing",)


def test_a_wrong_answer_fails_and_names_the_probe(package, server):
    server.answer = b"392"
    gate = run_here(package, server)
    assert gate.verdict is Verdict.FAIL
    assert any(line.startswith("test_answer: failed") and "392" in line for line in gate.checks[0].details)


def test_a_skipped_probe_is_not_a_passed_one(package, server):
    gate = run_here(package, server)
    assert gate.verdict is Verdict.INCONCLUSIVE
    assert gate.checks[0].seen == "2 of 3 probes passed"


@pytest.mark.parametrize(
    ("kit", "word"),
    [
        (Kit(file="kits/gone.py", mixin="Mixin"), "FileNotFoundError"),
        (Kit(file="kits/kit.py", mixin="Gone"), "AttributeError"),
    ],
)
def test_a_kit_that_this_version_lacks_fails(package, server, kit, word):
    kits = EngineKits(package="engine_of_test", kits=(kit,))
    gate = run_here(package, server, kits)
    assert gate.verdict is Verdict.FAIL
    assert word in gate.checks[0].details[0]


def test_a_dead_server_fails_every_probe_that_asks_it(package, server):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server.server_address = free.getsockname()
    gate = run_here(package, server, unsuitable={"test_skipped": "x"})
    assert gate.verdict is Verdict.FAIL
    assert gate.checks[0].seen == "1 of 2 probes passed"


def probe(name: str, outcome: str = "passed") -> Probe:
    return Probe(name=name, outcome=outcome, message="", seconds=0.1)


def test_a_kit_without_probes_fails():
    checks, _ = judge_kits([Kit(file="a.py", mixin="A")], [KitReport(kit="A")], {})
    assert checks[0].verdict is Verdict.FAIL
    assert "nothing was checked" in checks[0].seen


def test_a_kit_may_be_excused_whole_but_not_all_of_them():
    kits = [Kit(file="a.py", mixin="A"), Kit(file="b.py", mixin="B")]
    reports = [KitReport(kit="A", probes=(probe("test_x"),)), KitReport(kit="B", probes=(probe("test_y"),))]
    checks, limitations = judge_kits(kits, reports, {"test_x": "too long a prompt"})
    assert [(check.name, check.verdict) for check in checks] == [("B", Verdict.PASS)]
    assert limitations == ["A.test_x does not count (passed): too long a prompt"]
    checks, _ = judge_kits(kits, reports, {"test_x": "no", "test_y": "no"})
    assert [check.verdict for check in checks] == [Verdict.FAIL]
    assert "nothing was checked" in checks[0].seen


def test_a_kit_that_nothing_was_said_of_fails():
    checks, _ = judge_kits([Kit(file="a.py", mixin="A")], [], {})
    assert checks[0].verdict is Verdict.FAIL


def test_an_excuse_for_a_probe_that_does_not_exist_fails():
    report = KitReport(kit="A", probes=(probe("test_x"),))
    checks, _ = judge_kits([Kit(file="a.py", mixin="A")], [report], {"test_y": "no"})
    assert [check.verdict for check in checks] == [Verdict.PASS, Verdict.FAIL]
    assert "test_y" in checks[1].seen


@pytest.mark.parametrize(
    ("code", "out"), [(1, "[]"), (0, "Traceback"), (0, '[{"kit": 3}]'), (137, "")], ids=str
)
def test_output_that_is_no_report_is_an_error(code, out):
    with pytest.raises(CheckError, match="could not be run"):
        parse_reports(code, out, "killed")


def test_only_sglang_ships_kits_and_the_command_names_them():
    assert kits_of("xllamacpp") is None
    kits = kits_of("sglang")
    assert kits is not None
    command = kit_command(kits, python="/py", url="http://127.0.0.1:1", model="m")
    assert command[:2] == ["/py", "-c"]
    assert [kit["mixin"] for kit in json.loads(command[3])["kits"]] == [kit.mixin for kit in kits.kits]
