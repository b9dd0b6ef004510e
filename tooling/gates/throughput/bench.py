"""How true is what the clients report, and what does it cost? Each against the mock's own notes, one table."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING

from pydantic import Field

from tooling.errors import CommandError, InputError
from tooling.gates.host import processor_name
from tooling.gates.throughput.mock import MockPlan, Truth
from tooling.gates.throughput.mock_process import running_mock
from tooling.gates.throughput.pacing import Pace
from tooling.records import Record, now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tooling.gates.throughput.contenders import Contender


class BenchPlan(Record):
    """What is compared.

    Attributes:
        concurrencies: Closed-loop levels.
        repeats: Runs of each client at each level, interleaved with the other clients.
        rounds: Requests of each stream.
        output_tokens: Tokens of each answer.
        pace: The mock's pace.
    """

    concurrencies: tuple[int, ...] = Field(default=(1, 64, 256, 1024), min_length=1)
    repeats: int = Field(default=3, ge=1)
    rounds: int = Field(default=4, ge=1)
    output_tokens: int = Field(default=64, ge=2)
    pace: Pace = Pace()


class Reading(Record):
    """What a client reports of one run: tokens a second, medians in milliseconds, processor seconds."""

    completed: int
    tokens_per_s: float
    ttft_ms: float
    tpot_ms: float
    cpu_s: float


class Run(Record):
    """One run: the client's report beside the truth."""

    client: str
    concurrency: int
    requested: int
    reported: Reading
    true_tokens_per_s: float
    true_ttft_ms: float
    true_tpot_ms: float
    mock_speed: float

    @property
    def rate_error(self) -> float:
        """Reported rate over the true one, minus 1."""
        return self.reported.tokens_per_s / self.true_tokens_per_s - 1 if self.true_tokens_per_s else -1.0


class Row(Record):
    """All runs of one client at one level; medians, and the spread of the repeats.

    Attributes:
        client: Name.
        concurrency: Level.
        runs: Repeats that ended.
        failed: Repeats that failed or lost requests.
        offered: True rate as a share of the ideal: below 1 the client (or this host) did not offer the load.
        rate_error: Reported rate against the true one, relative; the repeat with the largest magnitude.
        ttft_error_ms: Reported median time to first token minus the written one; includes the connection.
        tpot_error: Reported median time per token against the written one, relative.
        cpu_s_per_1k: Processor seconds of the client, all in, per 1000 tokens.
        spread: (largest - smallest) / median of the reported rates.
        mock_speed: Slowest mock among the repeats, share of its nominal pace.
    """

    client: str
    concurrency: int
    runs: int
    failed: int
    offered: float = 0.0
    rate_error: float = 0.0
    ttft_error_ms: float = 0.0
    tpot_error: float = 0.0
    cpu_s_per_1k: float = 0.0
    spread: float = 0.0
    mock_speed: float = 0.0


class BenchResult(Record):
    """The table, and where it was made."""

    plan: BenchPlan
    processor: str
    processors: int
    load_average: float
    started: str
    ended: str
    rows: tuple[Row, ...]
    runs: tuple[Run, ...]


def truth_of(truth: Sequence[Truth]) -> tuple[float, float, float]:
    """From the mock's notes: rate in tokens a second over the run, median TTFT and TPOT in milliseconds.

    Raises:
        CommandError: The mock completed no request.
    """
    if not truth:
        raise CommandError("the mock completed no request of this run")
    span = max(entry.last for entry in truth) - min(entry.received for entry in truth)
    ttft = statistics.median(entry.first - entry.received for entry in truth)
    tpots = [(entry.last - entry.first) / (entry.tokens - 1) for entry in truth if entry.tokens > 1]
    tpot = statistics.median(tpots) if tpots else 0.0
    return sum(entry.tokens for entry in truth) / span, ttft * 1000, tpot * 1000


def summarise_runs(plan: BenchPlan, client: str, concurrency: int, runs: Sequence[Run], failed: int) -> Row:
    """One row of the table; runs that lost requests count as failed and in nothing else."""
    good = [run for run in runs if run.reported.completed == run.requested]
    failed += len(runs) - len(good)
    if not good:
        return Row(client=client, concurrency=concurrency, runs=0, failed=failed)
    rates = [run.reported.tokens_per_s for run in good]
    ideal = plan.pace.ideal_tokens_per_s(concurrency, plan.output_tokens)
    return Row(
        client=client,
        concurrency=concurrency,
        runs=len(good),
        failed=failed,
        offered=statistics.median(run.true_tokens_per_s for run in good) / ideal,
        rate_error=max((run.rate_error for run in good), key=abs),
        ttft_error_ms=statistics.median(run.reported.ttft_ms - run.true_ttft_ms for run in good),
        tpot_error=statistics.median(run.reported.tpot_ms / run.true_tpot_ms - 1 for run in good),
        cpu_s_per_1k=statistics.median(
            run.reported.cpu_s / (run.requested * plan.output_tokens) * 1000 for run in good
        ),
        spread=(max(rates) - min(rates)) / statistics.median(rates),
        mock_speed=min(run.mock_speed for run in good),
    )


def bench_clients(
    plan: BenchPlan, contenders: Mapping[str, Contender], say: Callable[[str], None]
) -> BenchResult:
    """Run every client at every level, the repeats interleaved, each run against a mock of its own.

    On a shared host the conditions change by the minute; interleaving gives each client its share of them.

    Raises:
        InputError: There is no client to compare.
    """
    if not contenders:
        raise InputError("there is no client to compare")
    started, load_average = now(), os.getloadavg()[0]
    runs: list[Run] = []
    failed: dict[tuple[str, int], int] = {}
    for level in plan.concurrencies:
        for repeat in range(plan.repeats):
            for name, contender in contenders.items():
                begun = time.monotonic()
                try:
                    runs.append(_one(plan, name, contender, level))
                except CommandError as error:
                    failed[name, level] = failed.get((name, level), 0) + 1
                    say(f"{name} at c={level}: {error}")
                    continue
                rate = runs[-1].reported.tokens_per_s
                say(
                    f"c={level} {repeat + 1}/{plan.repeats} {name}: {rate:.1f} tok/s, "
                    f"error {runs[-1].rate_error:+.2%}, {time.monotonic() - begun:.0f} s"
                )
    rows = tuple(
        summarise_runs(
            plan,
            name,
            level,
            [run for run in runs if (run.client, run.concurrency) == (name, level)],
            failed.get((name, level), 0),
        )
        for level in plan.concurrencies
        for name in contenders
    )
    return BenchResult(
        plan=plan,
        processor=processor_name(),
        processors=os.cpu_count() or 1,
        load_average=load_average,
        started=started,
        ended=now(),
        rows=rows,
        runs=tuple(runs),
    )


def _one(plan: BenchPlan, name: str, contender: Contender, concurrency: int) -> Run:
    with running_mock(MockPlan(pace=plan.pace)) as mock:
        reading = contender(mock, plan, concurrency)
        truth = mock.truth()
    rate, ttft, tpot = truth_of(truth)
    lasted = statistics.fmean(entry.last - entry.received for entry in truth)
    return Run(
        client=name,
        concurrency=concurrency,
        requested=plan.rounds * concurrency,
        reported=reading,
        true_tokens_per_s=rate,
        true_ttft_ms=ttft,
        true_tpot_ms=tpot,
        mock_speed=plan.pace.duration_s(plan.output_tokens) / lasted,
    )
