"""The registry of this machine's own: real program, kept content, nobody else's process touched."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.container.release.conftest import quick
from tests.container.release.images import push_image
from tests.container.release.registry_server import install_registry
from tooling.errors import EngineError
from tooling.registry import local
from tooling.registry.errors import RegistryError
from tooling.registry.local import PROGRAM
from tooling.registry.reference import parse_reference
from tooling.registry.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.container


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    install_registry()
    yield tmp_path / "registry"
    local.stop(tmp_path / "registry")


def test_content_and_address_survive_a_stop(place: Path):
    said: list[str] = []
    first = local.start(said.append, place)
    assert first.host.startswith("127.0.0.1:")
    assert any(str(place) in line and "local-registry stop" in line for line in said)
    with Repository(parse_reference(f"{first.host}/test/kept"), quick()) as repository:
        image = push_image(repository, "kept")
    assert local.start(said.append, place) == first
    assert len(said) == 1
    assert local.stop(place)
    assert not local.stop(place)
    found = local.status(place)
    assert found is not None
    assert (found.host, found.pid) == (first.host, 0)
    again = local.start(said.append, place)
    assert again.host == first.host
    assert again.pid != first.pid
    with Repository(parse_reference(f"{again.host}/test/kept"), quick()) as repository:
        assert repository.manifest(image.digest).digest == image.digest


def test_where_somebody_else_has_the_port_now_another_one_is_taken(place: Path):
    host = local.start(lambda _: None, place).host
    local.stop(place)
    with socket.socket() as somebody:
        somebody.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        somebody.bind(("127.0.0.1", int(host.rpartition(":")[2])))
        somebody.listen()
        other = local.start(lambda _: None, place)
        assert other.host != host
        assert other.pid


def test_a_process_id_that_somebody_else_has_now_is_left_alone(place: Path):
    local.start(lambda _: None, place)
    local.stop(place)
    with subprocess.Popen(["sleep", "60"]) as stranger:
        (place / "pid").write_text(str(stranger.pid))
        assert not local.stop(place)
        assert stranger.poll() is None
        stranger.terminate()


def test_there_is_none_before_the_first_start(tmp_path: Path):
    assert local.status(tmp_path / "none") is None
    assert not local.stop(tmp_path / "none")


def test_a_registry_that_ends_at_once_is_named_with_its_last_words(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    program = tmp_path / "bin" / PROGRAM
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho no room for a registry >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with pytest.raises(EngineError, match="no room for a registry"):
        local.start(lambda _: None, place)
    assert not local.stop(place)


def test_a_registry_that_can_keep_nothing_is_a_named_error(place: Path):
    place.mkdir()
    (place / "content").write_text("not a folder")
    found = local.start(lambda _: None, place)
    repository = Repository(parse_reference(f"{found.host}/test/broken"), quick(attempts=1))
    with repository, pytest.raises(RegistryError):
        push_image(repository, "broken")


def test_on_a_machine_without_the_program_it_comes_out_of_the_distributions_package(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """As on a new machine: nothing is installed, so no service of the distribution's begins to run."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for name in os.listdir(folder):  # noqa: PTH208
            if name != PROGRAM and not (tools / name).is_symlink():
                (tools / name).symlink_to(f"{folder}/{name}")
    monkeypatch.setenv("PATH", str(tools))
    assert shutil.which(PROGRAM) is None
    found = local.start(lambda _: None, place)
    assert (place / "package" / "usr" / "bin" / PROGRAM).is_file()
    with Repository(parse_reference(f"{found.host}/test/fetched"), quick()) as repository:
        assert push_image(repository, "fetched").digest


def test_without_the_program_and_a_package_manager_the_way_out_is_said(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="--registry"):
        local.start(lambda _: None, place)
