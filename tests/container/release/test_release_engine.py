"""The Docker Engine pushes, the toolkit releases, the engine pulls by digest."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.container.release.bench import Bench
from tests.container.release.conftest import quick
from tests.unit.release_examples import build_run, gate_run
from tooling.errors import CommandError
from tooling.registry.reference import parse_reference
from tooling.registry.repository import Repository
from tooling.runner import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.container.release.registry_server import Server

pytestmark = pytest.mark.container


@pytest.fixture
def pushed(open_server: Server, tmp_path: Path) -> Iterator[str]:
    """An image that the engine made and pushed; removed again afterwards."""
    try:
        run(["docker", "version"])
    except CommandError as error:
        pytest.skip(f"no Docker Engine answers: {error.what}")
    archive = tmp_path / "image.tar"
    with tarfile.open(archive, "w") as tar:
        entry = tarfile.TarInfo("hello")
        entry.size = 6
        tar.addfile(entry, io.BytesIO(b"hello\n"))
    name = f"{open_server.host}/release/engine:one"
    run(["docker", "import", str(archive), name])
    try:
        run(["docker", "push", name])
        yield name
    finally:
        run(["docker", "rmi", "--force", name])


def test_an_image_of_the_engine_is_released_and_pulled_by_its_digest(pushed: str, tmp_path: Path):
    reference = parse_reference(pushed)
    with Repository(reference, quick()) as repository:
        image = repository.manifest(reference.tag)
        bench = Bench(repository, image, tmp_path / "evidence")
        bench.add(build_run(digest=image.digest), gate_run(digest=image.digest))
        done = bench.release()
    run(["docker", "rmi", "--force", pushed])
    run(["docker", "pull", "--quiet", done.image])
    try:
        digests = run(["docker", "image", "inspect", "--format", "{{.RepoDigests}}", done.image]).stdout
        assert image.digest in digests
    finally:
        run(["docker", "rmi", "--force", done.image])
