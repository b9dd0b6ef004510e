"""What the Docker client's refusals mean, and whose fault each is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TAIL = 5
_API = re.compile(
    r"client version (\S+) is too (old|new)\. (?:Minimum|Maximum) supported API version is (\d+\.\d+)"
)
#: (what the client says, what is wrong, what to do); the first that fits. `{said}` is the client's last line.
_MEANINGS = (
    (
        r"permission denied.*sock",
        "the Docker Engine refuses this user",
        "run as root, or join the group docker",
    ),
    (
        r"cannot connect to the docker daemon|is the docker daemon running",
        "no Docker Engine answers",
        "start it (systemctl start docker)",
    ),
    (
        r"no space left on device",
        "the engine's disk is full",
        "free space (docker system df shows who has it), or move the engine's data-root",
    ),
    (
        r"zombie",
        "the container's first process is a zombie and cannot be stopped",
        "create it with an init (`init: true` in the contract); an engine restart gets rid of this one",
    ),
    (
        r"could not select device driver|custom device .nvidia|\bCDI\b|nvidia-container",
        "the engine cannot hand out the GPUs: {said}",
        "install or configure the container toolkit (nvidia-ctk; CDI needs Docker 25 or newer)",
    ),
    (
        r"exec format error|no matching manifest",
        "the image is not for this host's architecture: {said}",
        "use a release for this architecture",
    ),
    (
        r"port is already allocated|address already in use",
        "a port that the stack publishes is taken: {said}",
        "end who listens there, or publish another port",
    ),
    (
        r"unauthorized|authentication required|denied: requested access",
        "the registry refuses this host's login: {said}",
        "log in again on the host (docker login); an expired login refuses public images too",
    ),
    (
        r"manifest unknown|not found: manifest|manifest for .* not found",
        "the registry has no such image: {said}",
        "check the reference and that the release was not deleted",
    ),
    (
        r"connection refused|no such host|i/o timeout|TLS handshake|connection reset|unexpected EOF|\bEOF\b",
        "the registry cannot be reached or broke off: {said}",
        "check the registry and the way to it; the running stack is untouched",
    ),
)


def explain(command: str, text: str, where: str = "") -> EngineError:
    """A failure of the client in words that say whose fault it is.

    Args:
        command: The client's subcommand.
        text: What it printed.
        where: What it concerned.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()][-_TAIL:]
    said = lines[-1] if lines else "no message"
    where = where or f"docker {command}"
    version = _API.search(text)
    if version:
        return EngineError(
            f"engine and client of this host do not fit: the client speaks API {version[1]} and is too "
            f"{version[2]}, the engine's limit is {version[3]}",
            where=where,
            fix="bring the docker client on the host to the engine's version; running containers are untouched",
            details=lines,
        )
    for pattern, what, fix in _MEANINGS:
        if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            return EngineError(what.format(said=said), where=where, fix=fix, details=lines)
    return EngineError(
        f"docker {command} failed: {said}", where=where, fix="read the engine's message", details=lines
    )


def port_given_away(port: int, holders: Sequence[str], details: Sequence[str]) -> EngineError:
    """What it means that the engine's own book says that a port is taken.

    An engine that is killed while a container starts keeps that container's port in its book, and reads it
    again at its next start although nobody listens there. Removing the container does not help, one more
    start of the engine does (seen with 20.10: in 25 of 30 losses of power within 0.4 s of `docker start`).

    Args:
        port: On the host.
        holders: Running containers that publish it.
        details: The client's lines.
    """
    if holders:
        return EngineError(
            f"port {port} is published by the container {', '.join(holders)}",
            where="docker start", fix=f"stop it (docker stop {holders[0]}), or publish another port",
            details=list(details),
        )  # fmt: skip
    return EngineError(
        f"the engine keeps port {port} for a container that no longer runs: it was killed while that one "
        "started",
        where="docker start",
        fix="restart the engine once (systemctl restart docker), then run `reconcile`; nothing else frees it",
        details=list(details),
    )
