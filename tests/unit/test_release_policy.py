from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.release_examples import (
    CPU,
    CPU_POLICY,
    DIGEST,
    FACTS,
    GPU_POLICY,
    NOW,
    OTHER_DIGEST,
    ago,
    build_run,
    gate_run,
    gpu_hardware,
    signed,
    waiver,
)
from tooling.attest.hardware import Device, Gpu, Hardware
from tooling.attest.statement import Statement
from tooling.errors import InputError
from tooling.gates.records import SIMULATION, Verdict
from tooling.release.eligibility import version
from tooling.release.policy import assess
from tooling.release.records import (
    Assessment,
    GateRequirement,
    Place,
    ReleaseFacts,
    ReleasePolicy,
    State,
    Status,
    Waiver,
)


def _assess(
    *statements: Statement,
    policy: ReleasePolicy = CPU_POLICY,
    facts: ReleaseFacts = FACTS,
    waivers: tuple[Waiver, ...] = (),
    later: timedelta = timedelta(0),
) -> Assessment:
    return assess(policy, DIGEST, signed(*statements), facts, waivers=waivers, now=NOW + later)


def _item(assessment: Assessment, requirement: str) -> tuple[State, str]:
    return next((item.state, item.text) for item in assessment.items if item.requirement == requirement)


GPU_RUNS = (
    build_run(),
    gate_run("census", hardware=CPU, boots=()),
    gate_run("correctness", hardware=gpu_hardware()),
    gate_run("throughput", hardware=gpu_hardware()),
)


def test_a_built_image_whose_gates_passed_on_the_target_is_qualified():
    cpu = _assess(build_run(), gate_run())
    assert (cpu.status, cpu.satisfied) == (Status.QUALIFIED, True)
    gpu = _assess(*GPU_RUNS, policy=GPU_POLICY)
    assert (gpu.status, gpu.satisfied) == (Status.QUALIFIED, True)
    assert gpu.hardware == ("8x NVIDIA RTX PRO 6000 Blackwell (12.0), driver 580.95.05",)


def test_without_evidence_every_requirement_is_on_the_list():
    found = _assess(policy=GPU_POLICY, facts=ReleaseFacts())
    assert found.status is Status.UNTESTED
    assert [(item.requirement, item.state) for item in found.items] == [
        ("provenance", State.MISSING),
        ("gate:census", State.MISSING),
        ("gate:correctness", State.MISSING),
        ("gate:throughput@rtx-pro-6000-x8", State.MISSING),
        ("arch-gates-judged", State.MISSING),
    ]
    assert all(item.to_do for item in found.items)


def test_built_and_inspected_and_not_run_is_source_qualified_and_no_release():
    found = _assess(*GPU_RUNS[:2], policy=GPU_POLICY)
    assert (found.status, found.satisfied) == (Status.SOURCE_QUALIFIED, False)


def test_evidence_of_the_cpu_never_stands_in_for_a_gpu():
    found = _assess(*GPU_RUNS[:2], gate_run("correctness", hardware=CPU), policy=GPU_POLICY)
    state, text = _item(found, "gate:correctness")
    assert state is State.MISSING
    assert "device cpu never stands in for cuda" in text


def _other_gpu(name: str, capability: str) -> Hardware:
    return gpu_hardware(gpus=(Gpu(name=name, compute_capability=capability, memory_bytes=1),))


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        ({"hardware": _other_gpu("NVIDIA H200", "9.0")}, "compute capability 9.0, not 12.0"),
        ({"hardware": gpu_hardware(simulated=True)}, "a simulation played the hardware"),
        ({"hardware": gpu_hardware(), "limitations": (SIMULATION,)}, "a simulation played the hardware"),
        ({"hardware": gpu_hardware(driver="570.86.10")}, "older than 580.65.06"),
        ({"hardware": gpu_hardware(driver="600.10")}, "not below 600"),
        ({"hardware": gpu_hardware(driver="unknown")}, "is no version"),
        (
            {"hardware": gpu_hardware(), "ended": ago(days=40), "started": ago(days=41)},
            "40.0 days old, limit 30",
        ),
        ({"hardware": gpu_hardware(), "ended": ago(hours=-1)}, "in the future: a clock is wrong"),
        ({"hardware": gpu_hardware(), "started": ago(hours=1), "ended": ago(hours=2)}, "ended before it began"),
        ({"hardware": gpu_hardware(), "ended": "yesterday"}, "cannot be read"),
        ({"hardware": gpu_hardware(), "ended": "2026-11-29T11:00:00"}, "no time zone"),
    ],
)
def test_runs_that_do_not_count_say_why(run: dict[str, Any], reason: str):
    found = _assess(build_run(), gate_run("correctness", **run), policy=GPU_POLICY)
    state, text = _item(found, "gate:correctness")
    assert state is State.MISSING
    assert reason in text


def test_a_small_clock_skew_is_forgiven():
    assert _assess(build_run(), gate_run(ended=ago(minutes=-4))).satisfied
    assert not _assess(build_run(), gate_run(ended=ago(minutes=-6))).satisfied


def test_every_named_class_of_machines_needs_its_own_run():
    both = GateRequirement(gate="throughput", hardware_classes=("rtx-pro-6000-x8", "rtx-5090-x2"))
    policy = GPU_POLICY.model_copy(update={"gates": (both,)})
    found = _assess(build_run(), gate_run("throughput", hardware=gpu_hardware()), policy=policy)
    assert _item(found, "gate:throughput@rtx-pro-6000-x8")[0] is State.MET
    assert _item(found, "gate:throughput@rtx-5090-x2")[0] is State.MISSING


@pytest.mark.parametrize(
    ("requirement", "reason"),
    [
        ({"configuration_sha256": "0" * 64}, "it was told other things"),
        ({"checks": ("answers", "needle")}, "it lacks the checks needle"),
        ({"minimum_boots": 2}, "it covers 1 boots, not 2"),
        ({"max_age_days": 0.01}, "days old, limit 0.01"),
    ],
)
def test_a_gate_that_did_less_than_was_asked_does_not_count(requirement: dict[str, Any], reason: str):
    policy = CPU_POLICY.model_copy(update={"gates": (GateRequirement(gate="correctness", **requirement),)})
    state, text = _item(_assess(build_run(), gate_run(), policy=policy), "gate:correctness")
    assert state is State.MISSING
    assert reason in text


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.NO_BASELINE])
def test_everything_but_a_pass_is_a_failure(verdict: Verdict):
    found = _assess(build_run(), gate_run(verdict=verdict))
    assert _item(found, "gate:correctness")[0] is State.FAILED
    assert not found.satisfied


def test_an_old_pass_does_not_hide_a_later_failure_and_a_later_pass_shows_the_earlier_failure():
    early_pass, late_fail = (
        gate_run(ended=ago(minutes=50)),
        gate_run(verdict=Verdict.FAIL, ended=ago(minutes=5)),
    )
    assert not _assess(build_run(), early_pass, late_fail).satisfied
    late_pass = gate_run(ended=ago(minutes=1))
    found = _assess(build_run(), late_fail, late_pass)
    assert found.satisfied
    assert any("an earlier run" in line and "FAIL" in line for line in found.limitations)


def test_evidence_about_another_image_is_not_counted():
    found = _assess(build_run(digest=OTHER_DIGEST), gate_run(digest=OTHER_DIGEST))
    assert {item.state for item in found.items if item.requirement != "arch-gates-judged"} == {State.MISSING}


def test_a_drifted_base_is_refused_unless_the_policy_allows_it():
    found = _assess(build_run(drifted=("libc6 2.36-9+deb12u10",)), gate_run())
    assert _item(found, "base-not-drifted")[0] is State.FAILED
    assert "libc6" in _item(found, "base-not-drifted")[1]
    allowed = CPU_POLICY.model_copy(update={"allow_drifted_base": True})
    assert _assess(build_run(drifted=("libc6",)), gate_run(), policy=allowed).satisfied


@pytest.mark.parametrize(
    ("facts", "requirement", "state"),
    [
        ({"unjudged_arch_gates": None}, "arch-gates-judged", State.MISSING),
        ({"unjudged_arch_gates": ("fa3.py:10 is_sm90",)}, "arch-gates-judged", State.FAILED),
        ({"previous": OTHER_DIGEST, "census_worse": None}, "census-not-worse", State.MISSING),
        ({"previous": OTHER_DIGEST, "census_worse": ("x.so lost sm_120",)}, "census-not-worse", State.FAILED),
        ({"previous": OTHER_DIGEST, "census_worse": ()}, "census-not-worse", State.MET),
        ({"previous": OTHER_DIGEST, "bytes_new": None}, "bytes-new", State.MISSING),
        ({"previous": OTHER_DIGEST, "bytes_new": 1001}, "bytes-new", State.FAILED),
        ({"previous": OTHER_DIGEST, "bytes_new": 1000}, "bytes-new", State.MET),
    ],
)
def test_what_nobody_looked_at_is_missing_and_what_is_bad_fails(
    facts: dict[str, Any], requirement: str, state: State
):
    policy = CPU_POLICY.model_copy(update={"bytes_new_max": 1000})
    found = _assess(
        build_run(), gate_run(), policy=policy, facts=ReleaseFacts(**{"unjudged_arch_gates": (), **facts})
    )
    assert _item(found, requirement)[0] is state


def test_a_waiver_lets_a_release_exist_and_proves_nothing():
    missing = waiver("gate:throughput")
    found = _assess(*GPU_RUNS[:3], policy=GPU_POLICY, waivers=(missing,))
    assert found.satisfied
    assert found.status is Status.SOURCE_QUALIFIED
    state, text = _item(found, "gate:throughput@rtx-pro-6000-x8")
    assert state is State.WAIVED
    assert "A. Releaser" in text
    assert missing.reason in text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"expires": ago(minutes=1)}, "it expired on"),
        ({"expires": NOW.isoformat()}, "it expired on"),
        ({"dated": ago(days=-1)}, "in the future"),
        ({"dated": ago(days=80), "expires": ago(days=-20)}, "lives longer than 90 days"),
    ],
)
def test_a_waiver_that_is_not_in_force_does_not_count_and_says_why(changes: dict[str, Any], reason: str):
    found = _assess(build_run(), waivers=(waiver("gate:correctness", **changes),))
    state, text = _item(found, "gate:correctness")
    assert state is State.MISSING
    assert reason in text


def test_nobody_can_waive_how_an_image_was_built():
    found = _assess(gate_run(), waivers=(waiver("provenance"),))
    assert _item(found, "provenance")[0] is State.MISSING
    assert "cannot be waived" in _item(found, "provenance")[1]
    assert found.status is Status.UNTESTED


def test_a_waiver_for_nothing_is_an_error_and_one_that_is_not_needed_is_shown():
    with pytest.raises(InputError, match="does not ask for"):
        _assess(build_run(), gate_run(), waivers=(waiver("gate:corectness"),))
    found = _assess(build_run(), gate_run(), waivers=(waiver("gate:correctness"),))
    assert found.status is Status.QUALIFIED
    assert any("not needed" in line for line in found.limitations)


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": ""},
        {"by": ""},
        {"expires": ago(days=2)},
        {"expires": "next week"},
        {"dated": "2026-11-28T00:00:00"},
    ],
)
def test_a_waiver_without_name_reason_or_dates_cannot_be_written(changes: dict[str, Any]):
    with pytest.raises(ValidationError):
        waiver("gate:correctness", **changes)


def test_limitations_of_the_evidence_are_shown():
    found = _assess(build_run(), gate_run(limitations=("no tool calls were tried",)))
    assert found.limitations == ("correctness: no tool calls were tried",)


@pytest.mark.parametrize(
    "fields",
    [
        {"device": Device.CPU, "gates": ()},
        {"device": Device.CUDA, "gates": (GateRequirement(gate="x"),)},
        {"device": Device.CPU, "gates": (GateRequirement(gate="x"), GateRequirement(gate="x"))},
        {"device": Device.CPU, "gates": (GateRequirement(gate="x"),), "driver_min": "new"},
        {"device": Device.CPU, "gates": (GateRequirement(gate="x"),), "surprise": 1},
    ],
)
def test_a_policy_that_asks_for_nothing_or_nonsense_is_refused(fields: dict[str, Any]):
    with pytest.raises(ValidationError):
        ReleasePolicy(**fields)


def test_a_policy_of_inspections_alone_never_qualifies():
    policy = CPU_POLICY.model_copy(update={"gates": (GateRequirement(gate="census", place=Place.IMAGE),)})
    assert _assess(build_run(), gate_run("census"), policy=policy).status is Status.SOURCE_QUALIFIED


@pytest.mark.parametrize(
    ("text", "expected"), [("580", (580,)), ("580.0", (580,)), ("580.65.06", (580, 65, 6))]
)
def test_driver_versions_compare_as_numbers(text: str, expected: tuple[int, ...]):
    assert version(text) == expected
    assert version("580.100") > version("580.95.05")
