"""A Docker Engine of a test's own, and a loss of power for it: every process of it is killed at once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.programs import require_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_START_S = 60.0
_NUMBERS = iter(range(1, 200))


class PrivateEngine:
    """An engine with its own data, socket and bridge.

    Attributes:
        folder: Where all of it lies; short, a socket's address holds 108 bytes.
        address: For `DOCKER_HOST`.
    """

    def __init__(self, folder: Path, data: Path, bridge: str, options: Sequence[str] = ()) -> None:
        self.folder = folder
        self.data = data
        self.address = f"unix://{folder}/docker.sock"
        # The bridge exists already: with `--bridge none` an engine deletes docker0, whoever's it is.
        self._argv = ["dockerd", "--host", self.address, "--data-root", str(data)]
        self._argv += ["--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid", "--bridge", bridge]
        self._argv += ["--iptables=false", "--max-download-attempts=1", *options]
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a client of this engine."""
        return {**os.environ, "DOCKER_HOST": self.address}

    def docker(self, *arguments: str, stdin: bytes | None = None) -> str:
        """Run a client's command."""
        done = subprocess.run(
            ["docker", *arguments], input=stdin, capture_output=True, check=False, env=self.environment
        )
        assert done.returncode == 0, f"docker {arguments}: {done.stderr.decode()}"
        return done.stdout.decode().strip()

    def start(self) -> None:
        """Start the engine and wait until it answers."""
        (self.folder / "pid").unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._daemon = subprocess.Popen(self._argv, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + _START_S
        while True:
            assert self._daemon.poll() is None, (self.folder / "log").read_text()[-3000:]
            probe = subprocess.run(
                ["docker", "version"], capture_output=True, check=False, env=self.environment
            )
            if probe.returncode == 0:
                return
            assert time.monotonic() < end, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.1)

    def restart_daemon(self, while_down: Callable[[], bool]) -> None:
        """End the daemon in good order and start it again; with live-restore its containers run on.

        Args:
            while_down: Must hold in between.
        """
        assert self._daemon is not None
        self._daemon.terminate()
        self._daemon.wait(60)
        assert while_down()
        self.start()

    def lose_power(self) -> None:
        """SIGKILL for the daemon, its containerd, the shims and every process of a container, in that order."""
        first = [
            pid for pid, line in _command_lines().items() if str(self.folder) in line and pid != os.getpid()
        ]
        assert first, "no engine runs"
        for pid in (*first, *_descendants(first)):
            _kill(pid)
        if self._daemon is not None:
            self._daemon.wait()
        self._unmount()

    def _unmount(self) -> None:
        """What a daemon leaves mounted when it is killed; a new boot would not have it."""
        roots = (f"{self.folder}/", f"{self.data}/")
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((one for one in mounts if one.startswith(roots)), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
        shutil.rmtree(self.folder / "exec", ignore_errors=True)

    def end(self) -> None:
        """The engine and everything in it ends."""
        if self._daemon is not None and self._daemon.poll() is None:
            self.lose_power()


def _command_lines() -> dict[int, str]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found[int(path.parent.name)] = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
    # Only an engine's own programs; a client names the folder too.
    programs = ("dockerd", "containerd", "docker-proxy")
    return {pid: line for pid, line in found.items() if any(name in line.split(" ")[0] for name in programs)}


def _descendants(pids: Sequence[int]) -> list[int]:
    """Children of children, read while all of them live: init adopts those whose parent has died."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found, level = [], set(pids)
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += sorted(level)
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def private_engine(*options: str, data: Path | None = None) -> Iterator[PrivateEngine]:
    """An engine that lives as long as the block.

    Args:
        options: More options of the daemon.
        data: Its data root; below its own folder by default.
    """
    require_program("ip", "iproute2")
    require_program("dockerd", "docker.io")
    number = next(_NUMBERS)
    bridge = f"bs{os.getpid()}x{number}"
    subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], check=True)
    subprocess.run(
        ["ip", "address", "add", f"10.213.{(os.getpid() * 5 + number) % 250 + 1}.1/24", "dev", bridge],
        check=True,
    )
    subprocess.run(["ip", "link", "set", bridge, "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="bs-", ignore_cleanup_errors=True) as folder:
        engine = PrivateEngine(Path(folder), data or Path(folder, "data"), bridge, options)
        try:
            engine.start()
            yield engine
        finally:
            engine.end()
            subprocess.run(["ip", "link", "delete", bridge], check=True)
