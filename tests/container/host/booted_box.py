"""A machine with a real systemd and a real engine, booted by systemd-nspawn."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.container.host.deck import HERE, Line
from tests.debian_suite import CACHE, mirrors
from tests.programs import require_program
from tooling.host.faults import VARIABLE as FAULT

if TYPE_CHECKING:
    from collections.abc import Iterator

#: systemd of later suites does not run on hosts whose control groups are of the first version.
SUITE = "bookworm"
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "docker.io",
    "ca-certificates",
    "python3",
    "iptables",
    "iproute2",
)
#: nspawn mounts control groups of the first version for reading only; the engine makes some of its own.
CONTROL_GROUPS = """[Service]
ExecStartPre=/bin/sh -euc 'for one in /sys/fs/cgroup/*/; do mount -o remount,bind,rw $one; done'
"""
_BOOT_S, _POLL_S = 90.0, 0.2
#: Exit code by which nspawn says that the machine asked to be booted again.
_REBOOT = 133


def root_tar() -> Path:
    """The box's files as a tar, made once and kept."""
    kept = CACHE / "debian" / f"box-{SUITE}.tar"
    if kept.is_file():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    fresh = kept.with_suffix(".new.tar")
    program = require_program("mmdebstrap", "mmdebstrap")
    command = [program, "--variant=apt", f"--include={','.join(PACKAGES)}", SUITE, str(fresh), *mirrors(SUITE)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    fresh.rename(kept)
    return kept


class BootedBox:
    """A booted machine; its network is this host's, so that its registry and its ports are at hand.

    Args:
        root: Its files.
        shared: A folder that has the same path inside.
    """

    def __init__(self, root: Path, shared: Path) -> None:
        self.root = root
        self.shared = shared
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._leader = 0

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a client of its engine, out here."""
        return {**os.environ, "DOCKER_HOST": f"unix:///proc/{self._leader}/root/run/docker.sock"}

    def docker(self, *arguments: str, stdin: bytes | None = None) -> str:
        """Run a client's command, out here."""
        done = subprocess.run(
            ["docker", *arguments], input=stdin, capture_output=True, check=False, env=self.environment
        )
        assert done.returncode == 0, f"docker {arguments}: {done.stderr.decode()}"
        return done.stdout.decode().strip()

    def inside(self, *command: str) -> list[str]:
        """The command line that runs something in the box."""
        namespaces = ["--mount", "--pid", "--uts", "--ipc"]
        return ["nsenter", "--target", str(self._leader), *namespaces, "--", *command]

    def systemctl(self, *words: str) -> str:
        """What systemctl prints in the box."""
        done = subprocess.run(self.inside("systemctl", *words), capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def boot(self) -> None:
        """Switch it on and wait until its engine answers."""
        environment = {
            **os.environ,
            "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "0",
            "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "yes",
        }
        words = ["--quiet", f"--directory={self.root}", "--boot", "--keep-unit", "--register=no"]
        words += ["--capability=all", "--console=pipe", f"--bind={self.shared}"]
        words += ["--system-call-filter=keyctl bpf add_key", f"--machine=box{os.getpid()}"]
        with (self.shared / "console.log").open("ab") as log:
            self._nspawn = subprocess.Popen(
                ["systemd-nspawn", *words], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._await_engine()

    def reboot(self) -> None:
        """Reboot it in good order."""
        assert self._nspawn is not None
        self.systemctl("reboot")
        assert self._nspawn.wait(_BOOT_S) == _REBOOT
        self.boot()

    def lose_power(self) -> None:
        """Everything in it is gone at once."""
        assert self._nspawn is not None
        os.kill(self._leader, signal.SIGKILL)  # with the first process of a PID namespace all of it ends
        self._nspawn.wait(30)

    def end(self) -> None:
        """Switch it off, if it is on."""
        if self._nspawn is not None and self._nspawn.poll() is None:
            self.lose_power()

    def _await_engine(self) -> None:
        assert self._nspawn is not None
        end = time.monotonic() + _BOOT_S
        while True:
            assert self._nspawn.poll() is None, (self.shared / "console.log").read_text()[-2000:]
            children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text().split()
            self._leader = int(children[-1]) if children else 0
            probe = ["docker", "version"]
            if (
                self._leader
                and not subprocess.run(probe, capture_output=True, check=False, env=self.environment).returncode
            ):
                return
            assert time.monotonic() < end, (self.shared / "console.log").read_text()[-2000:]
            time.sleep(_POLL_S)


class BoxLine(Line):
    """A group of GPUs of a box: the host program runs in there, as systemd would run it."""

    box: BootedBox

    def argv(self, *arguments: str) -> list[str]:
        """The host program's command line."""
        options = ["--root", str(self.root), "--group", self.group, "--json"]
        return self.box.inside("/usr/bin/python3", str(self.deck.program), *options, *arguments)

    def environment(self, fault: str = "") -> dict[str, str]:
        """Its environment: the box's own engine, and its own nvidia-smi."""
        return {"PATH": os.environ["PATH"], **({FAULT: fault} if fault else {})}

    def await_right(self, version: str) -> None:
        """Wait until a boot has brought a version up, then look at everything."""
        end = time.monotonic() + _BOOT_S
        while self.version() != version or (self.state / "pending").exists():
            log = self.box.inside("journalctl", "--no-pager", "--lines=30", "--unit=blackwell-stacks")
            assert time.monotonic() < end, subprocess.run(
                log, capture_output=True, text=True, check=False
            ).stdout
            time.sleep(_POLL_S)
        self.assert_right(version)


@contextmanager
def booted_box(folder: Path, bridge: str) -> Iterator[BootedBox]:
    """A box that lives as long as the block.

    Args:
        folder: For its files, and a folder `shared`.
        bridge: Name of the bridge that its engine uses; made here.
    """
    require_program("systemd-nspawn", "systemd-container")
    root, shared = folder / "root", folder / "shared"
    root.mkdir()
    shared.mkdir()
    subprocess.run(["tar", "--extract", "--file", str(root_tar()), "--directory", str(root)], check=True)
    settings = {"bridge": bridge, "iptables": False, "runtimes": {"nvidia": {"path": "/usr/sbin/runc"}}}
    (root / "etc" / "docker").mkdir(parents=True, exist_ok=True)
    (root / "etc" / "docker" / "daemon.json").write_text(json.dumps(settings))
    drop_in = root / "etc" / "systemd" / "system" / "docker.service.d" / "control-groups.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(CONTROL_GROUPS)
    smi = root / "usr" / "bin" / "nvidia-smi"
    (root / "opt" / "smi.py").write_bytes((HERE / "fake_nvidia_smi.py").read_bytes())
    smi.write_text(f'#!/bin/sh\nFAKE_GPUS={shared}/deck/gpus exec /usr/bin/python3 -SE /opt/smi.py "$@"\n')
    smi.chmod(0o755)
    number = os.getpid() * 7 % 250 + 1
    for command in (
        ["link", "add", bridge, "type", "bridge"],
        ["address", "add", f"10.214.{number}.1/24", "dev", bridge],
        ["link", "set", bridge, "up"],
    ):
        subprocess.run(["ip", *command], check=True)
    box = BootedBox(root, shared)
    try:
        box.boot()
        yield box
    finally:
        box.end()
        subprocess.run(["ip", "link", "delete", bridge], check=True)
        shutil.rmtree(root)  # half a gigabyte
