"""Memory: what is refused, with which code, and what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.probe_fake.conftest import check
from tooling.gates.records import Verdict
from tooling.probe.records import Health

if TYPE_CHECKING:
    from tests.probe_fake.conftest import Play


def test_out_of_memory_at_the_workspace_is_no_missing_feature(play: Play):
    played = play("gpus 1\nfree-mib 256\n", "--json", "--workspace-mib", "512")
    assert played.code == 1
    assert played.outcomes(rung="create", size_name="granularity", handle="posix_fd") == {"ok"}
    report = played.report()
    assert report.ladders["memory"] is Health.UNUSABLE
    found = check(report, "memory-ladder")
    assert found.verdict is Verdict.FAIL
    assert found.seen == "out of memory at 512 MiB; free at that moment: 256 MiB: not a missing feature"


def test_a_refused_rdma_flag_is_a_fact_and_no_fault(play: Play):
    played = play("gpus 1\nfail cuMemCreate 801 rdma\n", "--json")
    assert played.outcomes(rdma=True, rung="create", handle="posix_fd") == {"error"}
    report = played.report()
    assert report.ladders["memory"] is Health.HEALTHY
    (line,) = [each for each in check(report, "memory-ladder").details if each.startswith("posix_fd")]
    assert line.startswith("posix_fd with the RDMA flag on GPU 0: cuMemCreate NOT_SUPPORTED (801)")


def test_what_another_process_may_not_open_is_a_fault(play: Play):
    played = play("gpus 1\nfail cuIpcOpenMemHandle 801\n", "--json")
    (rung,) = played.rungs(rung="import", route="legacy_ipc")
    assert (rung["call"], rung["code"], rung["log"]) == (
        "cuIpcOpenMemHandle", 801, "fake driver: cuIpcOpenMemHandle answers 801",
    )  # fmt: skip
    assert played.code == 1


def test_a_crash_in_the_driver_is_a_rung_and_the_others_are_kept(play: Play):
    played = play("gpus 2\nmulticast-attribute yes\n", "--json", "--facts-only", "--multicast-create")
    assert played.code == 1
    (rung,) = played.rungs(outcome="crash")
    assert rung["log"].startswith("signal SIGABRT: fake GPU: cuMulticastCreate was called")
