"""Take a census of a folder, or of an image without unpacking it."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import docker
import docker.errors
from pydantic import ValidationError

from tooling.census.reader.files import DeviceCode, kind_of, read_file
from tooling.census.reader.scan import FORMAT, is_text_name, printable, scan, summary
from tooling.census.reader.span import MalformedError
from tooling.census.records import CensusRecord, Library
from tooling.errors import CheckError, EngineError, InputError
from tooling.records import now

if TYPE_CHECKING:
    from collections.abc import Iterable

    from docker.models.containers import Container

#: Where the reader is put in the throw-away container, and what it writes there.
_PLACE = "/blackwell-census"
_DOCUMENT = "document.json"
#: Of the running system, not of the image.
_SYSTEM_FOLDERS = ("proc", "sys", "dev")
#: Exit code of a shell that found no program; also ours when no interpreter is new enough.
_NO_PYTHON = 127
#: Shell patterns of interpreters, best first.
_INTERPRETERS = "python3 python3.1[0-9] python /usr/bin/python3* /usr/local/bin/python3* /opt/*/bin/python3*"
_SCAN_TIMEOUT_S = 900
_MAGIC_SIZE = 8
#: A library is read from the export stream through a file of its own, a piece of this size at a time.
_PIECE = 1 << 22


def census(root: Path) -> CensusRecord:
    """The census of a folder.

    Raises:
        InputError: It is not a folder.
        CheckError: There is no library below it.
    """
    if not root.is_dir():
        raise InputError(f"{root} is not a folder", fix="name an image or an existing folder")
    return _record(scan(str(root.resolve())), source=str(root))


def library_of(path: Path) -> Library | None:
    """The device code of one file; None when it is not of a kind that carries any.

    Raises:
        InputError: It cannot be read.
    """
    try:
        code = read_file(path)
    except (MalformedError, OSError) as error:
        raise InputError(f"{path.name} cannot be read: {error}", where=str(path)) from error
    return None if code is None else Library.model_validate(summary(path.name, code))


def census_of_image(image: str, client: docker.DockerClient | None = None) -> CensusRecord:
    """The census of an image in the Docker Engine, in seconds: the reader runs inside a container of it.

    The container has no network, never runs the image's own entrypoint, and is removed. An image without Python
    is read from the stream of its exported file system instead, which takes as long as copying it.

    Raises:
        InputError: The engine has no such image.
        EngineError: The engine cannot be used.
        CheckError: There is no library in it.
    """
    try:
        engine = client or docker.from_env(timeout=_SCAN_TIMEOUT_S)
        found = engine.images.get(image)
    except docker.errors.ImageNotFound as error:
        raise InputError(f"no image {image!r} in the Docker Engine", fix="build or pull it first") from error
    except docker.errors.DockerException as error:
        raise EngineError(f"the Docker Engine cannot be used: {error}", fix="check `docker info`") from error
    try:
        document = _scan_inside(engine, str(found.id)) or _scan_export(engine, str(found.id))
    except docker.errors.DockerException as error:
        raise EngineError(f"the census of {image} failed: {error}", where=image) from error
    return _record(document, source=image, digest=str(found.id))


def _record(document: dict[str, Any], *, source: str, digest: str = "") -> CensusRecord:
    try:
        record = CensusRecord(
            format=document["format"],
            source=source,
            image_digest=digest,
            files_seen=document["files_seen"],
            libraries=sorted(document["libraries"], key=lambda library: str(library["path"])),
            unread=sorted(document["unread"], key=lambda file: str(file["path"])),
            taken=now(),
        )
    except (KeyError, TypeError, ValidationError) as error:
        raise CheckError(f"the scan did not answer with a census: {error}", where=source) from error
    if not record.libraries and not record.unread:
        raise CheckError(
            f"no library among {record.files_seen} files: nothing was checked",
            where=source,
            fix="name the image or the folder that the libraries are in",
        )
    return record


def reader_tar() -> bytes:
    """The reader package as a tar stream, with the empty packages above it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for package in ("tooling", "tooling/census"):
            _add(tar, f"{package}/__init__.py", b"")
        for source in sorted(files("tooling.census.reader").iterdir(), key=lambda item: item.name):
            if source.name.endswith(".py"):
                _add(tar, f"tooling/census/reader/{source.name}", source.read_bytes())
    return stream.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(f"{_PLACE.removeprefix('/')}/{name}")
    entry.size = len(content)
    entry.mode = 0o644
    tar.addfile(entry, io.BytesIO(content))


def container_options() -> dict[str, Any]:
    """How the reader runs inside an image, as arguments of the Engine API."""
    skip = [*_SYSTEM_FOLDERS, _PLACE.removeprefix("/")]
    program = f"import sys; sys.path.insert(0, '{_PLACE}'); from tooling.census.reader.scan import main; main()"
    new_enough = "import sys; sys.exit(sys.version_info < (3, 10))"
    search = (
        f'for found in {_INTERPRETERS}; do "$found" -I -S -c "{new_enough}" 2>/dev/null && '
        f'exec "$found" -I -S -B -c "{program}" "$@"; done; exit {_NO_PYTHON}'
    )
    return {
        "entrypoint": ["/bin/sh", "-c", search, "sh"],
        "command": ["/", f"{_PLACE}/{_DOCUMENT}", *skip],
        "user": "0:0",
        "network_mode": "none",
        "environment": {"NVIDIA_VISIBLE_DEVICES": "void"},
        "healthcheck": {"test": ["NONE"]},
        "security_opt": ["no-new-privileges"],
    }


def _scan_inside(engine: docker.DockerClient, image: str) -> dict[str, Any] | None:
    """The document of the reader run inside the image; None when the image has no shell or no Python 3.10."""
    container = engine.containers.create(image, **container_options())
    try:
        container.put_archive("/", reader_tar())
        try:
            container.start()
        except docker.errors.APIError as error:
            if "no such file or directory" in str(error):
                return None
            raise
        status = int(container.wait(timeout=_SCAN_TIMEOUT_S)["StatusCode"])
        if status == _NO_PYTHON:
            return None
        if status:
            tail = container.logs(tail=15).decode("utf-8", "replace").splitlines()
            raise EngineError(f"the reader ended with exit code {status} inside the image", details=tail)
        return _document(container)
    finally:
        container.remove(force=True)


def _document(container: Container) -> dict[str, Any]:
    pieces, _ = container.get_archive(f"{_PLACE}/{_DOCUMENT}")
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        file = tar.extractfile(_DOCUMENT)
        content = file.read() if file else b""
    try:
        document = json.loads(content)
    except ValueError as error:
        raise EngineError("the reader's document came back cut off") from error
    return dict(document)


class _Stream(io.RawIOBase):
    """Pieces of bytes as a file that tarfile can read forwards."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        taken = min(len(buffer), len(self._rest))
        buffer[:taken] = self._rest[:taken]
        self._rest = self._rest[taken:]
        return taken


def _scan_export(engine: docker.DockerClient, image: str) -> dict[str, Any]:
    """The same document out of the exported file system, for an image without Python."""
    container = engine.containers.create(image, entrypoint=["/none"], network_mode="none")
    try:
        stream = io.BufferedReader(
            _Stream(cast("Iterable[bytes]", container.export(chunk_size=_PIECE))), _PIECE
        )
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            return scan_tar(tar)
    finally:
        container.remove(force=True)


def scan_tar(tar: tarfile.TarFile) -> dict[str, Any]:
    """The document of the files in a tar archive, read once forwards."""
    libraries: dict[str, dict[str, Any]] = {}
    unread: dict[str, dict[str, Any]] = {}
    seen = 0
    for member in tar:
        path = member.name.removeprefix("./")
        seen += member.isreg() or member.islnk()
        if member.islnk():
            _same_file(path, member.linkname.removeprefix("./"), libraries, unread)
        elif member.isreg() and not is_text_name(path) and (content := tar.extractfile(member)):
            try:
                code = _from_stream(content, path)
            except MalformedError as problem:
                unread[path] = {"path": printable(path), "reason": str(problem)}
            else:
                if code is not None:
                    libraries[path] = summary(path, code)
    return {
        "format": FORMAT,
        "files_seen": seen,
        "libraries": list(libraries.values()),
        "unread": list(unread.values()),
    }


def _from_stream(content: IO[bytes], path: str) -> DeviceCode | None:
    """The device code of a file that can only be read forwards: a copy is made, read and removed."""
    magic = content.read(_MAGIC_SIZE)
    if kind_of(magic, path) is None:
        return None
    with tempfile.NamedTemporaryFile(prefix="census-", suffix=Path(path).suffix) as copy:
        copy.write(magic)
        while piece := content.read(_PIECE):
            copy.write(piece)
        copy.flush()
        return read_file(copy.name)


def _same_file(path: str, first: str, *results: dict[str, dict[str, Any]]) -> None:
    """A hard link has the answer of the name that came first."""
    for result in results:
        if first in result:
            result[path] = {**result[first], "path": printable(path)}
