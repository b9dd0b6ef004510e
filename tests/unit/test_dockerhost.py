import json
from pathlib import Path

import pytest
import yaml

from tooling.dockerhost.build_client import BuildClient, candidates, find_build_client, judge
from tooling.dockerhost.daemon import ensure_engine, why_not_here
from tooling.dockerhost.disk import require_disk
from tooling.errors import EngineError

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = 'ID=debian\nVERSION_ID="12"\n'


def _version(client: str) -> str:
    return json.dumps({"Client": {"Version": client}})


def _program(directory: Path, text: str) -> str:
    directory.mkdir(exist_ok=True)
    path = directory / "docker"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_client_with_the_plugin_builds_by_it():
    client = judge("/d", _version("28.2.2"), buildx=True)
    assert isinstance(client, BuildClient)
    assert client.build_argv == ["/d", "buildx", "build", "--load", "--provenance=false"]
    assert client.environment == {"BUILDX_BUILDER": "default"}


def test_debians_client_has_buildkit_inside():
    client = judge("/usr/bin/docker", _version("20.10.24+dfsg1"), buildx=False)
    assert isinstance(client, BuildClient)
    assert client.build_argv == ["/usr/bin/docker", "build"]
    assert client.environment == {"DOCKER_BUILDKIT": "1"}


@pytest.mark.parametrize("version", ["23.0.0", "28.2.2", "17.12.1"])
def test_a_client_that_cannot_build_says_what_it_lacks(version):
    assert "has no buildx plugin" in str(judge("/d", _version(version), buildx=False))


def test_the_first_client_that_can_build_is_taken(tmp_path):
    answer = "case \"$1\" in version) echo '%s';; *) exit 1;; esac"
    newer = _program(tmp_path / "a", answer % _version("28.2.2"))
    older = _program(tmp_path / "b", answer % _version("20.10.24"))
    assert find_build_client([newer, older]).path == older
    with pytest.raises(EngineError, match="docker-buildx") as caught:
        find_build_client([newer])
    assert "28.2.2 has no buildx plugin" in caught.value.details[0]


def test_case_an_engine_that_refuses_old_clients(tmp_path):
    case = yaml.safe_load((ROOT / "tests/cases/host-docker-29-refuses-old-clients.yaml").read_text())
    message = case["input"]["text"].splitlines()[0]
    client = _program(tmp_path / "a", f"echo '{message}' >&2; exit 1")
    with pytest.raises(EngineError) as caught:
        find_build_client([client])
    assert case["expected"]["verdict"] == "REFUSE"
    assert "client version 1.43 is too old. Minimum supported API version is 1.44" in str(caught.value)


def test_every_docker_on_the_path_is_a_candidate_once(tmp_path):
    first = _program(tmp_path / "a", "exit 0")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "docker").symlink_to(first)
    found = candidates({"PATH": f"{tmp_path}/a:{tmp_path}/b"})
    assert found[0] == first
    assert str(tmp_path / "b" / "docker") not in found


def test_where_an_engine_may_be_set_up():
    assert why_not_here(0, DEBIAN) is None
    assert why_not_here(0, "ID=linuxmint\nID_LIKE=ubuntu\n") is None
    assert "sudo apt-get install docker.io" in str(why_not_here(1000, DEBIAN))
    assert "your distribution's way" in str(why_not_here(0, "ID=fedora\n"))


def test_an_engine_that_was_asked_for_and_does_not_answer_is_never_replaced(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    said: list[str] = []
    with pytest.raises(EngineError, match="unset DOCKER_HOST"):
        ensure_engine(said.append)
    assert said == []


class _Engine:
    """Answers what the disk check asks of an engine."""

    def __init__(self, base_url: str, directory: Path):
        self.api = type("Api", (), {"base_url": base_url})()
        self._directory = directory

    def info(self) -> dict[str, str]:
        return {"DockerRootDir": str(self._directory)}


def test_too_little_disk_is_refused_before_anything_is_downloaded(tmp_path):
    with pytest.raises(EngineError, match="GB of free disk are needed") as caught:
        require_disk(_Engine("http+docker://localhost", tmp_path), 10**9, print)  # type: ignore[arg-type]
    assert caught.value.where == str(tmp_path)


def test_the_disk_of_another_host_is_said_to_be_unchecked(tmp_path):
    said: list[str] = []
    require_disk(_Engine("https://gpu-box:2376", tmp_path), 10**9, said.append)  # type: ignore[arg-type]
    assert "was not checked" in said[0]
