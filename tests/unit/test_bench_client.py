from pathlib import Path

import pytest

from tooling.errors import CommandError, InputError
from tooling.gates.throughput.bench import BenchPlan, Reading, Run, bench_clients, summarise_runs, truth_of
from tooling.gates.throughput.contenders import aiperf_command, parse_aiperf
from tooling.gates.throughput.mock import Truth
from tooling.gates.throughput.mock_process import MockHandle

PLAN = BenchPlan(concurrencies=(4,), repeats=2, rounds=2)
AIPERF = {
    "request_count": {"unit": "requests", "avg": 8.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 73.7},
    "time_to_first_token": {"unit": "ms", "avg": 224.3, "p50": 219.2},
    "inter_token_latency": {"unit": "ms", "avg": 50.3, "p50": 50.2},
}


def run(rate: float, true_rate: float = 76.4, completed: int = 8) -> Run:
    reported = Reading(completed=completed, tokens_per_s=rate, ttft_ms=203, tpot_ms=50.5, cpu_s=0.512)
    return Run(
        client="ours",
        concurrency=4,
        requested=8,
        reported=reported,
        true_tokens_per_s=true_rate,
        true_ttft_ms=200,
        true_tpot_ms=50,
        mock_speed=0.99,
    )


def test_the_truth_of_a_run_comes_from_the_mocks_notes():
    notes = [
        Truth(received=10.0, first=10.2, last=13.35, tokens=64, largest_gap_s=0.05),
        Truth(received=10.1, first=10.3, last=13.45, tokens=64, largest_gap_s=0.05),
    ]
    rate, ttft, tpot = truth_of(notes)
    assert [rate, ttft, tpot] == pytest.approx([128 / 3.45, 200, 50])
    with pytest.raises(CommandError, match="no request"):
        truth_of([])


def test_a_row_shows_the_worst_error_and_the_spread():
    row = summarise_runs(PLAN, "ours", 4, [run(76.0), run(74.0)], failed=0)
    assert row.rate_error == pytest.approx(74.0 / 76.4 - 1)
    assert row.offered == pytest.approx(1.0, abs=0.001)
    assert row.cpu_s_per_1k == pytest.approx(1.0)
    assert row.spread == pytest.approx(2 / 75)
    assert row.tpot_error == pytest.approx(0.01)


def test_a_run_that_lost_requests_counts_as_failed_only():
    row = summarise_runs(PLAN, "ours", 4, [run(76.0), run(150.0, completed=7)], failed=1)
    assert (row.runs, row.failed) == (1, 2)
    assert summarise_runs(PLAN, "ours", 4, [], failed=2).runs == 0


def test_aiperfs_export_is_read_by_its_own_names():
    assert parse_aiperf(AIPERF, 31.4) == Reading(
        completed=8, tokens_per_s=73.7, ttft_ms=219.2, tpot_ms=50.2, cpu_s=31.4
    )
    with pytest.raises(InputError, match="inter_token_latency"):
        parse_aiperf({key: value for key, value in AIPERF.items() if key != "inter_token_latency"}, 1.0)


def test_aiperf_is_given_the_same_load(tmp_path: Path):
    argv = aiperf_command(["aiperf"], MockHandle("http://127.0.0.1:1"), PLAN, 4, tmp_path)
    assert argv[:2] == ["aiperf", "profile"]
    wanted = {"--concurrency=4", "--request-count=8", "--osl=64", "--use-server-token-count", "--streaming"}
    assert wanted <= set(argv)


def test_nothing_to_compare_is_refused():
    with pytest.raises(InputError, match="no client"):
        bench_clients(PLAN, {}, lambda _message: None)
