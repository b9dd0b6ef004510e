"""The gate over real HTTP against the mock, each of its faults found by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from tooling.errors import InputError
from tooling.gates.records import Check, GateResult, Verdict
from tooling.gates.throughput.gate import run_throughput
from tooling.gates.throughput.mock import Faults, MockPlan
from tooling.gates.throughput.mock_process import MockHandle, running_mock
from tooling.gates.throughput.pacing import Pace
from tooling.gates.throughput.plan import ClientKind, Endpoint, Route, Throughput, ThroughputPlan
from tooling.gates.throughput.regression import save_baseline

pytestmark = pytest.mark.engine

PACE = Pace(ttft_ms=50, itl_ms=10)
PLAN = ThroughputPlan(
    input_words=32,
    output_tokens=16,
    concurrencies=(4,),
    requests_per_stream=2,
    windows=1,
    warmup_per_stream=0,
    open_loop_share=0,
    calibrate=False,
)
CLIENTS = [ClientKind.AUTO, ClientKind.FALLBACK]


@contextmanager
def mock(
    metrics: Any = "sglang", pace: Pace = PACE, usage: Any = "each", **faults: Any
) -> Iterator[MockHandle]:
    with running_mock(MockPlan(pace=pace, metrics=metrics, usage=usage, faults=Faults(**faults))) as handle:
        yield handle


def gate(handle: MockHandle, route: Route = Route.COMPLETIONS, **plan: Any) -> tuple[GateResult, Throughput]:
    return run_throughput(Endpoint(url=handle.url, route=route), PLAN.model_copy(update=plan))


def named(result: GateResult, name: str) -> Check:
    return next(check for check in result.checks if check.name == name)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("metrics", ["sglang", "llamacpp", "vllm"])
def test_a_faultless_server_has_nothing_but_a_missing_baseline(client: ClientKind, metrics: str):
    with mock(metrics) as handle:
        result, measured = gate(handle, client=client)
    assert measured.engine == metrics
    assert result.verdict is Verdict.NO_BASELINE
    assert {check.verdict for check in result.checks} == {Verdict.PASS, Verdict.NO_BASELINE}
    (window,) = measured.windows
    assert (window.completed, window.output_tokens, window.counted_tokens) == (8, 128, 128)
    assert measured.client.sha256


@pytest.mark.parametrize("client", CLIENTS)
def test_the_chat_route_is_measured_from_the_first_text_not_from_the_role(client: ClientKind):
    slow = Pace(ttft_ms=400, itl_ms=10)
    with mock(pace=slow, role_chunk=True) as handle:
        _, measured = gate(handle, Route.CHAT, client=client)
    assert measured.windows[0].completed == 8
    assert measured.windows[0].ttft_ms.p50 >= 390


@pytest.mark.parametrize("client", CLIENTS)
def test_half_of_the_requests_refused_fails(client: ClientKind):
    with mock(refuse_every=2) as handle:
        result, _ = gate(handle, client=client)
    check = named(result, "all-requests-completed")
    assert result.verdict is check.verdict is Verdict.FAIL
    assert check.seen == "4 of 8 requests completed"
    assert "queue is full" in check.details[0]


def test_connections_that_are_cut_fail():
    with mock(drop_every=2) as handle:
        result, _ = gate(handle)
    assert named(result, "all-requests-completed").verdict is Verdict.FAIL


def test_a_server_that_refuses_everything_is_not_a_fast_one():
    with mock(refuse_every=1) as handle:
        result, measured = gate(handle)
    assert result.verdict is Verdict.FAIL
    assert named(result, "output-rate@c4").verdict is not Verdict.PASS
    assert measured.windows[0].output_tokens == 0


@pytest.mark.parametrize("client", CLIENTS)
def test_http_200_without_text_fails(client: ClientKind):
    with mock(empty_content=True) as handle:
        result, _ = gate(handle, client=client)
    check = named(result, "answers-have-text")
    assert check.verdict is Verdict.FAIL
    assert check.seen == "8 of 8 answers are HTTP 200 without text"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_freeze_of_three_seconds_is_found_in_a_closed_loop(client: ClientKind):
    with mock(freeze_after_tokens=70, freeze_s=3) as handle:
        result, measured = gate(handle, client=client)
    check = named(result, "largest-gap-between-tokens")
    assert check.verdict is Verdict.FAIL
    assert 2900 <= measured.windows[0].freeze_ms < 10_000
    # The percentiles that most tools report do not show it.
    assert measured.windows[0].gap_ms.p50 < 500


def test_tokens_that_the_server_did_not_count_are_no_evidence():
    with mock(counter_factor=0.9) as handle:
        result, _ = gate(handle)
    check = named(result, "client-tokens-equal-server-tokens")
    assert result.verdict is check.verdict is Verdict.INCONCLUSIVE


def test_a_second_user_of_the_server_is_noticed():
    with mock(counter_factor=2.0) as handle:
        result, _ = gate(handle)
    assert "somebody else" in named(result, "client-tokens-equal-server-tokens").details[0]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("route", "usage"), [(Route.COMPLETIONS, "each"), (Route.CHAT, "final")])
def test_answers_that_are_too_short_compare_other_work(client: ClientKind, route: Route, usage: str):
    with mock(short_by=4, usage=usage) as handle:
        result, measured = gate(handle, route, client=client)
    assert measured.windows[0].output_tokens == 8 * 12
    assert named(result, "answers-have-requested-length").verdict is Verdict.INCONCLUSIVE


def test_a_length_that_was_only_requested_is_no_measured_length():
    # Where the compiled client cannot read usage it reports what was asked for.
    with mock(short_by=4, usage="final") as handle:
        result, measured = gate(handle)
    if measured.tokens_assumed:  # else this machine has no compiled client, and the fallback reads it
        assert named(result, "client-tokens-equal-server-tokens").verdict is Verdict.INCONCLUSIVE
    else:
        assert named(result, "answers-have-requested-length").verdict is Verdict.INCONCLUSIVE
    assert result.verdict is Verdict.INCONCLUSIVE


def test_our_prompts_are_cold_even_on_a_server_that_was_loaded_before():
    with mock(prefix_cache=True) as handle:
        gate(handle)
        result, measured = gate(handle)
    assert named(result, "prefix-cache-cold").verdict is Verdict.PASS
    assert measured.windows[0].cached_tokens == 0


def test_a_warm_prefix_cache_is_noticed(monkeypatch: pytest.MonkeyPatch):
    # A load tool with a fixed seed sends the same prompts in every window.
    monkeypatch.setattr(
        "tooling.gates.throughput.measure.make_prompts",
        lambda count, words, _nonce: [
            " ".join([f"p{index}", *["word"] * (words - 1)]) for index in range(count)
        ],
    )
    with mock(prefix_cache=True) as handle:
        result, measured = gate(handle, windows=2)
    check = named(result, "prefix-cache-cold")
    assert check.verdict is Verdict.INCONCLUSIVE
    first, second = measured.windows
    assert first.cached_tokens == 0
    assert second.cached_tokens == second.input_tokens
    assert named(result, "output-rate@c4").verdict is Verdict.INCONCLUSIVE


def test_a_deadlocked_server_is_left_and_named_while_its_health_is_green():
    with mock(deadlock_after_tokens=40) as handle:
        result, measured = gate(handle, stall_s=3.0)
        assert requests.get(f"{handle.url}/health", timeout=10).ok
    check = named(result, "progress")
    assert result.verdict is check.verdict is Verdict.FAIL
    assert "4 requests running" in check.seen
    assert measured.windows == ()


def test_a_server_that_is_gone_is_one_message():
    with mock() as handle:
        url = handle.url
    with pytest.raises(InputError, match="does not list its models"):
        run_throughput(Endpoint(url=url), PLAN)


def test_coalesced_tokens_are_counted_as_tokens():
    with mock(pace=Pace(ttft_ms=50, itl_ms=10, tokens_per_chunk=4)) as handle:
        _, measured = gate(handle)
    assert measured.windows[0].output_tokens == 128
    assert measured.windows[0].tokens_per_chunk == 4


def test_a_whole_run_interleaves_levels_calibrates_and_ends_with_an_open_loop():
    with mock() as handle:
        result, measured = gate(
            handle,
            concurrencies=(1, 4),
            windows=2,
            warmup_per_stream=1,
            open_loop_share=0.5,
            open_loop_requests=8,
            calibrate=True,
            calibration_s=0.5,
        )
    assert [window.concurrency for window in measured.windows] == [1, 4, 1, 4]
    assert measured.open_loop is not None
    assert measured.open_loop.request_rate is not None
    assert [entry.concurrency for entry in measured.calibrations] == [1, 4]
    # Whether this machine was idle enough is not the point here, that the question was asked is.
    assert named(result, "client-calibration").details
    assert any("no GPU" in line for line in result.limitations) or measured.idle


def test_a_run_becomes_a_baseline_and_the_next_one_is_compared_with_it(tmp_path: Path):
    with mock() as handle:
        result, measured = gate(handle)
        path = save_baseline(tmp_path, result, measured, pins={"driver": "1"})
        same, _ = run_throughput(Endpoint(url=handle.url), PLAN, baselines=tmp_path, pins={"driver": "1"})
        other, _ = run_throughput(Endpoint(url=handle.url), PLAN, baselines=tmp_path, pins={"driver": "2"})
    assert path.is_file()
    assert "too few to decide" in named(same, "output-rate@c4").seen
    assert "stale" in named(other, "output-rate@c4").seen


def test_an_unsound_run_cannot_become_a_baseline(tmp_path: Path):
    with mock(refuse_every=2) as handle:
        result, measured = gate(handle)
    with pytest.raises(InputError, match="unsound"):
        save_baseline(tmp_path, result, measured)
    assert list(tmp_path.iterdir()) == []
