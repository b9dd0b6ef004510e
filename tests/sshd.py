"""A real sshd on loopback, with its own host key and user key, and a client configuration that reaches it."""

from __future__ import annotations

import getpass
import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.programs import free_port, require_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Name by which the client configuration knows the host.
ALIAS = "here"


@dataclass(frozen=True)
class Sshd:
    """A running server.

    Attributes:
        home: Keys and configurations; `config` is the client's, `known` its known hosts.
        port: On 127.0.0.1.
    """

    home: Path
    port: int

    @property
    def config(self) -> Path:
        """The client's configuration."""
        return self.home / "config"

    def variant(self, name: str, before: str, after: str) -> Path:
        """Another client configuration."""
        text = self.config.read_text()
        assert before in text
        path = self.home / name
        path.write_text(text.replace(before, after))
        return path


def make_key(path: Path) -> None:
    """A key pair without a passphrase."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)


@contextmanager
def serve_ssh(home: Path, *, environment: Mapping[str, str] | None = None, options: str = "") -> Iterator[Sshd]:
    """Run an sshd until the block ends; sessions that it still has end with it.

    Args:
        home: Folder for keys and configurations.
        environment: Variables of every session.
        options: Further lines of its configuration.
    """
    sshd = require_program("sshd", "openssh-server")
    require_program("ssh", "openssh-client")
    home.mkdir(parents=True, exist_ok=True)
    for name in ("host", "user"):
        make_key(home / name)
    (home / "authorized").write_text((home / "user.pub").read_text())
    (home / "authorized").chmod(0o600)
    port = free_port()
    # One line: only the first SetEnv of a configuration counts.
    pairs = " ".join(f'"{key}={value}"' for key, value in (environment or {}).items())
    (home / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {home}/host\nAuthorizedKeysFile {home}/authorized\n"
        f"PidFile {home}/pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        + (f"SetEnv {pairs}\n" if pairs else "")
        + options
    )
    (home / "known").write_text(f"[127.0.0.1]:{port} {(home / 'host.pub').read_text()}")
    (home / "config").write_text(
        f"Host {ALIAS}\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n"
        f" IdentityFile {home}/user\n IdentitiesOnly yes\n UserKnownHostsFile {home}/known\n"
        " StrictHostKeyChecking yes\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)  # its empty folder of privilege separation
    child = subprocess.Popen([sshd, "-D", "-e", "-f", home / "sshd_config"], stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, child)
        yield Sshd(home, port)
    finally:
        child.terminate()
        child.wait(10)


def _wait_for(port: int, child: subprocess.Popen[bytes]) -> None:
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert child.poll() is None, "sshd ended"
        time.sleep(0.1)
    raise AssertionError("sshd does not listen")
