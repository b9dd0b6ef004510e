"""An engine that somebody else started: same readiness, its log if we may read it, no hand on the process."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import docker.errors

from tooling.boot.container import ContainerWatch, bytes_of
from tooling.boot.endpoint import BootFacts, Endpoint, release, tell
from tooling.boot.failure import BootError, Reason
from tooling.boot.follower import FileTail, LogFollower
from tooling.boot.readiness import Patience
from tooling.boot.waiting import wait_ready
from tooling.console import say
from tooling.dockerhost.daemon import connect
from tooling.errors import InputError
from tooling.records import now
from tooling.triage import LogTriage
from tooling.triage.reader import parse_stamp

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

#: Attaching means that it serves already.
_PATIENCE = Patience(ready_s=60.0)


def attach(
    url: str,
    *,
    evidence: Path,
    log: Path | None = None,
    only_new_lines: bool = False,
    since: datetime | None = None,
    container: str = "",
    model: str = "",
    stack: str = "",
    engine: str = "",
    version: str = "",
    patience: Patience | None = None,
) -> Endpoint:
    """Attach to an endpoint; leaving its `with` block leaves the engine alone.

    Args:
        url: Base of its HTTP interface.
        evidence: Folder for a copy of the log's lines.
        log: Its log file. Of what stands there, only lines from the engine's last own start line on count.
        only_new_lines: Only lines written from now on count.
        since: Only lines with a time stamp from then on count.
        container: Its container, instead of a log file: lines from its present start on count.
        model: Name that must be served; any if empty.
        stack: Name of the stack.
        engine: Engine, for triage.
        version: Its version, for triage.
        patience: Limits.

    Raises:
        BootError: It does not answer.
        InputError: The address or the log cannot be used.
    """
    patience = patience or _PATIENCE
    url = check_url(url)
    if log is not None and container:
        raise InputError("give a log file or a container, not both")
    boot_id = secrets.token_hex(6)
    begin = time.monotonic()
    watch: ContainerWatch | None = None
    follower: LogFollower | None = None
    kept = evidence / f"{boot_id}.log"
    try:
        if container:
            watch = watch_container(container)
            started = parse_stamp(watch.first.started_at)
            reader = LogTriage(engine=engine, version=version, since=started, one_boot=True)
            stream = watch.log_chunks(since=None if started is None else started.timestamp())
            follower = LogFollower(bytes_of(stream), reader, kept, stream.close, tell(boot_id))
        elif log is not None:
            reader = LogTriage(engine=engine, version=version, since=since, one_boot=only_new_lines)
            tail = FileTail(log, size_of(log) if only_new_lines else 0)
            follower = LogFollower(tail, reader, kept, tail.stop, tell(boot_id))
        ready = wait_ready(url, model=model, patience=patience, watch=watch, follower=follower)
    except BaseException:
        release(watch, follower, patience)
        raise
    assert ready.answer is not None  # noqa: S101  # READY has one
    say(f"attached to {url}, which serves {ready.model}")
    image = watch.container.image if watch is not None else None
    facts = BootFacts(
        boot_id=boot_id,
        stack=stack,
        url=url,
        model=ready.model,
        image_id=str(image.id) if image is not None else "",
        image_digests=tuple(image.attrs.get("RepoDigests") or ()) if image is not None else (),
        container_id=str(watch.container.id) if watch is not None else "",
        started_at=watch.first.started_at if watch is not None else now(),
        owned=False,
        ready_after_s=round(time.monotonic() - begin, 2),
        answer=ready.answer,
    )
    return Endpoint(facts, patience=patience, watch=watch, follower=follower)


def watch_container(name: str) -> ContainerWatch:
    """Watch somebody else's container.

    Raises:
        BootError: There is no such container, or it does not run.
    """
    client = connect()
    try:
        container = client.containers.get(name)
    except docker.errors.NotFound as error:
        client.close()
        raise BootError(
            f"there is no container {name!r}", fix="see `docker ps`", reason=Reason.REMOVED
        ) from error
    image = container.image
    watch = ContainerWatch(
        container,
        host_architecture=str(client.version()["Arch"]),
        image_architecture=str(image.attrs.get("Architecture", "")) if image is not None else "",
        owned=False,
    )
    if not watch.first.running:
        watch.release(0)
        raise BootError(
            f"container {name!r} does not run ({watch.first.status}, exit code {watch.first.exit_code})",
            fix="start it, or boot the image with the toolkit",
            reason=Reason.EXITED,
        )
    return watch


def check_url(url: str) -> str:
    """The base address without a slash or `/v1` at its end.

    Raises:
        InputError: It is no HTTP address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url!r} is no HTTP address", fix="write http://HOST:PORT")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def size_of(log: Path) -> int:
    """Bytes of a log file.

    Raises:
        InputError: It cannot be read.
    """
    try:
        with log.open("rb"):
            return log.stat().st_size
    except OSError as error:
        raise InputError(f"the log cannot be read: {error}", where=str(log)) from error
