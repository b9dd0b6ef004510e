"""What is refused before anything is built, for the real stacks of this checkout."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.release_examples import (
    CPU,
    DIGEST,
    KEY,
    NOW,
    OTHER_DIGEST,
    TRUST,
    ago,
    build_run,
    gate_run,
    gpu_hardware,
    signed,
    waiver,
)
from tooling.attest.hardware import Device
from tooling.errors import InputError
from tooling.gates.records import Verdict
from tooling.release.errors import ReleaseRefusedError
from tooling.release.evidence import read_directory, write_evidence
from tooling.release.preflight import Prospects, preflight, refuse_if_hopeless, runs_here
from tooling.release.records import ReleasePolicy, State
from tooling.sign.keys import SigningKey
from tooling.stack import load_stack, stack_names

if TYPE_CHECKING:
    from tooling.sign.bundle import Signed

ROOT = Path(__file__).resolve().parents[2]
GATES = ("probe", "correctness", "engine-kits", "log-triage", "throughput")
COMMON = ("correctness", "log-triage", "throughput")
BOOTS = ("boot-1", "boot-2", "boot-3")


def _policy(name: str) -> ReleasePolicy:
    policy = load_stack(name, ROOT).stack.release
    assert policy is not None
    return policy


GPU, LAPTOP = _policy("cu130"), _policy("cpu")


def _runs(**changes: object) -> list[Signed]:
    fields = {"hardware": gpu_hardware(), "boots": BOOTS, **changes}
    return signed(*(gate_run(gate, **fields) for gate in GATES))  # type: ignore[arg-type]


def _refusal(*evidence: Signed, here: object = None) -> ReleaseRefusedError:
    with pytest.raises(ReleaseRefusedError) as caught:
        refuse_if_hopeless("cu130", "", Prospects(GPU, here, tuple(evidence)), NOW)  # type: ignore[arg-type]
    return caught.value


def test_every_stack_says_what_its_release_needs():
    for name in stack_names(ROOT):
        file = load_stack(name, ROOT)
        policy = file.stack.release
        assert policy is not None
        assert policy.device is (Device.CUDA if file.stack.cuda else Device.CPU)
        assert {gate.gate for gate in policy.gates} >= {"inspection", "arguments", *COMMON}


def test_a_gpu_stack_on_a_machine_without_gpus_is_refused_with_what_is_missing():
    error = _refusal()
    missing = [line for line in error.details if line.startswith("[missing]")]
    assert [line.split()[1] for line in missing] == [f"gate:{gate}@rtx-pro-6000-x8:" for gate in GATES]
    here = [line.split()[2] for line in error.details if line.startswith("[made here]")]
    assert here == [
        "provenance:", "gate:inspection:", "gate:arguments:",
        "arch-gates-judged:", "census-not-worse:", "bytes-new:",
    ]  # fmt: skip
    text = "\n".join(error.details)
    assert "compute capability 12.0, driver 580.65.06 or newer and below 600" in text
    assert "blackwell-stacks attest cu130 REGISTRY/cu130@sha256:..." in text
    assert "5 requirements" in error.what


def test_on_the_hardware_that_the_policy_names_nothing_is_hopeless():
    refuse_if_hopeless("cu130", "", Prospects(GPU, gpu_hardware()), NOW)
    _, ours = preflight(Prospects(GPU, gpu_hardware()), NOW)
    assert {f"gate:{gate}@rtx-pro-6000-x8" for gate in GATES} <= ours


def test_evidence_of_the_target_lets_a_machine_without_gpus_go_on():
    refuse_if_hopeless("cu130", "", Prospects(GPU, None, tuple(_runs())), NOW)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hardware": CPU}, "device cpu never stands in for cuda"),
        ({"hardware": gpu_hardware(simulated=True)}, "simulation"),
        ({"hardware": gpu_hardware(hardware_class="rtx-5090-x8")}, "machine of class rtx-5090-x8"),
        ({"hardware": gpu_hardware(driver="570.86.10")}, "older than 580.65.06"),
        ({"hardware": gpu_hardware(driver="610.1")}, "not below 600"),
        ({"ended": ago(days=31), "started": ago(days=32)}, "days old, limit 30"),
        ({"ended": ago(days=-1), "started": ago(hours=1)}, "in the future"),
        ({"verdict": Verdict.FAIL}, "FAIL in the run"),
        ({"verdict": Verdict.NO_BASELINE}, "NO_BASELINE in the run"),
        ({"verdict": Verdict.INCONCLUSIVE}, "INCONCLUSIVE in the run"),
    ],
)
def test_evidence_that_does_not_count_is_named_with_the_reason(changes: dict[str, object], why: str):
    error = _refusal(*_runs(**changes))
    assert sum(why in line for line in error.details) == len(GATES)


def test_one_boot_is_too_few_for_a_comparison():
    error = _refusal(*_runs(boots=("boot-1",)))
    assert [line.split()[1] for line in error.details if line.startswith("[missing]")] == [
        "gate:throughput@rtx-pro-6000-x8:"
    ]


def test_replayed_evidence_of_another_image_does_not_count():
    evidence = (*_runs(digest=OTHER_DIGEST), *signed(build_run(digest=DIGEST)))
    with pytest.raises(ReleaseRefusedError, match="5 requirements"):
        refuse_if_hopeless("cu130", "", Prospects(GPU, None, evidence, digest=DIGEST), NOW)


def test_edited_evidence_is_as_good_as_none(tmp_path: Path):
    for gate in GATES:
        write_evidence(gate_run(gate, hardware=gpu_hardware(), boots=BOOTS), KEY, tmp_path)
    assert len(read_directory(tmp_path, TRUST).signed) == len(GATES)
    path = next(tmp_path.glob("throughput-*"))
    document = json.loads(path.read_text())
    payload = base64.b64decode(document["dsseEnvelope"]["payload"])
    edited = payload.replace(b"3740.0", b"9999.0")
    assert edited != payload
    document["dsseEnvelope"]["payload"] = base64.b64encode(edited).decode()
    path.write_text(json.dumps(document))
    read = read_directory(tmp_path, TRUST)
    assert "changed after it was signed" in read.rejected[0].reason
    missing = [line for line in _refusal(*read.signed).details if line.startswith("[missing]")]
    assert [line.split()[1] for line in missing] == ["gate:throughput@rtx-pro-6000-x8:"]


def test_evidence_of_a_stranger_is_as_good_as_none(tmp_path: Path):
    path = write_evidence(gate_run("throughput", hardware=gpu_hardware()), SigningKey.generate(), tmp_path)
    read = read_directory(path, TRUST)
    assert read.signed == ()
    assert "not trusted" in read.rejected[0].reason


def test_a_waiver_in_force_lets_it_go_on_and_an_expired_one_does_not():
    waivers = tuple(waiver(f"gate:{gate}") for gate in GATES)
    refuse_if_hopeless("cu130", "", Prospects(GPU, None, waivers=waivers), NOW)
    with pytest.raises(ReleaseRefusedError) as caught:
        refuse_if_hopeless("cu130", "", Prospects(GPU, None, waivers=waivers), NOW + timedelta(days=11))
    assert sum("does not count: it expired" in line for line in caught.value.details) == len(GATES)


def test_a_waiver_of_what_nobody_asks_for_is_a_mistake():
    with pytest.raises(InputError, match="gate:needle"):
        refuse_if_hopeless("cu130", "", Prospects(GPU, None, waivers=(waiver("gate:needle"),)), NOW)


def test_a_laptop_makes_all_that_its_stack_asks_for():
    refuse_if_hopeless("cpu", "", Prospects(LAPTOP, CPU), NOW)
    assessment, ours = preflight(Prospects(LAPTOP, CPU), NOW)
    assert {item.requirement for item in assessment.items if item.state is State.MISSING} == ours


def test_a_gate_that_failed_can_run_again_here_and_a_drifted_base_cannot():
    failed = tuple(_runs(verdict=Verdict.FAIL))
    refuse_if_hopeless("cu130", "", Prospects(GPU, gpu_hardware(), failed), NOW)
    drifted = tuple(signed(build_run(drifted=("libc6: 1 -> 2",))))
    with pytest.raises(ReleaseRefusedError) as caught:
        refuse_if_hopeless("cu130", "", Prospects(GPU, gpu_hardware(), drifted), NOW)
    assert any(line.startswith("[failed] base-not-drifted") for line in caught.value.details)
    refuse_if_hopeless("cpu", "", Prospects(LAPTOP, CPU, drifted), NOW)


def test_where_gates_may_run():
    assert runs_here(GPU, gpu_hardware())
    assert not runs_here(GPU, None)
    assert not runs_here(GPU, CPU)
    assert not runs_here(GPU, gpu_hardware(driver="570.1"))
    assert runs_here(LAPTOP, CPU)
