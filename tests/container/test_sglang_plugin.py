"""The plugin in the real image: found by SGLang's own loader, applied by its own registry, never silent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import install_package
import pytest
from blackwell_kernels.sglang_plugin.counters import Counters
from blackwell_kernels.sglang_plugin.settings import Feature

from tooling.boot.dry_boot import STUBS
from tooling.gates.records import Verdict
from tooling.verify.dispatch import DispatchProof

pytestmark = pytest.mark.container
ROOT = Path(__file__).resolve().parents[2]
IMAGE = "blackwell-stacks/cu130:built"
SITE = Path("/opt/stack/lib/python3.11/site-packages")
FEATURES = ("allreduce", "allreduce-rmsnorm", "indexer", "topk")
ENDED = 78
#: Importing SGLang takes a minute of CPU, and more on a machine that does other things too.
LIMIT_S = 1500


@pytest.fixture(scope="module")
def outcomes(engine, tmp_path_factory) -> dict[str, dict[str, Any]]:
    """Every scenario by name, run in one container; the checkout's package hides the one in the image."""
    out = tmp_path_factory.mktemp("plugin")
    install_package.install(ROOT / "images" / "kernels", SITE, out)
    for path in (out, *out.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    mounts = {
        str(out / SITE.relative_to("/")): {"bind": "/extra", "mode": "ro"},
        str(STUBS): {"bind": "/stubs", "mode": "ro"},
        str(ROOT / "tests" / "container" / "plugin_scenarios.py"): {"bind": "/scenarios.py", "mode": "ro"},
    }
    container = engine.containers.create(
        IMAGE,
        ["/scenarios.py"],
        entrypoint="/opt/stack/bin/python",
        environment={"PYTHONPATH": "/extra:/stubs", "SGLANG_USE_CPU_ENGINE": "1"},
        volumes=mounts,
        network_mode="none",
        user="0",  # one scenario changes a file of SGLang
    )
    try:
        container.start()
        code = container.wait(timeout=LIMIT_S)["StatusCode"]
        log = container.logs().decode()
    finally:
        container.remove(force=True)
    assert code == 0, log
    found = [
        json.loads(line.removeprefix("RESULT ")) for line in log.splitlines() if line.startswith("RESULT ")
    ]
    return {outcome["name"]: outcome for outcome in found}


def _states(outcome: dict[str, Any]) -> dict[str, str]:
    return {name: tally["state"] for name, tally in outcome["counters"]["features"].items()}


def _said(outcome: dict[str, Any]) -> str:
    return "\n".join(outcome["said"])


def test_without_a_request_it_changes_nothing(outcomes):
    outcome = outcomes["nothing"]
    assert (outcome["exit"], outcome["counters"]) == (0, None)
    assert "plugin installed, nothing requested" in _said(outcome)
    assert not any(outcome["state"]["wrapped"].values())


def test_without_a_device_it_says_so_and_lets_the_engine_serve(outcomes):
    outcome = outcomes["no-device"]
    assert outcome["exit"] == 0
    assert _states(outcome) == dict.fromkeys(FEATURES, "DISABLED")
    for feature in FEATURES:
        assert f"{feature} DISABLED: not active: no CUDA device" in _said(outcome)
        assert "seams of SGLang 0.5.23 are as read" in _said(outcome)
    assert not any(outcome["state"]["wrapped"].values())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no-device-strict", "not active: no CUDA device"),
        ("misspelt-strict", "unknown variable BLACKWELL_KERNELS_TOPKK"),
        ("no-library-strict", "its kernels cannot be loaded"),
        ("not-applied-strict", "SGLang did not apply the hook on"),
        ("changed-strict", "is not the function that was read"),
    ],
)
def test_strict_mode_ends_the_process_with_the_reason(outcomes, name, reason):
    outcome = outcomes[name]
    assert outcome["exit"] == ENDED, outcome
    assert outcome["state"] is None, "the loader did not come back"
    assert "strict mode ends this process" in outcome["said"][-1]
    assert reason in outcome["said"][-1]


def test_the_kill_switch_is_above_everything(outcomes):
    outcome = outcomes["disabled"]
    assert outcome["exit"] == 0
    assert "plugin switched off by BLACKWELL_KERNELS_DISABLE" in _said(outcome)
    assert not any(outcome["state"]["wrapped"].values())


def test_hooks_are_applied_and_copies_of_the_functions_too(outcomes):
    outcome = outcomes["hooked"]
    assert outcome["exit"] == 0, outcome
    assert all(outcome["state"]["wrapped"].values()), outcome
    assert len(outcome["state"]["wrapped"]) == 4
    assert _states(outcome) == dict.fromkeys(FEATURES, "prepared")
    assert "sglang.kernels.ops.attention.dsv4.topk.topk_transform_paged" in outcome["state"]["patched"]


def test_each_call_goes_to_our_kernel_or_the_engines_own_way_and_is_counted(outcomes):
    dispatch = outcomes["hooked"]["state"]["dispatch"]
    assert dispatch["answers"] == {
        "fused": "2.5 3",
        "too many rows": "declined",
        "declined before the layer boundary": "0.972656 3",  # 2 + 1 = 3, and 3 / sqrt(3 * 3 + 0.5)
        "wrong type": "declined",
        "not contiguous": "declined",
        "fuses 4": "True",
        "fuses 5": "False",
        "chosen": "blackwell_kernels",
        "left on NVLink": "ca",
        "left": "pynccl",
        "reduced": "2",
        "not ours": "engine",
        "indexed": "ours 192",
        "to be cleaned": "engine",
        "more columns than pages": "engine",
        "other heads": "engine",
        "after a failed group": "pynccl",
    }
    indexer = dispatch["counters"]["indexer"]
    assert (indexer["state"], indexer["calls"], sum(indexer["fallbacks"].values())) == ("ACTIVE", 1, 3)
    fused, plain = (dispatch["counters"][name] for name in ("allreduce-rmsnorm", "allreduce"))
    assert (fused["state"], fused["calls"], fused["shapes"]) == ("ACTIVE", 1, {"4x256": 1})
    assert sum(fused["fallbacks"].values()) == 3
    assert fused["fallback_shapes"] == {"5x256": 1, "4x256": 2}
    assert (plain["state"], plain["calls"]) == ("ACTIVE", 1)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no-library", "its kernels cannot be loaded"),
        ("not-applied", "SGLang did not apply the hook on"),
        ("changed", "dsv4.topk.topk_transform_paged is not the function that was read in SGLang 0.5.23"),
    ],
)
def test_what_cannot_be_had_is_disabled_and_said(outcomes, name, reason):
    outcome = outcomes[name]
    assert outcome["exit"] == 0
    assert set(_states(outcome).values()) == {"DISABLED"}
    assert reason in _said(outcome)
    assert not any(outcome["state"]["wrapped"].values())


def test_the_gate_reads_the_files_out_of_a_running_container(engine, tmp_path):
    """A stack that asks for kernels which never ran does not pass, whatever else is right."""
    counters = Counters({"package": "0.1.0", "engine": "sglang 0.5.23", "strict": False, "rank": None})
    counters.disable(Feature.TOPK, "not active: no CUDA device")
    counters.export_to(tmp_path, interval_s=3600)
    environment = {"BLACKWELL_KERNELS_TOPK": "1", "BLACKWELL_KERNELS_COUNTERS": "/counters"}
    container = engine.containers.create(
        IMAGE,
        ["-c", "import time; time.sleep(600)"],
        entrypoint="/opt/stack/bin/python",
        volumes={str(tmp_path): {"bind": "/counters", "mode": "ro"}},
        network_mode="none",
    )
    try:
        container.start()
        proof = DispatchProof(engine, container.id, environment)
        (gate,) = proof.gates({"tp_size": 1}, tmp_path)
        assert DispatchProof(engine, container.id, {}).gates(None, tmp_path) == ()
    finally:
        container.remove(force=True)
    assert gate.verdict is Verdict.FAIL
    assert "no CUDA device" in gate.checks[0].seen
    assert len(gate.evidence) == 1
