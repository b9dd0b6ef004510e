"""From what machine, build and gates wrote down to what evidence says."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.probe_examples import document
from tests.unit.release_examples import CPU, DIGEST, NOW, build_run, gate_run, signed
from tests.unit.test_census_rules import library, record
from tooling.archgates.records import Hit, JudgedHit, PackageScan, Pattern, Polarity
from tooling.attest.gate import TestResult
from tooling.attest.hardware import Device
from tooling.attest.inventory import Inventory, inventory, inventory_statement, lost_code, new_unjudged
from tooling.attest.machine import hardware_class, hardware_of
from tooling.attest.provenance import InputKind, Provenance
from tooling.build.record import BuildInputs, BuildRecord
from tooling.errors import CheckError, InputError
from tooling.gates.records import Check, GateResult, Verdict
from tooling.probe.parse import read_document
from tooling.release.builds import build_facts, package_list
from tooling.release.gates import verify_statements
from tooling.release.policy import assess
from tooling.release.records import Enough, GateRequirement, ReleaseFacts, ReleasePolicy, State, Status
from tooling.stack import load_stack

if TYPE_CHECKING:
    from tooling.attest.statement import Statement
    from tooling.probe.records import HostRecord

ROOT = Path(__file__).resolve().parents[2]
TIMES = {"started": "2026-11-29T10:00:00+00:00", "ended": "2026-11-29T11:00:00+00:00"}


def _host(gpus: int = 8, **changed: Any) -> HostRecord:
    return read_document(json.dumps(document(gpus, **changed)), where="test")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["NVIDIA RTX PRO 6000 Blackwell Server Edition"] * 8, "rtx-pro-6000-x8"),
        (["NVIDIA RTX PRO 6000 Blackwell Workstation Edition"] * 4, "rtx-pro-6000-x4"),
        (["NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"], "rtx-pro-6000-x1"),
        (["NVIDIA GeForce RTX 5090"] * 2, "rtx-5090-x2"),
        (
            ["NVIDIA GeForce RTX 5090", "NVIDIA RTX PRO 6000 Blackwell Server Edition"],
            "rtx-5090+rtx-pro-6000-x2",
        ),
        (["NVIDIA H200"], "h200-x1"),
        (["NVIDIA RTX 6000 Ada Generation"] * 8, "rtx-6000-ada-generation-x8"),
    ],
)
def test_the_class_of_a_machine_is_family_and_count(names: list[str], expected: str):
    assert hardware_class(names) == expected


def test_the_machine_of_a_gpu_gate_carries_cards_and_driver():
    found = hardware_of(_host(8), Device.CUDA)
    assert found.hardware_class == "rtx-pro-6000-x8"
    assert len(found.gpus) == 8
    assert found.gpus[0].compute_capability == "12.0"
    assert found.driver


def test_work_of_the_cpu_beside_gpus_is_work_of_the_cpu():
    found = hardware_of(_host(8), Device.CPU)
    assert (found.device, found.gpus, found.hardware_class) == (Device.CPU, (), "cpu")


def test_gpus_that_do_not_say_what_they_are_make_no_evidence():
    with pytest.raises(CheckError, match="cannot be named"):
        hardware_of(_host(0), Device.CUDA)
    host = _host(2)
    blind = host.model_copy(
        update={"gpus": (host.gpus[0], host.gpus[1].model_copy(update={"memory_bytes": None}))}
    )
    with pytest.raises(CheckError, match="cannot be named"):
        hardware_of(blind, Device.CUDA)


def _scan(*gates: tuple[str, int, str, Polarity], package: str = "sglang") -> PackageScan:
    return PackageScan(
        package=package,
        version="0.5.24",
        files=1,
        gates=tuple(
            JudgedHit(
                hit=Hit(path=path, line=line, pattern=Pattern.CAPABILITY_EQUALITY, symbol="", code=code),
                polarity=polarity,
            )
            for path, line, code, polarity in gates
        ),
        markers={},
        skipped=(),
    )


OLD = ("a.py", 10, "major == 10", Polarity.UNJUDGED)


def test_only_gates_that_came_with_this_image_and_nobody_judged_are_new():
    before = inventory(record(library("a.so", "12.0a")), [_scan(OLD)])
    moved = ("a.py", 99, "major == 10", Polarity.UNJUDGED)
    judged = ("b.py", 1, "major == 9", Polarity.CLOSED)
    assert new_unjudged([_scan(moved, judged)], before) == ()
    assert new_unjudged([_scan(moved, ("c.py", 5, "major == 10", Polarity.UNJUDGED))], before) == (
        "sglang 0.5.24: c.py:5 major == 10",
    )
    # A package that was not there before has brought all of its gates.
    assert len(new_unjudged([_scan(OLD, package="newcomer")], before)) == 1
    assert new_unjudged([_scan(OLD)], None) == ()


def test_device_code_that_is_gone_is_listed_by_library():
    before = record(library("a.so", "12.0a*3"), library("b.so", "12.0a"))
    assert lost_code(before, before, ["sm_120"]) == ()
    lost = lost_code(before, record(library("a.so", "9.0*3"), library("b.so", "12.0a")), ["sm_120"])
    assert len(lost) == 1
    assert lost[0].startswith("a.so")
    assert any("b.so" in line for line in lost_code(before, record(library("a.so", "12.0a*3")), ["sm_120"]))


def test_an_inventory_is_read_back_from_its_statement():
    made = inventory(record(library("a.so", "12.0a")), [_scan(OLD)])
    assert inventory_statement(made, image="x/y", digest=DIGEST).read(Inventory) == made


def _build_record(**changed: Any) -> BuildRecord:
    inputs = BuildInputs(
        stack="cu130",
        stack_sha256="1" * 64,
        base={"reference": "base:1", "packages_sha256": "2" * 64},
        base_drift=("libc6: 1 -> 2",),
        lock_sha256="3" * 64,
        dockerfile_sha256="4" * 64,
        context_sha256={"bin/uv": "5" * 64},
        patches={"sglang-0.5.23/0002-x": "6" * 64},
        kernels={"pcie_ipc_comm": "7" * 64},
        epoch=1,
    )
    fields: dict[str, Any] = {
        "tool_version": "0.1.0",
        "inputs": inputs,
        "inputs_sha256": inputs.sha256,
        "image_id": DIGEST,
        "reference": "blackwell-stacks/cu130:1",
        "size_bytes": 1,
        "layers": (),
        "contents": {"packages": [{"name": "torch", "version": "2.9.0"}]},
        "selftest": {},
        "engine": {"engine": "20.10.24"},
        "durations_s": {},
        "log": "",
        **TIMES,
    }
    return BuildRecord(**{**fields, **changed})


def test_provenance_names_every_pinned_input_of_the_build():
    facts = build_facts(_build_record(), load_stack("cu130", ROOT), source_commit="f" * 40)
    provenance = Provenance.of(facts)
    for kind in InputKind:
        assert provenance.inputs(kind), kind
    assert provenance.inputs(InputKind.LOCK)[0].name == "stacks/cu130.lock.txt"
    assert provenance.drifted_packages == ("libc6: 1 -> 2",)
    assert facts.targets == ("sm_120",)


STATUS = "Package: libc6\nStatus: install ok installed\nVersion: 2.36\nArchitecture: amd64\n"


def test_the_bill_has_python_and_distribution_packages_and_is_never_empty():
    packages = package_list(_build_record(), STATUS)
    assert [item.name for item in packages.python] == ["torch"]
    assert [item.name for item in packages.debian] == ["libc6"]
    with pytest.raises(CheckError, match="no Python package"):
        package_list(_build_record(contents={"packages": []}), STATUS)
    with pytest.raises(InputError, match="no installed package"):
        package_list(_build_record(), "")


def _gate(name: str) -> GateResult:
    check = Check(name="x", verdict=Verdict.PASS, seen="right")
    return GateResult(gate=name, verdict=Verdict.PASS, checks=(check,), configuration_sha256="a" * 64, **TIMES)


def _statements(gates: list[str], boots: list[str], image_id: str = DIGEST) -> list[Statement]:
    ran = SimpleNamespace(
        boots=tuple(SimpleNamespace(boot_id=boot, image_id=image_id) for boot in boots),
        gates=tuple(_gate(gate) for gate in gates),
    )
    return verify_statements(ran, image="x/y", image_id=DIGEST, digest=DIGEST, hardware=CPU)  # type: ignore[arg-type]


def test_each_gate_carries_the_boots_that_it_saw():
    gates = ["probe", "arguments", "correctness", "log-triage", "correctness", "log-triage", "throughput"]
    seen = [
        (found.result.gate, found.boot_ids)
        for found in (item.read(TestResult).measured for item in _statements(gates, ["one", "two"]))
    ]
    assert seen == [
        ("probe", ()),
        ("arguments", ()),
        ("correctness", ("one",)),
        ("log-triage", ("one",)),
        ("correctness", ("two",)),
        ("log-triage", ("two",)),
        ("throughput", ("one", "two")),
    ]


def test_a_boot_of_another_image_or_none_makes_no_evidence():
    with pytest.raises(CheckError, match="did not run on this image"):
        _statements(["correctness"], ["one"], image_id="sha256:" + "9" * 64)
    with pytest.raises(CheckError, match="there was no boot"):
        _statements(["correctness"], [])


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        (Verdict.NO_BASELINE, State.MET),
        (Verdict.INCONCLUSIVE, State.MET),
        (Verdict.PASS, State.MET),
        (Verdict.FAIL, State.FAILED),
    ],
)
def test_no_failure_can_be_enough_and_proves_nothing(verdict: Verdict, state: State):
    def decide(*gates: GateRequirement) -> Any:
        policy = ReleasePolicy(device=Device.CPU, gates=gates, arch_gates_judged=False)
        evidence = signed(build_run(), gate_run("throughput", verdict), gate_run("correctness"))
        return assess(policy, DIGEST, evidence, ReleaseFacts(), now=NOW)

    loose = GateRequirement(gate="throughput", enough=Enough.NO_FAILURE)
    alone = decide(loose)
    item = next(item for item in alone.items if item.requirement == "gate:throughput")
    assert item.state is state
    assert alone.status is Status.SOURCE_QUALIFIED
    together = decide(loose, GateRequirement(gate="correctness"))
    assert together.status is Status.QUALIFIED
