"""The census of a real image in a real Docker Engine."""

from __future__ import annotations

import io
import os
import re
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker
import pytest

from tooling.census import take
from tooling.errors import InputError
from tooling.runner import run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.container
DATA = Path(__file__).parents[1] / "data" / "census"
SHELL = Path("/bin/sh").resolve()
PYTHON = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
#: Of the standard library, what no scan needs.
UNUSED = ("test", "site-packages", "dist-packages", "__pycache__", "idlelib", "ensurepip", "lib2to3", "tkinter")


def with_libraries(tar: tarfile.TarFile, program: Path, name: str) -> None:
    """Add a program of this machine and the shared libraries that it needs, where its loader looks for them."""
    printed = run(["ldd", str(program)]).stdout
    for library in re.findall(r"(/\S+)\s+\(0x", printed):
        if library.removeprefix("/") not in tar.getnames():
            tar.add(Path(library).resolve(), library)
    tar.add(program, name)


def image_of(client: docker.DockerClient, tag: str, *, shell: bool = False, python: bool = False) -> str:
    """An image of the fixtures, with a shell and a Python of this machine if asked for."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.add(DATA, "opt/lib")
        if shell:
            with_libraries(tar, SHELL, "bin/sh")
        if python:
            with_libraries(tar, PYTHON, str(PYTHON))
            standard = Path(os.__file__).parent
            tar.add(standard, filter=lambda entry: None if Path(entry.name).name in UNUSED else entry)
            link = tarfile.TarInfo("usr/bin/python3")
            link.type, link.linkname = tarfile.SYMTYPE, str(PYTHON)
            tar.addfile(link)
    client.api.import_image_from_data(stream.getvalue(), repository="census-test", tag=tag)
    return f"census-test:{tag}"


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    found = docker.from_env()
    yield found
    found.close()


@pytest.mark.parametrize(
    ("parts", "exported"),
    [({}, True), ({"shell": True}, True), ({"shell": True, "python": True}, False)],
    ids=["no-shell", "no-python", "python"],
)
def test_the_census_of_an_image_is_that_of_its_folder(
    client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch, parts: dict[str, bool], exported: bool
):
    export = take._scan_export
    calls: list[str] = []

    def watched(engine: docker.DockerClient, image: str) -> dict[str, Any]:
        calls.append(image)
        return export(engine, image)

    monkeypatch.setattr(take, "_scan_export", watched)
    tag = image_of(client, "-".join(["test", *parts]), **parts)
    try:
        record = take.census_of_image(tag, client)
        libraries = {item.path: item.targets for item in record.libraries if item.path.startswith("opt/lib/")}
        assert libraries == {f"opt/lib/{item.path}": item.targets for item in take.census(DATA).libraries}
        assert record.image_digest == client.images.get(tag).id
        assert record.unread == ()
        assert bool(calls) is exported
        assert client.containers.list(all=True, filters={"ancestor": tag}) == []
    finally:
        client.images.remove(tag, force=True)


def test_an_image_that_the_engine_does_not_have(client: docker.DockerClient):
    with pytest.raises(InputError, match="no image"):
        take.census_of_image("census-test:none", client)
