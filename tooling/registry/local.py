"""A registry of this machine's own: Debian's docker-registry on loopback, content in the user's data folder.

For trying the chain, for one machine, and for CI. It goes on running when a command ends, so that hosts and
engines of this machine can pull from it; `blackwell-stacks local-registry stop` ends it, the content stays.
"""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import requests
import yaml
from filelock import FileLock

from tooling import runner
from tooling.errors import CommandError, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = "docker-registry"
LOOPBACK = "127.0.0.1"
_PORTS, _PORTS_TRIED = range(20000, 32000), 64
#: Seconds that the registry gets to answer after its start, or to end when asked to.
_PATIENCE_S = 20.0
_POLL_S = 0.05


@dataclass(frozen=True)
class LocalRegistry:
    """Where it lives and where it answers.

    Attributes:
        folder: Configuration, log and content.
        host: `127.0.0.1:<port>`.
        pid: Its process; 0 when it does not run.
    """

    folder: Path
    host: str
    pid: int


def data_folder() -> Path:
    """`blackwell-stacks/local-registry` in the user's data folder."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "blackwell-stacks" / "local-registry"


def start(say: Callable[[str], None], folder: Path | None = None) -> LocalRegistry:
    """The local registry, started when it does not run; its port stays the same while nobody else takes it.

    Args:
        say: Told what is being started, and where its content is.
        folder: Another place than the user's data folder.

    Raises:
        EngineError: The program cannot be got, or the registry does not answer.
    """
    place = folder or data_folder()
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place / "lock"):
        found = status(place)
        if found is not None and found.pid:
            return found
        program = _program(place, say)
        port = _port(int(found.host.rpartition(":")[2]) if found else 0)
        config = _write_config(place, port)
        pid = _spawn([program, "serve", str(config)], place / "registry.log")
        (place / "pid").write_text(str(pid), encoding="utf-8")
        _wait(pid, port, place / "registry.log")
    say(
        f"local registry: {LOOPBACK}:{port}, content in {place} (plain HTTP, this machine only; "
        "it goes on running until `blackwell-stacks local-registry stop`)"
    )
    return LocalRegistry(place, f"{LOOPBACK}:{port}", pid)


def status(folder: Path | None = None) -> LocalRegistry | None:
    """The local registry as it is now; None when there has never been one."""
    place = folder or data_folder()
    try:
        config = yaml.safe_load((place / "config.yml").read_text(encoding="utf-8"))
        host = str(config["http"]["addr"])
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return None
    return LocalRegistry(place, host, _running(place))


def stop(folder: Path | None = None) -> bool:
    """End the registry; its content stays. Whether it ran."""
    found = status(folder)
    if found is None or not found.pid:
        return False
    # By descriptor: a number may be somebody else's by the time the signal is sent, and its command line is
    # empty before its last thread has let go of the port. The descriptor is ready when all of it is gone.
    try:
        process = os.pidfd_open(found.pid)
    except ProcessLookupError:
        return False
    try:
        if _running(found.folder) != found.pid:
            return False
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not select.select([process], [], [], _PATIENCE_S)[0]:
            raise EngineError(
                "the local registry does not end", where=f"process {found.pid}", fix="look at its log"
            )
    finally:
        os.close(process)
    return True


def _running(folder: Path) -> int:
    """Id of our registry's process; 0 when there is none. A pid that somebody else has now is not ours."""
    with suppress(OSError, ValueError):
        pid = int((folder / "pid").read_text(encoding="utf-8"))
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # a child of ours that has ended is gone for good only now
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if str(folder / "config.yml").encode() in words:
            return pid
    return 0


def _port(wanted: int) -> int:
    """The port of the last time, or a free one below those that the kernel hands out to connections.

    One of the kernel's own range may belong to somebody's connection when the registry is started again.
    """
    for port in (*((wanted,) if wanted else ()), *secrets.SystemRandom().sample(_PORTS, _PORTS_TRIED)):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            return int(probe.getsockname()[1])
    raise EngineError("no free port on loopback for the local registry")


def _write_config(folder: Path, port: int) -> Path:
    path = folder / "config.yml"
    config = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "content")}, "delete": {"enabled": True}},
        # The secret only ties an upload's pieces together.
        "http": {"addr": f"{LOOPBACK}:{port}", "secret": secrets.token_hex(16)},
    }
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        yaml.safe_dump(config, file)
    return path


def _program(folder: Path, say: Callable[[str], None]) -> str:
    """The registry's program: the installed one, else out of Debian's package without installing it.

    An installed package would start a service of its own on all interfaces of the machine.

    Raises:
        EngineError: Neither is to be had.
    """
    if found := shutil.which(PROGRAM):
        return found
    unpacked = folder / "package" / "usr" / "bin" / PROGRAM
    if unpacked.is_file():
        return str(unpacked)
    if not shutil.which("apt-get"):
        raise EngineError(
            f"{PROGRAM} is not installed",
            fix="install your distribution's docker-registry, or name a registry with --registry",
        )
    say(f"fetching the distribution's {PROGRAM} (unpacked beside its content, nothing is installed)")
    download = folder / "download"
    shutil.rmtree(download, ignore_errors=True)
    download.mkdir()
    if os.geteuid() == 0:
        # apt's own user must be able to write there.
        download.chmod(0o777)
    try:
        _download(download)
        (package,) = download.glob("*.deb")
        runner.run(["dpkg-deb", "--extract", str(package), str(folder / "package")])
    except (CommandError, ValueError) as error:
        details = error.details if isinstance(error, CommandError) else [str(error)]
        raise EngineError(
            f"the package {PROGRAM} could not be fetched", details=details,
            fix=f"apt-get update, then apt-get install {PROGRAM}; or name a registry with --registry",
        ) from error  # fmt: skip
    finally:
        shutil.rmtree(download, ignore_errors=True)
    return str(unpacked)


def _download(folder: Path) -> None:
    """Fetch the package into a folder; a new machine has no list of packages yet."""
    try:
        runner.run(["apt-get", "download", PROGRAM], cwd=folder)
    except CommandError:
        if os.geteuid() != 0:
            raise
        runner.run(["apt-get", "update"])
        runner.run(["apt-get", "download", PROGRAM], cwd=folder)


def _spawn(argv: list[str], log: Path) -> int:
    """Start a program in a session of its own: it outlives this command, as a service would."""
    appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        argv[0],
        argv,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), appending, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def _wait(pid: int, port: int, log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        with suppress(requests.exceptions.RequestException):
            if requests.get(f"http://{LOOPBACK}:{port}/v2/", timeout=5).ok:
                return
        if os.waitpid(pid, os.WNOHANG)[0] or time.monotonic() > deadline:
            raise EngineError(
                "the local registry does not answer",
                where=str(log),
                details=log.read_text(encoding="utf-8", errors="replace").splitlines()[-10:],
                fix="see its log, or name a registry with --registry",
            )
        time.sleep(_POLL_S)
