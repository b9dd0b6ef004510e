"""The doctor against a real sshd on loopback."""

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.programs import free_port, require_program
from tooling.cli import app
from tooling.errors import CommandError
from tooling.probe.collect import collect

pytestmark = pytest.mark.container


def _wait_for(port: int, child: "subprocess.Popen[bytes]") -> None:
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert child.poll() is None, "sshd ended"
        time.sleep(0.1)
    raise AssertionError("sshd does not listen")


@pytest.fixture(scope="module")
def ssh_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An sshd of our own, with its own keys, and a client configuration that reaches it as `here`."""
    sshd = require_program("sshd", "openssh-server")
    require_program("ssh", "openssh-client")
    home = tmp_path_factory.mktemp("sshd")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / name], check=True)
    (home / "authorized").write_text((home / "user.pub").read_text())
    (home / "authorized").chmod(0o600)
    port = free_port()
    (home / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {home}/host\nAuthorizedKeysFile {home}/authorized\n"
        f"PidFile {home}/pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
    )
    (home / "known").write_text(f"[127.0.0.1]:{port} {(home / 'host.pub').read_text()}")
    (home / "config").write_text(
        f"Host here\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n IdentityFile {home}/user\n"
        f" IdentitiesOnly yes\n UserKnownHostsFile {home}/known\n StrictHostKeyChecking yes\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)  # its empty folder of privilege separation
    child = subprocess.Popen([sshd, "-D", "-e", "-f", home / "sshd_config"], stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, child)
        yield home / "config"
    finally:
        child.terminate()
        child.wait(10)


def test_over_ssh_and_here_it_sees_the_same_machine(ssh_config: Path):
    there = json.loads(collect("here", ssh_config=ssh_config))
    here = json.loads(collect())
    assert there["system"]["kernel"] == here["system"]["kernel"]
    assert there["system"]["cores"] == here["system"]["cores"]
    assert there["disks"][0]["total"] == here["disks"][0]["total"]


def test_the_command_over_ssh_ends_with_3_on_a_host_without_a_gpu(ssh_config: Path):
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this host has a GPU")
    done = CliRunner().invoke(app, ["doctor", "--host", "here", "--ssh-config", str(ssh_config), "--json"])
    assert done.exit_code == 3, done.output
    report = json.loads(done.stdout)
    assert report["host"]["source"] == "host"
    assert report["result"]["checks"][0]["seen"] == "no NVIDIA GPU is to be seen here"
    assert report["host"]["kernel"]


def test_nothing_is_written_on_the_host(ssh_config: Path, tmp_path: Path):
    before = sorted(path.name for path in Path.home().iterdir())
    collect("here", ssh_config=ssh_config)
    assert sorted(path.name for path in Path.home().iterdir()) == before
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_refuses_us_is_one_message(ssh_config: Path, tmp_path: Path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "stranger"], check=True)
    text = ssh_config.read_text().replace(f"{ssh_config.parent}/user\n", f"{tmp_path}/stranger\n")
    (tmp_path / "config").write_text(text)
    with pytest.raises(CommandError, match="ssh could not connect") as caught:
        collect("here", ssh_config=tmp_path / "config")
    assert any("Permission denied" in line for line in caught.value.details)


def test_a_host_without_python3_is_one_message(
    ssh_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "bin").mkdir()  # a real connection whose shell finds no python3
    shim = tmp_path / "bin" / "ssh"
    shim.write_text(
        f"#!/bin/sh\nexec {shutil.which('ssh')} -F {ssh_config} -T here 'PATH=/nowhere python3 -'\n"
    )
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    with pytest.raises(CommandError, match="has no python3"):
        collect("here", ssh_config=ssh_config)


def test_the_collector_itself_ends_with_3_and_one_document():
    script = Path(__file__).parents[2] / "images" / "runtime" / "probe_collector.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode in {0, 3}
    assert json.loads(done.stdout)["format"] == 1
    assert not done.stderr
