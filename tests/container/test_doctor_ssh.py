"""The doctor against a real sshd on loopback."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.sshd import serve_ssh
from tooling.cli import app
from tooling.errors import CommandError
from tooling.probe.collect import collect

pytestmark = pytest.mark.container


@pytest.fixture(scope="module")
def ssh_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Client configuration of an sshd of our own, which it reaches as `here`."""
    with serve_ssh(tmp_path_factory.mktemp("sshd")) as server:
        yield server.config


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
