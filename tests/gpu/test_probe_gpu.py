"""The probe on a real GPU: needs python3 with cuda-bindings and nvidia-ml-py, no Docker and no network.

Everything goes through the probe's own command line, so that the tests run wherever its files are.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu
PROBE = Path(__file__).parents[2] / "images" / "runtime" / "probe.py"


def probe(*options: str, **environment: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(PROBE), "--json", *options],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def memory(document: dict[str, Any], **labels: Any) -> list[dict[str, Any]]:
    return [
        rung
        for rung in document["rungs"]
        if rung.get("ladder") == "memory" and all(rung.get(key) == value for key, value in labels.items())
    ]


def test_memory_is_made_written_and_handed_to_another_process_by_every_route():
    code, document = probe("--no-collective")
    assert code == 0
    for route in ("scm_rights", "pidfd"):
        rungs = memory(document, rung="import", route=route, rdma=False)
        assert rungs
        assert {rung["outcome"] for rung in rungs} == {"ok"}
    assert {rung["outcome"] for rung in memory(document, rung="import", route="legacy_ipc")} == {"ok"}
    assert {rung["outcome"] for rung in memory(document, handle="none", rdma=False)} == {"ok"}
    assert all(
        rung["outcome"] == "ok" or rung["code"] in {800, 801} for rung in memory(document, handle="fabric")
    )
    assert all(gpu["utilisation"] <= 5 for gpu in document["idle_after"])


def test_a_workspace_larger_than_the_gpu_is_out_of_memory_and_nothing_else():
    code, document = probe("--no-collective", "--workspace-mib", "4000000")
    assert code == 1
    (rung,) = memory(document, handle="posix_fd", rdma=False, size_name="workspace", device=0)
    assert (rung["outcome"], rung["code"], rung["name"]) == ("error", 2, "OUT_OF_MEMORY")
    assert 0 < rung["free"] < rung["size"]


def test_hidden_devices_are_a_clear_result():
    code, document = probe("--facts-only", CUDA_VISIBLE_DEVICES="")
    assert code == 1
    assert (document["devices"], document["rungs"][0]["code"]) == ([], 100)
    assert document["nvml"]["gpus"]


def test_rungs_that_are_too_slow_are_named_and_leave_the_gpu_at_rest():
    code, document = probe("--no-collective", "--limit", "0.01")
    assert code == 1
    hung = {rung["device"] for rung in memory(document) if rung["outcome"] == "hang"}
    assert hung == set(range(len(document["devices"])))  # at the latest the import: no process starts in 10 ms
    assert all(gpu["utilisation"] <= 5 for gpu in document["idle_after"])
