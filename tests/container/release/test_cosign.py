"""Somebody else's verifier believes what we sign: stock cosign, offline, over TLS with a login."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.container.release.bench import make_bench
from tests.container.release.conftest import quick
from tests.container.release.cosign import find_cosign
from tests.container.release.registry_server import PASSWORD, USER
from tests.unit.release_examples import KEY, build_run, gate_run
from tooling.registry.credentials import DockerConfig
from tooling.registry.reference import parse_reference
from tooling.registry.repository import Repository
from tooling.release.records import ReleaseRecord
from tooling.sign.keys import SigningKey

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.container.release.registry_server import Authority, Server

pytestmark = pytest.mark.container

#: Says "no public infrastructure"; without it cosign asks the network.
TRUSTED_ROOT = '{"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}'


@pytest.fixture
def released(
    tls_server: Server, authority: Authority, tmp_path: Path
) -> Callable[[str, SigningKey], subprocess.CompletedProcess[str]]:
    """Releases an image and runs cosign on it with a predicate type and a key; gives cosign's output."""
    program = find_cosign()
    docker = tmp_path / "docker"
    docker.mkdir()
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (docker / "config.json").write_text(json.dumps({"auths": {tls_server.host: {"auth": auth}}}))
    (tmp_path / "root.json").write_text(TRUSTED_ROOT)
    settings = quick(ca_file=authority.ca_file, login=DockerConfig.load(docker))
    with Repository(parse_reference(f"{tls_server.host}/test/cosign"), settings) as repository:
        image = make_bench(repository, tmp_path / "evidence").release().image

    def verify(predicate_type: str, key: SigningKey) -> subprocess.CompletedProcess[str]:
        (tmp_path / "key.pub").write_bytes(key.public.pem())
        command = [program, "verify-attestation", "--new-bundle-format", "--insecure-ignore-tlog=true"]
        command += ["--trusted-root", str(tmp_path / "root.json"), "--key", str(tmp_path / "key.pub")]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "DOCKER_CONFIG": str(docker),
            "SSL_CERT_FILE": str(authority.ca_file),
        }
        return subprocess.run(
            [*command, "--type", predicate_type, image],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return verify


def _predicates(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert done.returncode == 0, done.stderr
    statements = [
        json.loads(base64.b64decode(json.loads(line)["payload"]))
        for line in done.stdout.splitlines()
        if line.strip()
    ]
    return [statement["predicate"] for statement in statements]


def test_cosign_verifies_every_kind_of_record(
    released: Callable[[str, SigningKey], subprocess.CompletedProcess[str]],
):
    gate = _predicates(released(gate_run().predicate_type, KEY))
    assert [predicate["result"] for predicate in gate] == ["PASSED"]
    build = _predicates(released(build_run().predicate_type, KEY))
    assert "buildDefinition" in build[0]
    record = _predicates(released(ReleaseRecord.PREDICATE_TYPE, KEY))
    assert record[0]["stack"] == "cpu"


def test_cosign_refuses_another_key(released: Callable[[str, SigningKey], subprocess.CompletedProcess[str]]):
    done = released(gate_run().predicate_type, SigningKey.generate())
    assert done.returncode != 0
    assert "signature" in done.stderr


def test_cosign_refuses_a_kind_that_is_not_there(
    released: Callable[[str, SigningKey], subprocess.CompletedProcess[str]],
):
    done = released("https://cyclonedx.org/bom", KEY)
    assert done.returncode != 0
    assert "cyclonedx" in done.stderr
