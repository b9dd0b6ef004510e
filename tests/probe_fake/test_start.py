"""Hosts on which CUDA does not start or is old, and the marks of a simulation."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.probe_fake.conftest import check
from tests.unit.release_examples import DIGEST, FACTS, GPU_POLICY, NOW, build_run, gpu_hardware, signed
from tooling.attest.gate import gate_statement
from tooling.gates.records import SIMULATION, Verdict
from tooling.probe.parse import read_document
from tooling.release.policy import assess
from tooling.release.records import GateRequirement

if TYPE_CHECKING:
    from tests.probe_fake.conftest import Play


def test_an_lxc_container_without_the_uvm_node(play: Play):
    played = play("gpus 1\nfail cuInit 999\n", "--json")
    assert played.code == 1
    assert played.document["devices"] == []
    report = played.report(
        system={"container": "lxc", "hypervisor_flag": False, "kernel": "6.8.0", "proc_version": "Linux"},
        nvidia={
            "cuda": {"rc": 0, "out": '{"init": 999}'},
            "device_nodes": {"/dev/nvidiactl": True, "/dev/nvidia0": True},
        },
    )
    assert report.host.virtualisation == "lxc"
    found = check(report, "cuda-init")
    assert found.verdict is Verdict.FAIL
    assert found.seen.startswith("/dev/nvidia-uvm is missing or may not be opened")
    assert "in LXC add the node and its cgroup rule" in found.details[0]
    assert SIMULATION in report.result.limitations


def test_a_driver_that_is_older_than_cards_and_image(play: Play):
    played = play("gpus 1\ndriver 550.54.15\ncuda 12040\n", "--json", "--facts-only")
    report = played.report(image={"cuda": "13.0", "targets": {"required": ["sm_120"]}})
    assert report.host.cuda_api == 12040
    seen = {each.seen for each in report.result.checks if each.name == "driver-version"}
    too_old = "driver 550.54.15 is too old"
    offers = "it offers CUDA 12.4 (12040)"
    assert seen == {
        f"{too_old}: CUDA 13.0 of the image needs 580.65.06 or newer; {offers}",
        f"{too_old}: compute capability 12.0 needs 570.26 or newer; {offers}",
    }


def test_a_driver_without_the_newer_functions_is_asked_nothing_that_ends_the_probe(play: Play):
    played = play("gpus 1\ncuda 11080\nfail cuMemMap 999\n", "--json")
    (device,) = played.document["devices"]
    assert device["multicast"] == {"call": "cuMulticastGetGranularity", "code": 500, "name": "NOT_FOUND"}
    (rung, *_) = played.rungs(rung="map", handle="none")
    assert (rung["code"], rung["log"]) == (999, "")  # there is no log to ask


def test_without_nvml_the_driver_is_still_asked_and_the_gap_is_named(play: Play):
    played = play("gpus 1\nfail nvmlInitWithFlags 4\n", "--json", "--facts-only")
    assert played.document["nvml"]["error"]["code"] == 4
    assert [device["index"] for device in played.document["devices"]] == [0]
    assert played.report().host.simulated


def test_the_probe_s_own_table_and_the_doctor_s_document_say_simulation(play: Play):
    table = play("gpus 1\n", "--facts-only")
    assert table.out.startswith("SIMULATION: ")
    host = read_document(play("gpus 1\n", program="probe_collector.py").out, where="simulation")
    assert host.simulated
    assert host.cuda_library.endswith("/libcuda.so.1")


def test_a_word_that_no_scenario_has_ends_the_probe_loudly(play: Play):
    played = play("gpuz 8\n", "--json", "--facts-only")
    assert played.code == -signal.SIGABRT
    assert "fake GPU: no such key: gpuz" in played.err


def test_a_good_result_of_a_simulation_never_counts_in_a_release(play: Play):
    played = play("gpus 1\n", "--json", "--facts-only")
    result = played.report().result.model_copy(update={"started": NOW.isoformat(), "ended": NOW.isoformat()})
    policy = GPU_POLICY.model_copy(update={"gates": (GateRequirement(gate="probe"),)})

    def state(limitations: tuple[str, ...], verdict: Verdict = Verdict.PASS) -> tuple[str, str]:
        passed = tuple(each for each in result.checks if each.verdict is verdict)
        good = result.model_copy(update={"limitations": limitations, "checks": passed, "verdict": verdict})
        run = gate_statement(
            good,
            image="test/image",
            digest=DIGEST,
            hardware=gpu_hardware(),
            tool_version="0",
            boot_ids=("boot",),
        )
        found = assess(policy, DIGEST, signed(build_run(), run), FACTS, now=NOW)
        return next((item.state.value, item.text) for item in found.items if item.requirement == "gate:probe")

    assert state(())[0] == "met"
    assert state(result.limitations)[0] == "missing"
    assert "a simulation played the hardware" in state(result.limitations)[1]
