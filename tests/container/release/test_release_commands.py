"""The whole way by commands: keys, release, list, show, verify, promote, export, import, access."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.container.release.images import push_image
from tests.unit.release_examples import CPU_POLICY, build_run, gate_run
from tooling.release.evidence import write_evidence
from tooling.sign.keys import SigningKey, write_key_pair
from tooling.sign.passphrase import PASSPHRASE_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.registry.repository import Repository

pytestmark = pytest.mark.container

PASSPHRASE = "only for these tests"  # noqa: S105


def _run(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tooling", *arguments],
        env={**os.environ, PASSPHRASE_VARIABLE: PASSPHRASE, "DOCKER_CONFIG": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_from_key_to_import(repository: Repository, tmp_path: Path):
    key = SigningKey.generate()
    private, public = write_key_pair(tmp_path / "release", key, PASSPHRASE)
    image = push_image(repository, "by commands")
    now = datetime.now(UTC)
    started, ended = ((now - timedelta(minutes=minutes)).isoformat() for minutes in (2, 1))
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(CPU_POLICY.model_dump(mode="json")))
    (tmp_path / "facts.yaml").write_text("unjudged_arch_gates: []\n")
    name = repository.name
    trust = ["--trust", str(public)]
    common = ["--key", str(private), *trust]
    command = [
        "release-image",
        f"{name}@{image.digest}",
        *common,
        "--stack",
        "cpu",
        "--engine-version",
        "0.2.9",
    ]
    command += ["--policy", str(tmp_path / "policy.yaml"), "--facts", str(tmp_path / "facts.yaml")]
    refused = json.loads(_run(*command, "--json", code=1))
    assert refused["error"]["kind"] == "ReleaseRefusedError"
    assert any("[missing] gate:correctness" in line for line in refused["error"]["details"])

    evidence = tmp_path / "evidence"
    write_evidence(build_run(digest=image.digest), key, evidence)
    write_evidence(gate_run(digest=image.digest, started=started, ended=ended), key, evidence)
    released = json.loads(_run(*command, "--evidence", str(evidence), "--json"))
    tag = released["name"]
    (listed,) = json.loads(_run("releases", name, *trust, "--json"))
    assert (listed["name"], listed["status"]) == (tag, "qualified")
    shown = _run("show", f"{name}:{tag}", *trust)
    assert "qualified" in shown
    assert "gate:correctness" in shown
    _run("promote", f"{name}:{tag}", "stable", *common, "--reason", "first")
    found = json.loads(_run("verify", f"{name}:stable", *trust, "--json"))
    assert (found["release"]["name"], found["digest"]) == (tag, image.digest)

    _run("export-layout", f"{name}:stable", str(tmp_path / "export"), *trust)
    assert tag in _run("verify", f"oci:{tmp_path}/export:{tag}", *trust)
    assert tag in _run("import-layout", str(tmp_path / "export"), f"{name}-copy", *trust)
    assert json.loads(_run("releases", f"{name}-copy", *trust, "--json"))[0]["digest"] == image.digest

    access = json.loads(_run("registry-access", f"{name}:{tag}", "--json"))
    assert access["access"] == "anonymous"
    assert json.loads(_run("registry-access", f"{name}:none", "--json", code=1))["access"] == "not-found"
    other = tmp_path / "other.pub"
    other.write_bytes(SigningKey.generate().public.pem())
    stranger = json.loads(_run("verify", f"{name}:{tag}", "--trust", str(other), "--json", code=1))
    assert stranger["error"]["kind"] == "WrongKeyError"
    bad = json.loads(_run("releases", name, "--trust", str(other), "--json", code=1))
    assert "WrongKeyError" in bad[0]["problem"]
    assert PASSPHRASE not in json.dumps(released)
