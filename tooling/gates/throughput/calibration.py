"""Is it the client? The same client, the same concurrency, against a server whose pace is known."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from tooling.gates.limits import default_limits
from tooling.gates.throughput.load import Load
from tooling.gates.throughput.mock import MockPlan, Truth
from tooling.gates.throughput.mock_process import running_mock
from tooling.gates.throughput.pacing import Pace
from tooling.gates.throughput.plan import Calibration, Route, Window
from tooling.gates.throughput.prompts import make_prompts, new_nonce
from tooling.gates.throughput.raw import to_window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.gates.throughput.load import LoadClient
    from tooling.gates.throughput.plan import ThroughputPlan

#: The mock's pace is not made faster than this: below it timers, not clients, are measured. Milliseconds.
MIN_ITL_MS = 2.0
MIN_TTFT_MS = 5.0
#: Streams longer than this add nothing to a calibration but time.
MAX_TOKENS = 128
#: How long the client may take, as a multiple of the ideal, and on top of it for its start. Seconds.
PATIENCE = 5.0
START_S = 60.0


def calibration_pace(windows: Sequence[Window], headroom: float) -> Pace:
    """The pace of the engine at one concurrency, made faster by the headroom.

    At the measured pace itself a client that was the bottleneck would pass: it would be offered just what it
    can do. Tokens that arrive together are offered together.
    """
    tpot = statistics.median(window.tpot_ms.p50 for window in windows)
    ttft = statistics.median(window.ttft_ms.p50 for window in windows)
    chunk = max(1, round(statistics.median(window.tokens_per_chunk for window in windows)))
    return Pace(
        ttft_ms=max(MIN_TTFT_MS, ttft / headroom),
        itl_ms=max(MIN_ITL_MS, tpot / headroom),
        tokens_per_chunk=chunk,
    )


def compare_with_truth(window: Window, truth: Sequence[Truth], pace: Pace, tokens: int) -> Calibration:
    """Hold what the client reports against what the mock wrote.

    Args:
        window: The client's report of a closed loop on the mock.
        truth: What the mock noted for the same requests.
        pace: The mock's nominal pace.
        tokens: Tokens of each answer.
    """
    lasted = statistics.fmean(entry.last - entry.received for entry in truth) if truth else math.inf
    first = statistics.median(entry.first - entry.received for entry in truth) * 1000 if truth else 0.0
    tpots = [(entry.last - entry.first) / (entry.tokens - 1) * 1000 for entry in truth if entry.tokens > 1]
    tpot = statistics.median(tpots) if tpots else 0.0
    return Calibration(
        concurrency=window.concurrency,
        ideal_tokens_per_s=pace.ideal_tokens_per_s(window.concurrency, tokens),
        client_tokens_per_s=window.tokens_per_s if window.completed == window.requested else 0.0,
        mock_speed=pace.duration_s(tokens) / lasted,
        ttft_error_ms=window.ttft_ms.p50 - first,
        tpot_error=window.tpot_ms.p50 / tpot - 1 if tpot else 0.0,
    )


def calibrate(
    client: LoadClient, pace: Pace, concurrency: int, *, tokens: int, at_least_s: float, route: Route
) -> tuple[Calibration, Window]:
    """Run the client once against a mock of its own.

    Args:
        client: The client to calibrate.
        pace: The mock's pace.
        concurrency: Requests in flight.
        tokens: Tokens of each answer.
        at_least_s: Enough requests for that long, seconds.
        route: API to load.

    Raises:
        StalledError: It did not end within several times the ideal.
    """
    rounds = max(2, math.ceil(at_least_s / pace.duration_s(tokens)))
    with running_mock(MockPlan(pace=pace)) as mock:
        load = Load(
            url=mock.url,
            model=mock.model,
            route=route,
            prompts=tuple(make_prompts(rounds * concurrency, 16, new_nonce())),
            output_tokens=tokens,
            concurrency=concurrency,
        )
        raw = client.run(load, {}, limit_s=START_S + PATIENCE * rounds * pace.duration_s(tokens))
        window = to_window(
            raw,
            requested=len(load.prompts),
            output_tokens=tokens,
            concurrency=concurrency,
            request_rate=None,
            freeze_ratio=default_limits().throughput.freeze_ratio,
        )
        return compare_with_truth(window, mock.truth(), pace, tokens), window


def calibrate_run(
    client: LoadClient, windows: Sequence[Window], plan: ThroughputPlan, route: Route
) -> Calibration | None:
    """Calibrate for one level of a run; None when none of its windows has a pace to repeat."""
    usable = [window for window in windows if window.tpot_ms.count and window.tpot_ms.p50 > 0]
    if not usable:
        return None
    pace = calibration_pace(usable, default_limits().throughput.calibration_headroom)
    found, _ = calibrate(
        client,
        pace,
        usable[0].concurrency,
        tokens=min(plan.output_tokens, MAX_TOKENS),
        at_least_s=plan.calibration_s,
        route=route,
    )
    return found
