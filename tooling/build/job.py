"""A build under way: one at a time of a stack, with the engine at hand and a folder that goes afterwards."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from docker.errors import DockerException
from filelock import FileLock, Timeout
from requests.exceptions import RequestException

from tooling import console
from tooling.dockerhost import ensure_engine, find_build_client
from tooling.errors import BusyError, EngineError
from tooling.records import now

if TYPE_CHECKING:
    from collections.abc import Iterator

    import docker

    from tooling.dockerhost import BuildClient
    from tooling.stack.model import Stack


@dataclass
class Job:
    """One build under way.

    Attributes:
        stack: What is built.
        client: The engine.
        builder: The client that builds.
        directory: Folder for Dockerfile and log.
        temporary: Folder that is gone afterwards, with the context.
        started: ISO 8601, UTC; part of the log's name.
        no_cache: Run every step again.
        target: Step at which the build ends; the whole image by default.
        durations_s: Seconds by phase.
    """

    stack: Stack
    client: docker.DockerClient
    builder: BuildClient
    directory: Path
    temporary: Path
    started: str
    no_cache: bool = False
    target: str = ""
    durations_s: dict[str, float] = field(default_factory=dict)

    @property
    def context(self) -> Path:
        """Folder of the build context."""
        return self.temporary / "context"

    @property
    def dockerfile(self) -> Path:
        """File of the rendered Dockerfile."""
        return self.directory / ("Dockerfile" if not self.target else f"Dockerfile.{self.target}")

    @property
    def log(self) -> Path:
        """File of the full output."""
        return self.directory / f"build-{self.started.replace(':', '')}.log"


@contextmanager
def open_job(stack: Stack, directory: Path, *, target: str = "", no_cache: bool = False) -> Iterator[Job]:
    """Start a build: nobody else builds the stack until it is over.

    Args:
        stack: What is built.
        directory: Folder for Dockerfile and log.
        target: Step at which the build ends; the whole image by default.
        no_cache: Run every step again.

    Raises:
        BusyError: Somebody builds the stack already.
        EngineError: There is no engine, it failed, or it went away.
    """
    started = now()
    with (
        _held(stack.name),
        _engine_errors(),
        tempfile.TemporaryDirectory(prefix=f"blackwell-{stack.name}-") as temporary,
        closing(ensure_engine(console.say)) as client,
    ):
        job = Job(
            stack=stack,
            client=client,
            builder=find_build_client(),
            directory=directory,
            temporary=Path(temporary),
            started=started,
            no_cache=no_cache,
            target=target,
        )
        job.context.mkdir()
        yield job


@contextmanager
def _held(name: str) -> Iterator[None]:
    """Hold the right to build a stack; a second build of the same one is told who has it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "blackwell-stacks"
    cache.mkdir(parents=True, exist_ok=True)
    owner = cache / f"build-{name}.pid"
    try:
        with FileLock(cache / f"build-{name}.lock", timeout=0):
            owner.write_text(str(os.getpid()), encoding="utf-8")
            yield
    except Timeout as error:
        holder = owner.read_text(encoding="utf-8") if owner.is_file() else "unknown"
        raise BusyError(
            f"stack {name} is being built already, by process {holder}",
            fix="wait until it ends, then build again",
        ) from error


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Turn what the engine's client raises into the toolkit's own error."""
    try:
        yield
    except (DockerException, RequestException) as error:
        raise EngineError(
            "the Docker Engine failed or went away",
            details=[str(error)],
            fix="see its log, start it, build again",
        ) from error
