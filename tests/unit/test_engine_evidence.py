"""Runs of the gate chain on a GPU become one record, and the kept record is one of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.engine.evidence import EngineEvidence, evidence_of
from tests.gpu.engine.records import EngineRun, Stage, Status
from tooling.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
KEPT = sorted((ROOT / "stacks" / "evidence").glob("engine-*.json"))
#: Ten loads with all their windows; logs and traces have no place in a record.
_LARGEST = 250_000


def kept() -> EngineEvidence:
    """The record of one GPU, which has every stage of it."""
    return EngineEvidence.model_validate_json((ROOT / "stacks/evidence/engine-h200.json").read_bytes())


def run_of(stages: list[Stage], **more: Any) -> EngineRun:
    """A run on the machine of the kept record."""
    record = kept()
    values: dict[str, Any] = {
        "rehearsal": False,
        "machine": record.machine,
        "environment": record.environment,
        "arguments": record.arguments,
        "stages": tuple(stages),
        "limitations": ("one GPU",),
        "started": "2026-01-01T00:00:00+00:00",
        "ended": "2026-01-01T00:09:00+00:00",
    }
    return EngineRun.model_validate(values | more)


def stage_of(name: str) -> Stage:
    return next(stage for stage in kept().stages if stage.name == name)


SKIPPED = Stage(name="healthy", status=Status.SKIPPED, started_s=0, seconds=0, notes=("9 s are left",))


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_the_kept_record_names_its_hardware_and_what_it_does_not_show(path: Path):
    text = path.read_text(encoding="utf-8")
    record = EngineEvidence.model_validate_json(text)
    assert len(text) < _LARGEST
    assert record.machine.gpus
    assert record.machine.clocks["sm-max"] > 0
    assert {"torch", "sglang", "triton"} <= set(record.machine.packages)
    assert any("SM120" in sentence for sentence in record.limitations)
    for stage in record.stages:
        if stage.status is not Status.AS_EXPECTED:
            assert any(sentence.startswith(f"{stage.name}: ") for sentence in record.limitations), stage.name
        else:
            assert stage.expectations
            assert all(expectation.met for expectation in stage.expectations)


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_the_kept_spreads_are_those_of_its_windows(path: Path):
    record = EngineEvidence.model_validate_json(path.read_bytes())
    stages = [stage for stage in record.stages if stage.throughput]
    assert stages
    again = evidence_of([run_of(list(record.stages))])
    assert again.window_spreads == record.window_spreads
    assert {spread.stage for spread in record.window_spreads} == {stage.name for stage in stages}


def test_there_is_a_kept_record():
    assert KEPT


def test_a_stage_that_ran_counts_more_than_one_that_was_skipped():
    healthy = stage_of("healthy")
    for runs in ([run_of([SKIPPED]), run_of([healthy])], [run_of([healthy]), run_of([SKIPPED])]):
        record = evidence_of(runs, ["nothing else"])
        assert [stage.status for stage in record.stages] == [Status.AS_EXPECTED]
        assert record.limitations == ("one GPU", "nothing else")
        assert len(record.runs) == 2


def test_what_was_skipped_or_missed_becomes_a_limitation():
    record = evidence_of([run_of([stage_of("healthy"), stage_of("held"), stage_of("pruned")])])
    said = " | ".join(record.limitations)
    assert "pruned: not shown, 69 s are left, it needs 80" in said
    assert "held: triage names the memory was not met" in said


def test_the_folder_of_a_checkout_is_not_kept():
    stage = stage_of("healthy").model_copy(update={"notes": ("at /home/x/y/stacks/models/tiny', z", "2", "3")})
    (made,) = evidence_of([run_of([stage])]).stages
    assert made.notes == ("at stacks/models/tiny', z", "2", "3")


def test_what_is_no_evidence_is_refused():
    healthy = [stage_of("healthy")]
    with pytest.raises(InputError, match="no run"):
        evidence_of([])
    for spoiled in ({"rehearsal": True}, {"environment": None}):
        with pytest.raises(InputError, match="rehearsal"):
            evidence_of([run_of(healthy, **spoiled)])
    other = kept().machine.model_copy(update={"driver": "1"})
    with pytest.raises(InputError, match="different machines"):
        evidence_of([run_of(healthy), run_of(healthy, machine=other)])
    with pytest.raises(InputError, match="arguments"):
        evidence_of([run_of(healthy), run_of(healthy, arguments=("--x",))])
    with pytest.raises(ValueError, match="window_spreads"):
        evidence_of([run_of([stage_of("boot")])])


def test_a_clock_that_changes_from_minute_to_minute_is_no_other_machine():
    now = kept().machine.model_copy(update={"clocks": kept().machine.clocks | {"sm": 1980}})
    healthy = [stage_of("healthy")]
    assert len(evidence_of([run_of(healthy), run_of(healthy, machine=now)]).runs) == 2
