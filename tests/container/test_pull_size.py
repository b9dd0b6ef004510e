"""What an image costs on the wire, measured by a real push."""

from __future__ import annotations

import io
import json
import os
import tarfile
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tooling.build.pull_size import measure_pulls
from tooling.cli import app
from tooling.errors import InputError
from tooling.registry import local

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import docker

pytestmark = pytest.mark.container
MB = 1_000_000


@pytest.fixture
def images(engine: docker.DockerClient) -> Iterator[tuple[str, str]]:
    """An image of zeros and one of noise, a MB each."""
    names = ("pull-size-test:zeros", "pull-size-test:noise")
    for name, content in zip(names, (bytes(MB), os.urandom(MB)), strict=True):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            member = tarfile.TarInfo("file")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        repository, _, tag = name.partition(":")
        engine.api.import_image_from_data(stream.getvalue(), repository=repository, tag=tag)
    yield names
    for name in names:
        engine.images.remove(name, force=True)


def test_zeros_cost_disk_and_no_download(
    engine: docker.DockerClient, images: tuple[str, str], monkeypatch: pytest.MonkeyPatch
):
    folders: list[Path] = []
    start = local.start

    def noted(say, folder: Path | None = None):
        assert folder is not None
        folders.append(folder)
        return start(say, folder)

    monkeypatch.setattr(local, "start", noted)
    before = {tag for image in engine.images.list() for tag in image.tags}
    zeros, noise = measure_pulls(engine, images, lambda _: None)
    assert (zeros.unpacked, noise.unpacked) == (MB, MB)
    assert zeros.compressed < 0.02 * MB
    assert MB <= noise.compressed < 1.02 * MB
    assert {tag for image in engine.images.list() for tag in image.tags} == before
    (folder,) = folders
    assert not folder.exists()
    assert local.status(folder) is None


def test_the_command_prints_ratios_to_the_first_image(images: tuple[str, str]):
    done = CliRunner().invoke(app, ["bench-pull", *images, "--layers"])
    assert done.exit_code == 0, done.output
    # Both ratios of the first image and, of the second, that of the disk.
    assert done.stdout.count("1.000") == 3
    done = CliRunner().invoke(app, ["bench-pull", images[1], images[0], "--json"])
    noise, zeros = json.loads(done.stdout)["images"]
    assert noise["compressed"] > 50 * zeros["compressed"]
    assert [layer["unpacked"] for layer in zeros["layers"]] == [MB]


def test_an_image_that_is_not_there_is_one_message(engine: docker.DockerClient):
    with pytest.raises(InputError, match="the engine has no image pull-size-test:gone"):
        measure_pulls(engine, ["pull-size-test:gone"], lambda _: None)
    with pytest.raises(InputError, match="no image to measure"):
        measure_pulls(engine, [], lambda _: None)
