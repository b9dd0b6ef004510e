"""Run one command in a throw-away container and read all that it printed."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Any, NamedTuple

from docker.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import docker

#: Seconds that a command in an image may take.
TIMEOUT_S = 600


class Finished(NamedTuple):
    """What a container left: its exit code and everything that it printed."""

    exit_code: int
    stdout: str
    stderr: str


def run_once(client: docker.DockerClient, image: str, command: Sequence[str]) -> Finished:
    """Run a command in a new container without a network, and remove the container whatever happens.

    The output is read after the end: following a log while it is written loses pieces with engine 20.10 (seen:
    a JSON document of 20 KB that came back with a hole).
    """
    container = client.containers.create(image, list(command), network_mode="none")
    try:
        container.start()
        exit_code = int(container.wait(timeout=TIMEOUT_S)["StatusCode"])
        out, err = (
            container.logs(stdout=stdout, stderr=not stdout).decode(errors="replace")
            for stdout in (True, False)
        )
        return Finished(exit_code, out, err)
    finally:
        container.remove(force=True)


def execute_in(client: docker.DockerClient, container: str, command: Sequence[str]) -> Finished:
    """Run one command in a container that runs already, as its own user, and read all that it printed.

    Args:
        client: The engine.
        container: Its id or name.
        command: What to run.
    """
    done: Any = client.containers.get(container).exec_run(list(command), demux=True)
    out, err = (piece or b"" for piece in done.output)
    return Finished(done.exit_code, out.decode(errors="replace"), err.decode(errors="replace"))


def read_files(client: docker.DockerClient, image: str, paths: Iterable[str]) -> dict[str, bytes]:
    """Read files of an image through a container that is never started.

    Returns:
        Path -> content, of those that are there and are regular files.
    """
    container = client.containers.create(image, ["none"], network_mode="none")
    found = {}
    try:
        for path in paths:
            try:
                pieces, _ = container.get_archive(path)
            except NotFound:
                continue
            with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
                member = tar.next()
                file = tar.extractfile(member) if member is not None and member.isreg() else None
                if file is not None:
                    found[path] = file.read()
        return found
    finally:
        container.remove(force=True)
