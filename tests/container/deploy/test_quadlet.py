"""The exported quadlet, read by Podman's own generator."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.debian_suite import unpacked
from tests.unit.test_deploy_request import EXPORTS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.container
#: This machine's own Podman knows no quadlets.
SUITE = "trixie"


def generate(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Have the generator make a unit of a quadlet."""
    (folder / "stack.container").write_text(text)
    program = unpacked(SUITE, ("podman",)) / "usr" / "libexec" / "podman" / "quadlet"
    return subprocess.run(
        [program, "-dryrun"], capture_output=True, text=True, check=False,
        env={"QUADLET_UNIT_DIRS": str(folder)},
    )  # fmt: skip


def test_podman_makes_the_unit_that_was_meant(tmp_path: Path):
    done = generate(EXPORTS.quadlet, tmp_path)
    assert done.returncode == 0, done.stderr
    (start,) = [line for line in done.stdout.splitlines() if line.startswith("ExecStart=")]
    words = start.split()
    assert words[1] == "run"
    for words_of_option in (
        "--name cu130-numa0", "--ulimit memlock=-1:-1", "--init", "--shm-size 17179869184",
        " ".join(f"--device nvidia.com/gpu={number}" for number in range(4)),
        "--env HF_HUB_OFFLINE=1", "--env-file /etc/hf.env", "--publish 127.0.0.1:30000:30000",
        "--stop-timeout 120", "--log-driver k8s-file",
    ):  # fmt: skip
        assert words_of_option in start
    (image,) = [word for word in words if "@sha256:" in word]
    assert words[words.index(image) + 1] == "serve"
    assert words[-1] == "--tp=4"
    assert "RequiresMountsFor=/srv/hf/hub/models--Qwen--Qwen3-32B" in done.stdout


def test_a_key_that_podman_does_not_know_fails(tmp_path: Path):
    done = generate(EXPORTS.quadlet.replace("ShmSize=", "ShmSice="), tmp_path)
    assert done.returncode != 0
    assert "unsupported key 'ShmSice'" in done.stderr
