"""On a real GPU, torch computes the same with pruned libraries, bit by bit."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("prune_compare.py")
pytestmark = pytest.mark.gpu


def test_pruned_libraries_compute_the_same(tmp_path: Path):
    torch = pytest.importorskip("torch", reason="the comparison needs torch with CUDA")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    site = sysconfig.get_path("purelib")
    command = [sys.executable, str(SCRIPT), site, "--make", str(tmp_path / "site")]
    command += ["--toolkit", str(SCRIPT.parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    assert document["problems"] == []
    assert document["verdict"] == "PASS"
    assert document["pruned"]["pruned"] >= 5
    assert document["compared"] >= 25
