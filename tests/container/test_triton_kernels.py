"""The Triton kernels in the stack's image, without a GPU: their results, and what they compile to for SM120."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import compile_triton
import pytest

from tooling.census.kernels import KernelLimits, check_kernels
from tooling.gates.records import Verdict

pytestmark = pytest.mark.container
ROOT = Path(__file__).resolve().parents[2]
IMAGE = "blackwell-stacks/cu130:built"
#: Compute capability by target.
TARGETS = {120: "12.0", 90: "9.0"}
LIMIT_S = 1200
# One container: the compiler on one core, the interpreter on another.
SCRIPT = """
set -e
export TRITON_CACHE_DIR=/tmp/cache PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore
python=/opt/stack/bin/python
umask 0
$python /kernels/compile_triton.py --out /out > /tmp/compile.log 2>&1 & compiler=$!
$python /scenarios.py /kernels /checks > /out/right.txt
$python /scenarios.py /kernels /checks --wrong > /out/wrong.txt
wait $compiler || { cat /tmp/compile.log; exit 1; }
"""


@pytest.fixture(scope="module")
def made(engine, tmp_path_factory) -> Path:
    """What one container leaves: cubins by target, their launches, outcomes of all cases."""
    out: Path = tmp_path_factory.mktemp("triton")
    out.chmod(0o777)
    mounts = {
        str(ROOT / "images" / "kernels"): {"bind": "/kernels", "mode": "ro"},
        str(ROOT / "tests" / "container" / "triton_scenarios.py"): {"bind": "/scenarios.py", "mode": "ro"},
        str(ROOT / "tests" / "gpu" / "kernels"): {"bind": "/checks", "mode": "ro"},
        str(out): {"bind": "/out", "mode": "rw"},
    }
    container = engine.containers.create(
        IMAGE, ["-c", SCRIPT], entrypoint="/bin/sh", volumes=mounts, network_mode="none", user="0"
    )
    try:
        container.start()
        code = container.wait(timeout=LIMIT_S)["StatusCode"]
        log = container.logs().decode()
    finally:
        container.remove(force=True)
    assert code == 0, log
    return out


def _outcomes(path: Path) -> dict[str, dict[str, Any]]:
    lines = [line for line in path.read_text().splitlines() if line.startswith("RESULT ")]
    found = [json.loads(line.removeprefix("RESULT ")) for line in lines]
    return {outcome["name"]: outcome for outcome in found}


def test_results_are_those_of_the_formulas(made):
    outcomes = _outcomes(made / "right.txt")
    assert len(outcomes) == 11
    assert {name: outcome["wrong"] for name, outcome in outcomes.items()} == dict.fromkeys(outcomes, "")
    assert all(outcome["compared"] > 0 for outcome in outcomes.values())


def test_a_wrong_kernel_is_found_and_only_that(made):
    outcomes = _outcomes(made / "wrong.txt")
    wrong = {name: outcome["wrong"] for name, outcome in outcomes.items() if outcome["wrong"]}
    assert "attention_in_one_part_and_in_many" in wrong
    assert all(name.startswith("attention") and "output is wrong" in said for name, said in wrong.items())


@pytest.mark.parametrize("target", TARGETS)
def test_they_compile_for_a_gpu_that_is_not_here_without_a_spill(made, target):
    launches = [one for one in json.loads((made / "kernels.json").read_text()) if one["target"] == target]
    cubins = sorted((made / str(target)).glob("*.cubin"))
    assert [path.stem for path in cubins] == sorted(launch["kernel"] for launch in launches)
    assert len(cubins) == 5
    for path in cubins:
        kernels, checks = check_kernels(path, TARGETS[target], KernelLimits())
        failed = {check.name: check.details for check in checks if check.verdict is not Verdict.PASS}
        assert failed == {}, path.name
        assert [kernel.stack for kernel in kernels] == [0], path.name
        # Eight warps with 256 registers each are what a multiprocessor has.
        assert all(kernel.registers <= 255 for kernel in kernels)
    # What a launch asks for dynamically is not in a cubin, and Triton compiles what no SM120 can start.
    assert compile_triton.too_large(launches) == []
    assert max(launch["shared"] for launch in launches) > 0
    first, *_ = launches
    large = {**first, "shared": compile_triton.SHARED_LIMIT + 1}
    (said,) = compile_triton.too_large([large, first])
    assert said.startswith(f"{first['kernel']} for {target} asks for 101377 bytes")
