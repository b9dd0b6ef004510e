"""What the windows of one boot mean: pure functions from measurements to checks."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from tooling.gates.limits import default_limits
from tooling.gates.records import Check, Verdict
from tooling.gates.spread import judge_spread, summarise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.gates.limits import ThroughputLimits
    from tooling.gates.throughput.plan import Calibration, Window

_NOTHING = "no window was measured"
_MAX_LINES = 8


def label(window: Window) -> str:
    """How a window is called in messages, e.g. `c=32`."""
    return f"c={window.concurrency}" if window.request_rate is None else f"{window.request_rate:.3g} requests/s"


def _empty(name: str) -> Check:
    return Check(name=name, verdict=Verdict.FAIL, seen=_NOTHING)


def judge_completed(windows: Sequence[Window]) -> Check:
    """Every request was answered with tokens; the client itself exits 0 when requests fail."""
    name = "all-requests-completed"
    if not windows:
        return _empty(name)
    requested = sum(window.requested for window in windows)
    completed = sum(window.completed for window in windows)
    lines = [f"{label(window)}: {error}" for window in windows for error in window.errors]
    return Check(
        name=name,
        verdict=Verdict.PASS if completed == requested > 0 else Verdict.FAIL,
        seen=f"{completed} of {requested} requests completed",
        value=completed,
        unit="requests",
        threshold=requested,
        details=tuple(lines[:_MAX_LINES]),
    )


def judge_content(windows: Sequence[Window]) -> Check:
    """Every answer has text; tokens that come without any are what a model of NaNs sends."""
    name = "answers-have-text"
    if not windows:
        return _empty(name)
    answered = sum(window.completed for window in windows)
    # The clients call an answer without any text an error of its own.
    silent = sum(
        int(error.split(" x ", 1)[0])
        for window in windows
        for error in window.errors
        if "no generated tokens" in error
    )
    empty = silent + sum(window.empty for window in windows)
    if empty:
        seen = f"{empty} of {answered + silent} answers are HTTP 200 without text"
    else:
        seen = f"{answered} answers, all with text"
    return Check(
        name=name, verdict=Verdict.FAIL if empty or not answered else Verdict.PASS, seen=seen, value=empty
    )


def judge_length(windows: Sequence[Window], output_tokens: int) -> Check:
    """Every answer has the requested length; others would compare different work.

    A client that reads usage from chunks with text misses last tokens that bring none. Since no answer can be
    longer than requested, a server that counted requests x length has given every one of them whole.
    """
    name = "answers-have-requested-length"
    answered = sum(window.completed for window in windows)
    if not answered:
        return _empty(name)
    settled = [window for window in windows if window.wrong_length and _counted_whole(window, output_tokens)]
    wrong = sum(window.wrong_length for window in windows if window not in settled)
    if settled and not wrong:
        missed = sum(window.completed * output_tokens - window.output_tokens for window in settled)
        short = sum(window.wrong_length for window in settled)
        return Check(
            name=name,
            verdict=Verdict.PASS,
            seen=f"the server counted {output_tokens} tokens for each of {answered} answers",
            value=0,
            unit="answers",
            threshold=0,
            details=(
                f"the client misses {missed} tokens in {short} answers: it reads none that bring no text",
            ),
        )
    return Check(
        name=name,
        verdict=Verdict.INCONCLUSIVE if wrong else Verdict.PASS,
        seen=f"{answered - wrong} of {answered} answers have {output_tokens} tokens",
        value=wrong,
        unit="answers",
        threshold=0,
        details=("does the server honour ignore_eos, and is its context long enough?",) if wrong else (),
    )


def _counted_whole(window: Window, output_tokens: int) -> bool:
    """Whether the server's counter says that every answer of a window has the requested length."""
    expected = window.completed * output_tokens
    near = window.output_tokens >= expected * (1 - default_limits().throughput.counter_tolerance)
    return window.counted_tokens == expected and window.completed == window.requested and near


def judge_counter(
    windows: Sequence[Window], *, required: bool, limits: ThroughputLimits | None = None
) -> Check | None:
    """The client's tokens against the server's own counter; None when there is none and none is required."""
    bounds, name = limits or default_limits().throughput, "client-tokens-equal-server-tokens"
    if not windows:
        return _empty(name)
    if any(window.counted_tokens is None for window in windows):
        if not required:
            return None
        return Check(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            seen="the server shows no token counter at /metrics, so nothing confirms the client's tokens",
            details=("start it with its metrics switched on (SGLang: --enable-metrics)",),
        )
    worst_window = max(windows, key=_counter_error)
    error = _counter_error(worst_window)
    counted = worst_window.counted_tokens or 0.0
    details: tuple[str, ...] = ()
    if error > bounds.counter_tolerance:
        more = counted > worst_window.output_tokens
        details = (
            "somebody else uses this server, or it restarted"
            if more
            else "the client counts tokens that were not",
        )
    return Check(
        name=name,
        verdict=Verdict.INCONCLUSIVE if error > bounds.counter_tolerance else Verdict.PASS,
        seen=f"{label(worst_window)}: client {worst_window.output_tokens} tokens, server {counted:.0f}",
        value=error,
        unit="relative difference",
        threshold=bounds.counter_tolerance,
        details=details,
    )


def _counter_error(window: Window) -> float:
    counted = window.counted_tokens or 0.0
    return abs(counted - window.output_tokens) / max(window.output_tokens, counted, 1.0)


def judge_cold(windows: Sequence[Window], limits: ThroughputLimits | None = None) -> Check | None:
    """No window was helped by the prefix cache; None when the server does not count it."""
    bounds, name = limits or default_limits().throughput, "prefix-cache-cold"
    known = [window for window in windows if window.cached_tokens is not None and window.input_tokens > 0]
    if not known:
        return None

    def share(window: Window) -> float:
        return (window.cached_tokens or 0.0) / window.input_tokens

    def allowed(window: Window) -> float:
        chance = bounds.cached_tokens_per_request * window.requested / window.input_tokens
        return max(bounds.cached_share, chance)

    warm = [window for window in known if share(window) >= allowed(window)]
    hottest = max(known, key=share)
    return Check(
        name=name,
        verdict=Verdict.INCONCLUSIVE if warm else Verdict.PASS,
        seen=f"{label(hottest)}: {share(hottest):.1%} of the prompt tokens came from the prefix cache",
        value=share(hottest),
        unit="share of prompt tokens",
        threshold=bounds.cached_share,
        details=(
            *(f"{label(window)}: {share(window):.1%}" for window in warm[:_MAX_LINES]),
            "flush the cache or use prompts that were never sent before; the gain differs from level to level",
        )
        if warm
        else (),
    )


def judge_freeze(
    windows: Sequence[Window], freeze_ms: float | None = None, limits: ThroughputLimits | None = None
) -> Check:
    """No stream stood still; a closed loop's percentiles hide a freeze, the largest gap does not."""
    bounds, name = limits or default_limits().throughput, "largest-gap-between-tokens"
    if not any(window.gap_ms.count for window in windows):
        return Check(
            name=name, verdict=Verdict.INCONCLUSIVE, seen="no stream had two chunks, so no gap was seen"
        )
    lines = []
    largest, bound = 0.0, freeze_ms or bounds.freeze_ms
    for window in windows:
        largest = max(largest, window.gap_ms.largest)
        if window.freeze_ms >= bound:
            lines.append(f"{label(window)}: {window.freeze_ms:.0f} ms without a token in a stream")
        # With one request in flight nothing queues, so a late first token is a freeze too.
        late = window.ttft_ms.largest - window.ttft_ms.p50
        if window.concurrency == 1 and window.request_rate is None and late >= bound:
            lines.append(f"{label(window)}: one first token came {late:.0f} ms later than usual")
    return Check(
        name=name,
        verdict=Verdict.FAIL if lines else Verdict.PASS,
        seen=f"the server stood still in {len(lines)} windows" if lines else f"largest gap {largest:.0f} ms",
        value=largest,
        unit="ms",
        threshold=bound,
        details=tuple(lines[:_MAX_LINES]),
    )


def judge_calibration(calibrations: Sequence[Calibration], limits: ThroughputLimits | None = None) -> Check:
    """The client had room to spare at each concurrency; else it, not the server, may be what was measured."""
    bounds, name = limits or default_limits().throughput, "client-calibration"
    if not calibrations:
        return Check(name=name, verdict=Verdict.INCONCLUSIVE, seen="the client was not calibrated on this host")
    lines, late, short = [], 0, 0
    for entry in calibrations:
        lines.append(
            f"c={entry.concurrency}: {entry.share:.1%} of {entry.ideal_tokens_per_s:.0f} tok/s, "
            f"mock at {entry.mock_speed:.1%} of its pace"
        )
        late += entry.mock_speed < bounds.calibration_share
        short += entry.share < bounds.calibration_share
    weakest = min(calibrations, key=lambda entry: entry.share)
    if late:
        seen = "the host was too busy for the mock itself: the client cannot be calibrated here now"
    elif short:
        seen = (
            f"client-bound at c={weakest.concurrency}: it reaches {weakest.share:.1%} of the ideal on this host"
        )
    else:
        seen = f"the client reaches at least {weakest.share:.1%} of the ideal"
    return Check(
        name=name,
        verdict=Verdict.INCONCLUSIVE if late or short else Verdict.PASS,
        seen=seen,
        value=weakest.share,
        unit="share of ideal",
        threshold=bounds.calibration_share,
        details=tuple(lines),
    )


def judge_windows(windows: Sequence[Window], limits: ThroughputLimits | None = None) -> Check | None:
    """The windows of one level agree; None with fewer than two, which cannot disagree."""
    bounds = limits or default_limits().throughput
    if len(windows) < 2:  # noqa: PLR2004
        return None
    rates = [window.tokens_per_s for window in windows]
    if not all(rates):
        return Check(
            name=f"spread:{label(windows[0])}", verdict=Verdict.FAIL, seen="a window without a single token"
        )
    decode = [1000 / window.tpot_ms.p50 if window.tpot_ms.p50 else 0.0 for window in windows]
    first = [window.ttft_ms.largest for window in windows]
    return judge_spread(
        summarise(f"output rate at {label(windows[0])}", rates, "tok/s"),
        bounds.window_cv,
        (summarise("decode rate", decode, "tok/s"), summarise("largest time to first token", first, "ms")),
    )


def boot_value(windows: Sequence[Window]) -> float:
    """The value of a boot: the median output rate over its windows, tokens a second; 0 without any."""
    return statistics.median(window.tokens_per_s for window in windows) if windows else 0.0
