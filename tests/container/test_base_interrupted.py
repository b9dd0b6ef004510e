"""A base whose making is interrupted leaves no process and no mount of this machine's own folders."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.container
ROOT = Path(__file__).parents[2]
MAKE = """
import sys
from pathlib import Path
from tooling.base.bootstrap import bootstrap_base
from tooling.console import say
from tooling.dockerhost import ensure_engine
from tooling.stack import load_stack
stack = load_stack("cpu", Path(sys.argv[1])).stack
bootstrap_base(stack, 1, ensure_engine(say), say)
"""


def mounts(folder: Path) -> list[str]:
    return [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]


def test_ctrl_c_while_packages_are_unpacked(tmp_path: Path):
    environment = {"TMPDIR": str(tmp_path), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT)}
    tmp_path.chmod(0o755)
    child = subprocess.Popen(
        [sys.executable, "-c", MAKE, str(ROOT)], stderr=subprocess.PIPE, text=True, env=environment
    )
    assert child.stderr is not None
    heard = []
    for line in child.stderr:
        heard.append(line)
        if "base: installing" in line or "base: extracting" in line:
            break
    assert child.poll() is None, "".join(heard)
    assert mounts(tmp_path) or "extracting" in heard[-1], "".join(heard)
    child.send_signal(signal.SIGINT)
    _, rest = child.communicate(timeout=90)
    assert child.returncode == -signal.SIGINT, rest
    assert mounts(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("mmdebstrap")] == []
    running = subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True).stdout
    assert str(tmp_path) not in running
