"""The census of a real image in a real Docker Engine."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import pytest

from tooling.census.take import census, census_of_image
from tooling.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.container
DATA = Path(__file__).parents[1] / "data" / "census"
BUSYBOX = Path("/bin/busybox")


def image_of(client: docker.DockerClient, tag: str, with_shell: bool) -> str:
    """An image of the fixtures alone, or with a shell and still without Python."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.add(DATA, "opt/lib")
        if with_shell:
            tar.add(BUSYBOX, "bin/busybox", filter=lambda entry: entry)
            link = tarfile.TarInfo("bin/sh")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    client.api.import_image_from_data(stream.getvalue(), repository="census-test", tag=tag)
    return f"census-test:{tag}"


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    found = docker.from_env()
    yield found
    found.close()


@pytest.mark.parametrize("with_shell", [False, True], ids=["no-shell", "no-python"])
def test_an_image_without_python_is_read_from_its_export(client: docker.DockerClient, with_shell: bool):
    if with_shell and not BUSYBOX.is_file():
        pytest.skip("no static busybox here: apt-get install busybox-static")
    tag = image_of(client, "shell" if with_shell else "bare", with_shell)
    try:
        record = census_of_image(tag, client)
        libraries = {item.path: item.targets for item in record.libraries if item.path.startswith("opt/lib/")}
        assert libraries == {f"opt/lib/{item.path}": item.targets for item in census(DATA).libraries}
        assert record.image_digest == client.images.get(tag).id
        assert record.unread == ()
    finally:
        client.images.remove(tag, force=True)
    assert client.containers.list(all=True, filters={"ancestor": tag}) == []


def test_an_image_that_the_engine_does_not_have(client: docker.DockerClient):
    with pytest.raises(InputError, match="no image"):
        census_of_image("census-test:none", client)
