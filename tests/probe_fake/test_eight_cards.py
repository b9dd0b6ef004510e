"""The host that this project is for: eight PCIe cards on two NUMA nodes. One run, looked at from all sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.probe_fake.conftest import check
from tooling.gates.records import SIMULATION, Verdict
from tooling.probe.fingerprint import fingerprint
from tooling.probe.records import Health

if TYPE_CHECKING:
    from tests.probe_fake.conftest import Play, Played

#: The attribute says that there is multicast, so that a probe that believed it would be tempted.
HOST = """
gpus 8
numa-nodes 2
power-limit-w 450
fabric-attribute yes
multicast-attribute yes
fail cuMemCreate 800 fabric
"""


@pytest.fixture(scope="module")
def host(play: Play) -> Played:
    return play(HOST, "--json", "--no-collective")


def test_every_memory_rung_of_every_card_is_good_and_fabric_is_refused_with_its_code(host: Played):
    assert host.code == 0
    for route in ("scm_rights", "pidfd", "legacy_ipc"):
        rungs = host.rungs(ladder="memory", rung="import", route=route)
        assert {rung["device"] for rung in rungs} == set(range(8))
        assert {rung["outcome"] for rung in rungs} == {"ok"}
    fabric = host.rungs(ladder="memory", rung="create", handle="fabric")
    assert {(rung["code"], rung["name"]) for rung in fabric} == {(800, "NOT_PERMITTED")}
    assert {rung["log"] for rung in fabric} == {"fake driver: cuMemCreate answers 800"}
    report = host.report()
    assert report.ladders["memory"] is Health.HEALTHY
    details = "\n".join(check(report, "memory-ladder").details)
    assert "fabric on GPU 0,1,2,3,4,5,6,7: cuMemCreate NOT_PERMITTED (800), rightly so" in details
    assert "whatever the attribute says" in details


def test_all_56_directions_are_proved_on_the_owner_s_side_and_timed(host: Played):
    report = host.report()
    assert report.ladders["pair"] is Health.HEALTHY
    assert check(report, "peer-access").seen.startswith("56 directions proved")
    directions = {(rung["device"], rung["peer"]) for rung in host.rungs(rung="speed")}
    assert len(directions) == 56
    assert host.outcomes(rung="all-at-once") == {"ok"}


def test_multicast_is_asked_for_its_granularity_and_never_made(host: Played):
    assert {device["multicast"]["granularity"] for device in host.document["devices"]} == {2 << 20}
    assert not any("created" in device["multicast"] for device in host.document["devices"])
    assert not host.outcomes() & {"crash", "hang"}


def test_what_it_recommends_for_such_a_host(host: Played):
    advice = {each.topic: each for each in host.report().recommendations if each.topic != "container flags"}
    assert advice["all-reduce"].advice.startswith("one-shot over CUDA IPC up to about 64 KiB, NCCL above")
    assert advice["all-reduce"].evidence == "links NODE, SYS, pair ladder healthy"
    assert "up to TP4" in advice["GPU groups"].advice
    assert advice["GPU groups"].evidence == "node 0: GPUs 0,1,2,3; node 1: GPUs 4,5,6,7"
    assert advice["push or pull"].evidence.startswith("median over 56 directions: push ")
    assert advice["host settings"].evidence.endswith("450 W of 600 W")


def test_the_record_says_that_it_is_a_simulation_and_has_a_fingerprint_of_its_own(host: Played):
    report = host.report()
    assert report.host.simulated
    assert SIMULATION in report.result.limitations
    assert report.fingerprint_sha256 != fingerprint(report.host.model_copy(update={"simulated": False}))
    assert check(report, "driver-version").verdict is Verdict.PASS
    assert {gpu.compute_capability for gpu in report.host.gpus} == {"12.0"}
