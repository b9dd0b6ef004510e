"""The edge to the Docker Engine: one container, watched, and removed if it is ours."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import docker
import docker.errors
import requests

from tooling.boot.failure import BootError, Reason, explain_end, not_the_architecture, reason_of
from tooling.boot.state import ContainerState, has_crashed_again, parse_state
from tooling.triage import triage
from tooling.triage.reader import parse_stamp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker.models.containers import Container
    from docker.models.images import Image

    from tooling.boot.follower import LogFollower

#: Seconds that the last lines of a log may take to arrive after the process ended.
_LAST_LINES_S = 3.0
#: Seconds between two looks at Docker's out-of-memory events.
_OOM_LOOK_S = 1.0


def find_image(client: docker.DockerClient, reference: str) -> Image:
    """The image on this host.

    Raises:
        BootError: It is not here.
    """
    try:
        return client.images.get(reference)
    except docker.errors.ImageNotFound as error:
        raise BootError(
            f"image {reference} is not on this host",
            fix="build it or pull it by digest first",
            reason=Reason.IMAGE_MISSING,
        ) from error


def explain_refusal(error: docker.errors.APIError, where: str, architecture: str) -> BootError:
    """Docker's refusal to create or start a container, in the words of the signatures where they know it.

    Args:
        error: What Docker said.
        where: The container, or the command.
        architecture: Of host and image, which were compared before.
    """
    message = str(error.explanation or error)
    report = triage([message])
    known = report.root is not None
    reason = reason_of(report, Reason.NOT_STARTED)
    what = f"Docker refused to start the container: {report.diagnosis if known else message}"
    fix = report.advice if known else "read Docker's message"
    if reason is Reason.WRONG_ARCHITECTURE:
        reason, what, fix = not_the_architecture(architecture)
    return BootError(
        what, where=where, fix=fix, details=[message] if known else [], reason=reason, report=report
    )


class ContainerWatch:
    """Looks at one container; the first look is what later ones are held against.

    Args:
        container: The container.
        host_architecture: Of the Docker Engine, as Go writes it.
        image_architecture: Of its image.
        owned: We made it, so we may remove it.
    """

    def __init__(
        self, container: Container, *, host_architecture: str, image_architecture: str, owned: bool
    ) -> None:
        self.container = container
        client: Any = container.client
        self._api = client.api
        self.owned = owned
        self._architectures = {
            "host_architecture": host_architecture,
            "image_architecture": image_architecture,
        }
        self._oom_seen = False
        self._oom_looked = 0.0
        self.first = self.state()
        started = parse_stamp(self.first.started_at)
        self._since = time.time() if started is None else started.timestamp()

    def state(self) -> ContainerState:
        """The container's state now.

        Raises:
            BootError: It is gone.
        """
        try:
            inspected = self._api.inspect_container(str(self.container.id))
        except docker.errors.NotFound as error:
            raise BootError(
                "the container was removed by somebody while it was in use",
                where=str(self.container.id)[:12],
                fix="find out who removes containers on this host",
                reason=Reason.REMOVED,
            ) from error
        return parse_state(inspected, oom_seen=self._oom_seen)

    def raise_if_ended(self, follower: LogFollower) -> None:
        """Name the end of the container, if it came.

        Raises:
            BootError: It ended, was restarted or lost a process to the out-of-memory killer.
        """
        self._look_for_oom(force=False)
        state = self.state()
        if state.running and not has_crashed_again(self.first, state) and not state.oom_killed:
            return
        self._look_for_oom(force=True)
        state = self.state()
        follower.wait(_LAST_LINES_S if not state.running else 0.5)
        report = follower.report(died=f"exit code {state.exit_code}" if not state.running else "")
        where = f"container {str(self.container.id)[:12]}"
        if has_crashed_again(self.first, state):
            raise BootError(
                f"the container crashes and its restart policy hides it (restarted {state.restarts} times, "
                f"last exit code {state.exit_code}): {report.diagnosis}",
                where=where,
                fix=report.advice or "read the log of the first exit",
                reason=Reason.CRASH_LOOP,
                report=report,
                log=str(follower.path),
            )
        reason, what, fix = explain_end(state, report, **self._architectures)
        details = [report.root.text] if report.root is not None else follower.last_lines()
        raise BootError(
            what, where=where, fix=fix, details=details, reason=reason, report=report, log=str(follower.path)
        )

    def _look_for_oom(self, *, force: bool) -> None:
        """The flag in the state covers the first process only, on some versions; events cover all."""
        now = time.time()
        if self._oom_seen or (now - self._oom_looked < _OOM_LOOK_S and not force):
            return
        self._oom_looked = now
        events = self._api.events(
            since=int(self._since),
            until=int(now) + (1 if force else 0),
            filters={"container": self.container.id, "event": "oom"},
            decode=True,
        )
        self._oom_seen = any(event.get("Action", event.get("status")) == "oom" for event in events)

    def log_chunks(self, since: float | None) -> Any:
        """A stream of the container's log with time stamps; `close()` ends it."""
        return self.container.logs(stream=True, follow=True, timestamps=True, since=since)

    def release(self, stop_s: float) -> None:
        """Stop and remove the container, if it is ours; the watch is over in either case."""
        try:
            if self.owned:
                # Gone already is as good as removed by us.
                with suppress(docker.errors.NotFound):
                    self.container.stop(timeout=int(stop_s))
                    self.container.remove(force=True, v=True)
        finally:
            self._api.close()


def published_port(container: Container, port: int) -> int:
    """The host port that Docker published a container's port on.

    Raises:
        BootError: It published none.
    """
    container.reload()
    bindings = container.ports.get(f"{port}/tcp") or []
    if not bindings:
        raise BootError(
            f"Docker published no port for {port}/tcp", where=str(container.id)[:12], reason=Reason.NOT_STARTED
        )
    return int(bindings[0]["HostPort"])


def bytes_of(stream: Any) -> Iterator[bytes]:
    """The frames of a log stream; a stream that we closed just ends."""
    try:
        yield from stream
    except (requests.RequestException, docker.errors.APIError) as error:
        raise OSError(str(error)) from error
