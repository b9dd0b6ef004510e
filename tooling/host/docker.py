"""The edge to the Docker Engine: its own command-line client.

The client rather than the socket, because it negotiates the API version, knows logins, contexts and CDI, fails
with an exit code where the API hides an error in its stream, and is what people run by hand: what the program
starts and what `export` prints is one argument list.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any, Callable, Optional

from tooling.errors import EngineError
from tooling.host.contract import LABEL_GROUP, LABEL_ROLE
from tooling.host.refusals import explain, port_given_away

if TYPE_CHECKING:
    from pathlib import Path

#: Seconds for a question to the engine; a stop has its grace on top, a pull none.
_LIMIT_S = 120.0
_TAIL = 5
_NOT_FOUND = re.compile(r"no such (container|image|object)", re.IGNORECASE)
_LAYER = re.compile(r"([0-9a-f]{12}): (.+)")
#: The engine's own book of ports says so, before it has asked the kernel.
_GIVEN_AWAY = re.compile(r"Bind for \S*:(\d+) failed: port is already allocated")


class Docker:
    """Runs the client.

    Args:
        program: The client.
    """

    def __init__(self, program: str = "docker") -> None:
        self.program = program
        self._version: Optional[dict[str, Any]] = None
        # A pinned API version switches the client's own negotiation off.
        self.environment = {name: value for name, value in os.environ.items() if name != "DOCKER_API_VERSION"}

    def call(self, *arguments: str, stdin: Optional[bytes] = None, limit_s: float = _LIMIT_S) -> str:
        """Run one command to its end.

        Raises:
            EngineError: It failed; the words are the engine's.
        """
        argv = [self.program, *arguments]
        try:
            done = subprocess.run(
                argv,
                input=stdin or b"",
                capture_output=True,
                timeout=limit_s,
                check=False,
                env=self.environment,
            )
        except FileNotFoundError as error:
            raise EngineError(
                "the docker client is not installed on this host",
                where=self.program,
                fix="install Docker Engine",
            ) from error
        except subprocess.TimeoutExpired as error:
            raise EngineError(
                f"docker {arguments[0]} did not end within {limit_s:g} s",
                where=" ".join(argv[:4]),
                fix="look at the engine's log (journalctl -u docker); nothing was started meanwhile",
            ) from error
        text = done.stdout.decode(errors="replace")
        if done.returncode:
            raise explain(arguments[0], done.stderr.decode(errors="replace") or text)
        return text

    def version(self) -> dict[str, Any]:
        """Client and engine: `Client` and `Server` with `Version`, `ApiVersion`, `Os`, `Arch`; asked once."""
        if self._version is None:
            versions: dict[str, Any] = json.loads(self.call("version", "--format", "{{json .}}"))
            if not versions.get("Server"):
                raise EngineError("no Docker Engine answers", fix="start it (systemctl start docker)")
            self._version = versions
        return self._version

    def root(self) -> str:
        """Directory where the engine keeps its images."""
        return self.call("info", "--format", "{{.DockerRootDir}}").strip()

    def inspect(self, name: str, kind: str = "container") -> Optional[dict[str, Any]]:
        """Facts of a container or an image; None if there is none."""
        try:
            found: list[dict[str, Any]] = json.loads(self.call("inspect", "--type", kind, name))
        except EngineError as error:
            if _NOT_FOUND.search(str(error)):
                return None
            raise
        return found[0]

    def containers(self, group: str, role: str) -> list[dict[str, Any]]:
        """Inspected containers of a group in a role (`stack` or `pin`), running or not."""
        filters = ["--filter", f"label={LABEL_GROUP}={group}", "--filter", f"label={LABEL_ROLE}={role}"]
        ids = self.call("ps", "--all", "--quiet", "--no-trunc", *filters).split()
        if not ids:
            return []
        try:
            found: list[dict[str, Any]] = json.loads(self.call("inspect", "--type", "container", *ids))
        except EngineError:
            # One was removed meanwhile: ask for each.
            return [there for there in map(self.inspect, ids) if there is not None]
        return found

    def images(self) -> list[dict[str, Any]]:
        """Inspected images."""
        ids = sorted(set(self.call("images", "--all", "--quiet", "--no-trunc").split()))
        return json.loads(self.call("image", "inspect", *ids)) if ids else []

    def start(self, name: str) -> None:
        """Start a container.

        Raises:
            EngineError: It does not start; about a port that the engine has given away, to whom.
        """
        try:
            self.call("start", name)
        except EngineError as error:
            port = _GIVEN_AWAY.search("\n".join(error.details))
            if port is None:
                raise
            holders = self.call("ps", "--filter", f"publish={port[1]}", "--format", "{{.Names}}").split()
            raise port_given_away(int(port[1]), holders, error.details) from error

    def stop(self, name: str, grace_s: int) -> None:
        """Stop a container: SIGTERM, and SIGKILL after the grace."""
        self.call("stop", "-t", str(grace_s), name, limit_s=grace_s + _LIMIT_S)

    def restart_policy(self, name: str, policy: str) -> None:
        """Change what happens when a container ends by itself."""
        self.call("update", "--restart", policy, name)

    def remove(self, name: str) -> None:
        """Remove a container, running or not; none of this name is as good."""
        try:
            self.call("rm", "--force", "--volumes", name)
        except EngineError as error:
            if not _NOT_FOUND.search(str(error)):
                raise

    def save_log(self, name: str, path: Path, since: str = "") -> None:
        """Keep a container's log (both streams) of its present run."""
        options = ["--since", since] if since else []
        with path.open("wb") as file:
            subprocess.run(
                [self.program, "logs", "--timestamps", *options, name],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=_LIMIT_S,
                check=False,
                env=self.environment,
            )

    def watch(self, name: str) -> subprocess.Popen[bytes]:
        """A child that ends when the container does."""
        return subprocess.Popen(
            [self.program, "wait", name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.environment,
        )

    def pull(self, reference: str, on_progress: Callable[[PullProgress], None]) -> None:
        """Pull by digest.

        Raises:
            EngineError: It failed; a layer that came is kept by the engine or thrown away, as it likes.
        """
        progress = PullProgress()
        with subprocess.Popen(
            [self.program, "pull", reference],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=self.environment,
        ) as child:
            assert child.stdout is not None  # noqa: S101  # PIPE was asked for
            tail: list[str] = []
            for line in child.stdout:
                tail = [*tail[-_TAIL:], line.rstrip()]
                if progress.read(line):
                    on_progress(progress)
        if child.returncode:
            raise explain("pull", "\n".join(tail), where=reference)


class PullProgress:
    """How far a pull is, by layers."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}

    def read(self, line: str) -> bool:
        """Take a line of the client; whether it says something new about a layer."""
        match = _LAYER.match(line.strip())
        if match is None or self._states.get(match[1]) == match[2]:
            return False
        self._states[match[1]] = match[2]
        return True

    def count(self, *states: str) -> int:
        """Layers that are in one of some states."""
        return sum(state in states for state in self._states.values())

    def as_json(self) -> dict[str, int]:
        """Layers in all, there before, downloaded, unpacked."""
        return {
            "layers": len(self._states),
            "present": self.count("Already exists"),
            "downloaded": self.count("Download complete", "Pull complete"),
            "unpacked": self.count("Pull complete"),
        }
