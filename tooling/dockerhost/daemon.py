"""Use the Docker Engine that answers; where there is none, install the distribution's own and start it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import docker
from docker.errors import DockerException
from requests.exceptions import RequestException

from tooling import runner
from tooling.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds that a daemon gets to answer after its start.
START_TIMEOUT_S = 60.0
_FIX = "start it (systemctl start docker), or set DOCKER_HOST to one that runs"
_ANY_API = "1.24"
_LOG = Path("/var/log/blackwell-stacks-dockerd.log")
_INSTALL = ["apt-get", "install", "--yes", "--no-install-recommends", "docker.io", "iptables"]


def connect(timeout_s: float = 600.0) -> docker.DockerClient:
    """A client of the engine that answers, its API version negotiated; `DOCKER_HOST` is respected.

    Raises:
        EngineError: Nothing answers, or it refuses us.
    """
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if host.startswith("unix://") and not Path(host.removeprefix("unix://")).exists():
        raise EngineError(
            "no Docker Engine answers", where=host, details=["its socket does not exist"], fix=_FIX
        )
    # A client that fails while it negotiates leaves its socket open, so the first question needs no version.
    asking = docker.from_env(version=_ANY_API, timeout=int(timeout_s))
    try:
        asking.ping()
        return docker.from_env(version="auto", timeout=int(timeout_s))
    except (DockerException, RequestException) as error:
        raise EngineError(
            "no Docker Engine answers",
            where=host,
            details=[str(error)],
            fix=_FIX,
        ) from error
    finally:
        asking.close()


def ensure_engine(say: Callable[[str], None]) -> docker.DockerClient:
    """The engine that answers; as root on Debian or Ubuntu one is installed and started when none does.

    Args:
        say: Is told what is being done to this machine.

    Raises:
        EngineError: There is none and it cannot be set up from here; the message has the command to run.
    """
    try:
        return connect()
    except EngineError as error:
        if "DOCKER_HOST" in os.environ:
            raise EngineError(
                error.what,
                error.where,
                "start that engine, or unset DOCKER_HOST to use this machine's",
                error.details,
            ) from error
        if "ermission denied" in str(error):
            error.fix = "run as root, or add yourself to the group docker and log in again"
            raise
        refuse = why_not_here(os.geteuid(), Path("/etc/os-release").read_text(encoding="utf-8"))
        if refuse:
            error.fix = refuse
            raise
    if not _dockerd():
        say("no Docker Engine here: installing the distribution's docker.io")
        runner.run(["apt-get", "update"])
        runner.run(_INSTALL, env={"DEBIAN_FRONTEND": "noninteractive"})
    return _start(say)


def why_not_here(euid: int, os_release: str) -> str | None:
    """What the user has to do when an engine cannot be set up by us; None when it can."""
    words = os_release.replace('"', " ").replace("=", " ").split()
    if not {"debian", "ubuntu"} & set(words):
        return "install Docker Engine by your distribution's way and start it"
    if euid != 0:
        return "run: sudo apt-get install docker.io && sudo systemctl start docker (or run this as root)"
    return None


def _dockerd() -> bool:
    return any((Path(directory) / "dockerd").is_file() for directory in ("/usr/sbin", "/usr/bin"))


def _start(say: Callable[[str], None]) -> docker.DockerClient:
    """Start the engine, by systemd where that runs, and wait until it answers."""
    if Path("/run/systemd/system").is_dir():
        say("starting the Docker Engine (systemctl start docker)")
        runner.run(["systemctl", "start", "docker"])
    else:
        say(f"starting the Docker Engine (no systemd here: dockerd in the background, log in {_LOG})")
        with _LOG.open("ab") as log:
            # A session of its own: it outlives this command, as a service would.
            subprocess.Popen(
                ["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return connect()
        except EngineError as error:
            if time.monotonic() > deadline:
                error.what = f"the Docker Engine did not answer within {START_TIMEOUT_S:.0f} s of its start"
                error.fix = f"read {_LOG}, or journalctl -u docker"
                raise
            time.sleep(0.5)


def engine_versions(client: docker.DockerClient) -> dict[str, str]:
    """Version of the engine and its API range, for records and messages."""
    version = client.version()
    return {
        "engine": version["Version"],
        "api": version["ApiVersion"],
        "minimum_api": version.get("MinAPIVersion", ""),
    }
