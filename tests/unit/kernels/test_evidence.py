"""Runs on a GPU become one record: goals, misses, what was not shown; and what is no run."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tooling.cli import app
from tooling.errors import InputError
from tooling.gates.records import Verdict
from tooling.kernels.evidence import bench_command, evidence_of
from tooling.kernels.records import KernelEvidence

ROOT = Path(__file__).resolve().parents[3]
FIELDS = ["name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit"]
MACHINE = {
    "gpus": {"fields": FIELDS, "values": ["NVIDIA H200, 580.1, 345 MHz, 1980 MHz, 3201 MHz, 700.00 W"]},
    "links": [],
    "torch": "2.11.0",
    "capability": "9.0",
    "time": "2026-01-01T00:00:00Z",
}


def _spread(median: float) -> dict[str, float]:
    return {"median": median, "quartile_1": median, "quartile_3": median, "least": median, "most": median}


def _row(rows: int, ours: float, peer: float, world: int = 4) -> dict[str, object]:
    return {
        "world": world,
        "hidden": 4096,
        "rows": rows,
        "ours": {"push": _spread(ours), "pull": _spread(ours + 1)},
        "ours_again": {"push": _spread(ours)},
        "peers": {"a": _spread(peer + 5), "b": _spread(peer)},
    }


def _topk(columns: int, ours: float, peer: float) -> dict[str, object]:
    names = ("flashinfer", "flashinfer deterministic", "torch.topk alone")
    return {"rows": 1, "columns": columns, "k": 512, "ours": _spread(ours)} | dict.fromkeys(
        names, _spread(peer)
    )


@pytest.fixture
def run() -> dict[str, object]:
    steps = {
        "ranks": {"verdict": "pass", "seconds": 2.0, "found": {"comparisons": 7}},
        "times_w4": {
            "verdict": "pass",
            "found": [_row(64, 3.0, 4.0), _row(128, 3.8, 4.0), _row(512, 9.0, 4.0)],
        },
        "topk_times": {"verdict": "pass", "found": [_topk(65536, 3.0, 4.0), _topk(8192, 3.0, 4.0)]},
        "racecheck": {"verdict": "not run", "why": "no tool"},
    }
    return {"machine": MACHINE, "steps": steps, "limitations": ["one GPU"]}


def test_ratios_goals_and_what_was_not_shown(run):
    found = evidence_of({"a": run})
    assert [(row.shape["rows"], row.ratio, row.goal, row.met) for row in found.all_reduce] == [
        (64, 0.75, 0.75, True),
        (128, 0.95, 0.9, False),
        (512, 2.25, None, True),
    ]
    assert [(row.ratio, row.goal) for row in found.topk] == [(0.75, 0.5), (0.75, 1.0)]
    assert len(found.missed) == 2
    assert found.limitations == ("one GPU", "racecheck: INCONCLUSIVE, no tool")
    assert found.steps["times_w4"].found == {"shapes": 3}
    assert (found.machine.gpus, found.machine.sm_clock_max) == (("NVIDIA H200",), "1980 MHz")


def test_hyper_connections_and_the_triton_kernels_have_goals_of_their_own(run):
    def row(ours: float, **names: object) -> dict[str, object]:
        return {"ours": {"a": _spread(ours)}, "peers": {"b": _spread(4.0)}, **names}

    both = [row(2.0, world=4, hidden=4096, rows=32), row(3.0, world=4, hidden=4096, rows=64)]
    run["steps"]["mhc_times"] = {"verdict": "pass", "found": [row(3.0, world=4, hidden=4096, rows=8), *both]}
    portable = [
        row(4.4, kernel="indexer", rows=1, columns=2048),
        row(1.0, kernel="attention", rows=8, columns=640),
    ]
    run["steps"]["portable_times"] = {"verdict": "pass", "found": portable}
    found = evidence_of({"a": run})
    assert [(one.ratio, one.goal, one.met) for one in found.mhc] == [
        (0.75, 0.7, False),
        (0.5, 0.7, True),
        (0.75, None, True),
    ]
    assert [(one.shape, one.met) for one in found.indexer] == [({"rows": 1, "columns": 2048}, False)]
    assert [one.ratio for one in found.attention] == [0.25]
    assert len(found.missed) == 4


def test_of_a_step_that_ran_twice_the_last_counts(run):
    later = copy.deepcopy(run)
    later["machine"]["time"] = "2026-01-02T00:00:00Z"
    later["steps"] = {"racecheck": {"verdict": "pass", "found": {"rounds": 3}}}
    found = evidence_of({"a": run, "b": later})
    assert found.steps["racecheck"].verdict is Verdict.PASS
    assert found.steps["racecheck"].time == "2026-01-02T00:00:00Z"
    assert found.limitations == ("one GPU",)
    assert len(found.clocks) == 2


def test_a_step_that_was_stopped_shows_its_whole_rows_and_still_failed(run):
    run["steps"]["times_w8"] = {
        "verdict": "fail",
        "why": "stopped after 90 s",
        "rows_until_then": [_row(1, 3.0, 4.0, world=8)],
    }
    found = evidence_of({"run": run})
    (row,) = [one for one in found.all_reduce if one.shape["world"] == 8]
    assert row.ratio == 0.75
    assert "times_w8: FAIL, stopped after 90 s" in found.limitations


def test_gpus_that_are_linked_are_compared_with_the_collective_library(run):
    run["machine"] = MACHINE | {"links": ["\t\x1b[4mGPU0\tGPU1\x1b[0m", "GPU0\t X \tNV18", "", "Legend:"]}
    times = {"push_one_shot": _spread(4.0), "pull_two_shot": _spread(8.0), "NCCL, then a norm": _spread(10.0)}
    row = {"world": 2, "hidden": 4096, "rows": 1, "planned": "push_one_shot", "times": times}
    run["steps"] = {"pair_times": {"verdict": "pass", "found": [row]}}
    found = evidence_of({"a": run})
    (seen,) = found.all_reduce
    assert (seen.ratio, list(seen.peers), seen.goal) == (0.4, ["NCCL, then a norm"], None)
    assert found.machine.links == ("\tGPU0\tGPU1", "GPU0\t X \tNV18")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: run.update(steps={}), "no step"),
        (lambda run: run.pop("machine"), "no run of the kernels"),
        (lambda run: run.update(steps=[1]), "no run of the kernels"),
        (lambda run: run["steps"]["times_w4"]["found"][0].update(ours={}), "cannot be read"),
        (lambda run: run["steps"]["times_w4"]["found"][0]["peers"]["b"].update(median=0), "cannot be read"),
        (lambda run: run.update(limitations=[], steps={"a": {"verdict": "pass"}}), "cannot be read"),
    ],
)
def test_what_is_no_run_is_refused(run, spoil, message):
    spoil(run)
    with pytest.raises(InputError, match=message):
        evidence_of({"a": copy.deepcopy(run)})


def test_runs_of_two_machines_or_none_make_no_record(run):
    other = copy.deepcopy(run)
    other["machine"]["torch"] = "2.12.0"
    with pytest.raises(InputError, match="different machines"):
        evidence_of({"a": run, "b": other})
    with pytest.raises(InputError, match="no run to make a record of"):
        evidence_of({})


def test_the_command_reads_a_saved_run_and_fails_with_a_failed_step(run, tmp_path):
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps(run))
    done = CliRunner().invoke(app, ["bench-kernels", "--from", str(path), "--json"])
    assert done.exit_code == 0
    assert KernelEvidence.model_validate_json(done.stdout) == evidence_of({"a": run})
    run["steps"]["ranks"] = {"verdict": "fail", "why": "exit code 1"}
    path.write_text(json.dumps(run))
    done = CliRunner().invoke(app, ["bench-kernels", "--from", str(path)])
    assert done.exit_code != 0


def test_the_command_that_runs_them_in_an_image():
    argv = bench_command("x:1", "/checkout", "/results", ("--gpus", "2"))
    assert argv[:6] == ["docker", "run", "--rm", "--gpus", "all", "--ipc=host"]
    assert argv[-6:] == ["x:1", "/bench/tests/gpu/kernels/run.py", "--out", "/out", "--gpus", "2"]
    assert "/checkout/images/kernels:/bench/images/kernels:ro" in argv
    with pytest.raises(InputError, match="is no image"):
        bench_command("--privileged", "/checkout", "/results")


def test_the_kept_record_is_one_of_ours_and_names_its_hardware():
    paths = sorted((ROOT / "stacks" / "evidence").glob("kernels-*.json"))
    assert paths
    for path in paths:
        found = KernelEvidence.model_validate_json(path.read_text())
        assert found.all_reduce
        assert found.topk or len(found.machine.gpus) > 1
        assert any("SM120" in limitation for limitation in found.limitations)
        # A table that a missing peer or the clock cut short is named; a wrong result is never kept.
        failed = {name for name, step in found.steps.items() if step.verdict is Verdict.FAIL}
        assert all("times" in name for name in failed), path.name
        assert all(any(line.startswith(f"{name}: FAIL") for line in found.limitations) for name in failed)
