"""One record of the runs on a GPU: `python -m tests.gpu.engine.evidence run.json... > engine-<GPU>.json`.

It is kept below `stacks/evidence`. A run has a budget and leaves out what did not fit; several runs of one
machine and environment make one record.
"""

from __future__ import annotations

import argparse
import re
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from tests.gpu.engine.assemble import Assembled
from tests.gpu.engine.records import EngineRun, Machine, Stage, Status
from tooling.console import print_json
from tooling.errors import InputError
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.gates.throughput.plan import Throughput

#: Lines for people that a stage keeps, and how long each may be: they quote logs.
_NOTES, _NOTE_CHARS = 12, 400
#: Where a checkout lay, before a path within it.
_CHECKOUT = re.compile(r"/(?:[\w.-]+/)+(?=(?:stacks|tests|tooling)/)")


class WindowSpread(Record):
    """How far equal windows of one boot were apart: the A/A spread within it.

    Attributes:
        stage: Where it was measured.
        engine: Which boot.
        concurrency: Requests in flight.
        tokens_per_s: Output tokens a second of each window, in order.
        range_percent: (largest - smallest) / mean, %.
        deviation_percent: Standard deviation over mean, %.
    """

    stage: str
    engine: str
    concurrency: int
    tokens_per_s: tuple[float, ...]
    range_percent: float
    deviation_percent: float


class EngineEvidence(Record):
    """What one kind of machine showed in one or more runs.

    Attributes:
        schema_version: Version of this record's shape.
        machine: Where.
        environment: What was carried.
        arguments: Serve arguments of the healthy engine.
        runs: Begin and end of each run, ISO 8601, UTC.
        stages: Each once: the last of the runs that did not skip it.
        window_spreads: A/A spread within each boot that was measured.
        limitations: What is not shown, one sentence each.
    """

    schema_version: int = 1
    machine: Machine
    environment: Assembled
    arguments: tuple[str, ...]
    runs: tuple[tuple[str, str], ...] = Field(min_length=1)
    stages: tuple[Stage, ...] = Field(min_length=1)
    window_spreads: tuple[WindowSpread, ...] = Field(min_length=1)
    limitations: tuple[str, ...] = Field(min_length=1)


def window_spreads(stage: str, engine: str, measured: Throughput) -> tuple[WindowSpread, ...]:
    """Spread of the windows of one boot, by concurrency; a level with one window has none."""
    found = []
    for concurrency in measured.plan.concurrencies:
        rates = [window.tokens_per_s for window in measured.at(concurrency)]
        if len(rates) > 1 and (mean := statistics.fmean(rates)) > 0:
            found.append(
                WindowSpread(
                    stage=stage,
                    engine=engine,
                    concurrency=concurrency,
                    tokens_per_s=tuple(round(rate, 1) for rate in rates),
                    range_percent=round(100 * (max(rates) - min(rates)) / mean, 1),
                    deviation_percent=round(100 * statistics.stdev(rates) / mean, 1),
                )
            )
    return tuple(found)


def evidence_of(runs: Sequence[EngineRun], limitations: Sequence[str] = ()) -> EngineEvidence:
    """Several runs as one record.

    Args:
        runs: In the order in which they ran.
        limitations: Sentences that no run could know, e.g. of a stage that was ended before its record.

    Raises:
        InputError: There is no run, it was a rehearsal, or machines, environments or arguments differ.
    """
    if not runs:
        raise InputError("no run to make a record of", fix="name run.json of one or more runs")
    if any(run.rehearsal or run.environment is None for run in runs):
        raise InputError("a rehearsal, or a run of an unknown environment, is no evidence", fix="leave it out")
    first = runs[0]
    for run in runs[1:]:
        for name in ("environment", "arguments"):
            if getattr(run, name) != getattr(first, name):
                raise InputError(f"the runs differ in their {name}", fix="make one record of each")
        if _identity(run.machine) != _identity(first.machine):
            raise InputError("the runs are of different machines", fix="make one record of each")
    stages: dict[str, Stage] = {}
    for stage in (stage for run in runs for stage in run.stages):
        if stage.status is not Status.SKIPPED or stage.name not in stages:
            stages[stage.name] = _compact(stage)
    skipped = [
        f"{stage.name}: not shown, {stage.notes[0] if stage.notes else 'skipped'}"
        for stage in stages.values()
        if stage.status is Status.SKIPPED
    ]
    missed = [
        f"{stage.name}: {expectation.what} was not met: {expectation.seen}"
        for stage in stages.values()
        for expectation in stage.expectations
        if not expectation.met
    ]
    spreads = [
        spread
        for stage in stages.values()
        for engine, measured in stage.throughput.items()
        for spread in window_spreads(stage.name, engine, measured)
    ]
    said = [sentence for run in runs for sentence in run.limitations]
    assert first.environment is not None
    return EngineEvidence(
        machine=first.machine,
        environment=first.environment,
        arguments=first.arguments,
        runs=tuple((run.started, run.ended) for run in runs),
        stages=tuple(stages.values()),
        window_spreads=tuple(spreads),
        limitations=tuple(dict.fromkeys([*said, *skipped, *missed, *limitations])),
    )


def _identity(machine: Machine) -> Machine:
    """The machine without what changes from minute to minute."""
    steady = {name: value for name, value in machine.clocks.items() if name.endswith("-max")}
    return machine.model_copy(update={"clocks": steady})


def _compact(stage: Stage) -> Stage:
    """The stage with short notes, and without the folder that the run was made in."""
    text = _CHECKOUT.sub("", stage.model_dump_json())
    plain = Stage.model_validate_json(text)
    lines = [line.strip()[:_NOTE_CHARS] for note in plain.notes for line in note.splitlines()]
    return plain.model_copy(update={"notes": tuple(lines[:_NOTES])})


def main() -> int:
    """Print the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run.json of each run, in order")
    parser.add_argument("--limitation", action="append", default=[], help="a sentence; may be repeated")
    options = parser.parse_args()
    runs = [EngineRun.model_validate_json(path.read_bytes()) for path in options.runs]
    print_json(evidence_of(runs, options.limitation))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
