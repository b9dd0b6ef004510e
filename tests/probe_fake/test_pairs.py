"""Pairs: what is granted, and what really arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.probe_fake.conftest import check
from tooling.gates.records import Verdict
from tooling.probe.records import Health, Urgency

if TYPE_CHECKING:
    from tests.probe_fake.conftest import Play, Played

PAIRS = ("--json", "--no-memory", "--no-collective")
VIRTUAL = {"hypervisor_flag": True, "proc_version": "Linux", "kernel": "6.8.0"}


def all_reduce(played: Played) -> tuple[Urgency, str]:
    (found,) = [each for each in played.report().recommendations if each.topic == "all-reduce"]
    return found.urgency, found.advice


def test_a_virtual_machine_without_peer_access_copies_through_the_host(play: Play):
    played = play("peer-access no\nnuma-nodes 1\n", *PAIRS)
    assert played.code == 0
    assert played.outcomes(rung="can-access") == {"unusable"}
    assert played.outcomes(rung="copy") == {"ok"}
    assert not played.rungs(rung="push")
    assert not played.rungs(rung="speed")
    report = played.report(system=VIRTUAL)
    assert report.host.virtualisation.startswith("vm")
    assert report.ladders["pair"] is Health.UNUSABLE
    assert check(report, "peer-access").seen.endswith("staged copies are right")
    urgency, advice = all_reduce(played)
    assert urgency is Urgency.SHOULD
    assert advice.startswith("NCCL over shared memory (NCCL_P2P_DISABLE=1)")


@pytest.mark.parametrize(
    ("scenario", "seen"),
    [
        ("copy corrupt", "the owner of the memory does not find what its peer wrote"),
        ("copy lost\nwindow lost", "the owner of the memory does not find what its peer wrote"),
        ("window corrupt", "the owner of the memory does not find what its peer wrote"),
        ("window mirror", "peer writes land in a mirror that only the writer sees"),
    ],
    ids=["copies-corrupt", "granted-and-nothing-moves", "stores-corrupt", "private-mirror"],
)
def test_wrong_bytes_are_found_by_their_owner(play: Play, scenario: str, seen: str):
    played = play(scenario, *PAIRS)
    assert played.code == 1
    report = played.report(system=VIRTUAL)
    assert report.ladders["pair"] is Health.WRONG_DATA
    found = check(report, "peer-access")
    assert found.verdict is Verdict.FAIL
    assert found.seen.startswith(seen)
    assert "in a virtual machine the peer path is not to be trusted" in found.seen
    assert all_reduce(played)[0] is Urgency.MUST
    assert "NCCL_P2P_DISABLE=1" in all_reduce(played)[1]
    assert not played.rungs(rung="speed")


def test_a_granted_path_that_the_driver_then_refuses_is_unusable_with_its_code(play: Play):
    played = play("fail cuCtxEnablePeerAccess 217\n", *PAIRS)
    assert played.code == 1
    (rung, _) = played.rungs(rung="enable")
    assert (rung["call"], rung["code"], rung["name"]) == (
        "cuCtxEnablePeerAccess", 217, "PEER_ACCESS_UNSUPPORTED",
    )  # fmt: skip
    assert check(played.report(), "peer-access").verdict is Verdict.FAIL


def test_a_copy_that_never_ends_is_a_hang_and_does_not_stop_the_rest(play: Play):
    played = play("hang cuMemcpyPeer\n", *PAIRS, "--limit", "3")
    assert played.code == 1
    (rung,) = played.rungs(outcome="hang", rung="copy")
    assert (rung["size"], rung["log"]) == (4096, "no answer within 3 s")
    assert played.outcomes(rung="enable") == {"ok"}
    report = played.report()
    assert report.ladders["pair"] is Health.HANG
    assert "the bytes do not arrive: the transfer does not end" in check(report, "peer-access").seen
    assert all_reduce(played)[0] is Urgency.MUST
    assert check(report, "rest").verdict is Verdict.PASS
