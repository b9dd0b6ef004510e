"""Loading a server: warm-up, interleaved windows, open loop, calibration; no judgement is made here."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import requests

from tooling.errors import CommandError, InputError
from tooling.gates.limits import default_limits
from tooling.gates.power import judge_stall, summarise_gpus
from tooling.gates.records import Check, Verdict
from tooling.gates.throughput.calibration import calibrate_run
from tooling.gates.throughput.counters import Counters, fetch_counters, grown
from tooling.gates.throughput.load import Load, LoadClient, StalledError
from tooling.gates.throughput.prompts import make_prompts, new_nonce
from tooling.gates.throughput.raw import to_window
from tooling.gates.throughput.sampling import GPU_PERIOD_S, GpuReader, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tooling.gates.power import GpuLoad
    from tooling.gates.throughput.plan import Endpoint, Throughput, ThroughputPlan, Window

HTTP_LIMIT_S = 30.0
#: Counters may lag behind the last answer by a log interval.
SETTLE_S = 10.0
#: How long the GPUs are watched for being idle before the run.
IDLE_WATCH_S = 2.0


@dataclass
class Session:
    """What one run on one boot needs, and what interrupted it.

    Attributes:
        endpoint: The server, its model name filled in.
        plan: The load.
        client: The load client.
        headers: Of every request.
        gpus: Reader of the GPUs of this host, if it has any.
        healthy_w: Mean power of one GPU at a healthy load, watts.
        say: Told what happens.
        nonce: Makes the prompts of this run unlike any other's.
        interrupted: The check that says why the run did not reach its end.
    """

    endpoint: Endpoint
    plan: ThroughputPlan
    client: LoadClient
    headers: Mapping[str, str]
    gpus: GpuReader | None
    healthy_w: float | None
    say: Callable[[str], None]
    nonce: str = field(default_factory=new_nonce)
    interrupted: Check | None = None

    def counters(self) -> Counters | None:
        """The server's counters now."""
        return fetch_counters(self.endpoint.url, self.headers)


def request_headers(endpoint: Endpoint) -> dict[str, str]:
    """The headers that the endpoint wants; the key comes from the environment and goes into no record."""
    key = os.environ.get(endpoint.key_variable, "")
    return {"Authorization": f"Bearer {key}"} if key else {}


def served_model(endpoint: Endpoint, headers: Mapping[str, str]) -> str:
    """The first model that the server names.

    Raises:
        InputError: It does not answer, or names none.
    """
    url = f"{endpoint.url.rstrip('/')}/v1/models"
    try:
        answer = requests.get(url, headers=dict(headers), timeout=HTTP_LIMIT_S)
        answer.raise_for_status()
        models = [entry["id"] for entry in answer.json()["data"]]
    except (requests.RequestException, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"this server does not list its models: {error}",
            where=url,
            fix="is it ready, and is the URL right?",
        ) from error
    if not models:
        raise InputError("this server serves no model", where=url, fix="wait until it has loaded one")
    return str(models[0])


def idle_gpus(gpus: GpuReader | None) -> tuple[GpuLoad, ...]:
    """The GPUs over a moment before any load; empty where there are none."""
    if gpus is None:
        return ()
    samples, end = gpus.sample(), time.monotonic() + IDLE_WATCH_S
    while time.monotonic() < end:
        time.sleep(GPU_PERIOD_S)
        samples += gpus.sample()
    return summarise_gpus(samples)


def measure(session: Session, measured: Throughput) -> Throughput:
    """Warm up, run the windows, the open loop and the calibrations.

    Stops at the first run that cannot be finished; `session.interrupted` then says why.

    Returns:
        `measured` with what was reached.
    """
    windows: list[Window] = []
    try:
        _windows(session, windows)
        measured = measured.model_copy(update={"windows": tuple(windows)})
        measured = _open_loop(session, measured)
    except StalledError:
        measured = measured.model_copy(update={"windows": tuple(windows)})
    except CommandError as error:
        session.interrupted = _why_it_failed(session, error)
        measured = measured.model_copy(update={"windows": tuple(windows)})
    if session.interrupted or not session.plan.calibrate:
        return measured
    calibrations = []
    for level in session.plan.concurrencies:
        found = calibrate_run(session.client, measured.at(level), session.plan, session.endpoint.route)
        if found:
            session.say(f"calibration at c={level}: {found.share:.1%} of the ideal")
            calibrations.append(found)
    return measured.model_copy(update={"calibrations": tuple(calibrations)})


def _windows(session: Session, windows: list[Window]) -> None:
    """Fill in the closed-loop windows one by one, so that an interruption keeps those before it."""
    plan, top = session.plan, session.plan.concurrencies[-1]
    if plan.warmup_per_stream:
        session.say(f"warm-up at c={top}")
        _window(session, "warm-up", top, plan.warmup_per_stream * top)
    # Levels are interleaved, so that a drift of the host touches all of them alike.
    for turn in range(plan.windows):
        for level in plan.concurrencies:
            window = _window(session, f"{turn}/{level}", level, plan.requests_per_stream * level)
            session.say(f"window {turn + 1}/{plan.windows}, c={level}: {window.tokens_per_s:.1f} tok/s")
            windows.append(window)


def _why_it_failed(session: Session, error: CommandError) -> Check:
    """A client that fails as a whole: is the server gone, or is it the client?"""
    try:
        served_model(session.endpoint, session.headers)
    except InputError as gone:
        return Check(
            name="server-answers",
            verdict=Verdict.FAIL,
            seen="the server stopped answering under load",
            details=(gone.what, *error.details),
        )
    return Check(
        name="load-client",
        verdict=Verdict.INCONCLUSIVE,
        seen=f"{error.what}, while the server still answers",
        details=tuple(error.details),
    )


def _open_loop(session: Session, measured: Throughput) -> Throughput:
    """Requests at a fixed rate, whatever the server does: the only load that shows latency honestly."""
    plan = session.plan
    rates = [
        window.completed / window.duration_s
        for window in measured.at(plan.concurrencies[-1])
        if window.duration_s
    ]
    if plan.open_loop_share and rates and min(rates) > 0:
        rate = plan.open_loop_share * statistics.median(rates)
        session.say(f"open loop at {rate:.3g} requests/s")
        window = _window(session, "open", None, plan.open_loop_requests, rate)
        measured = measured.model_copy(update={"open_loop": window})
    return measured


def _window(
    session: Session, name: str, concurrency: int | None, count: int, rate: float | None = None
) -> Window:
    """Run the client once and put the server's counters and the GPUs beside what it says."""
    plan = session.plan
    prompts = make_prompts(count, plan.input_words, f"{session.nonce}/{name}")
    load = Load(
        url=session.endpoint.url,
        model=session.endpoint.model,
        route=session.endpoint.route,
        prompts=tuple(prompts),
        output_tokens=plan.output_tokens,
        concurrency=concurrency,
        request_rate=rate,
    )
    before = session.counters()
    with Watch(session.gpus, session.counters, plan.stall_s, before) as watch:
        try:
            raw = session.client.run(
                load, session.headers, limit_s=plan.window_limit_s, keep_going=watch.moving
            )
        except StalledError as error:
            evidence = judge_stall(watch.stall(session.healthy_w))
            session.interrupted = Check(
                name=evidence.name,
                # Our own requests wait: however the stall is called, the server does not answer.
                verdict=Verdict.FAIL,
                seen=f"{error.what}: {evidence.seen}",
                details=evidence.details,
            )
            raise
    window = to_window(
        raw,
        requested=count,
        output_tokens=plan.output_tokens,
        concurrency=concurrency,
        request_rate=rate,
        freeze_ratio=default_limits().throughput.freeze_ratio,
    )
    after = _settled(session, before, window.output_tokens)
    prompt = grown(before.prompt, after.prompt) if before and after else None
    return window.model_copy(
        update={
            "counted_tokens": grown(before.generated, after.generated) if before and after else None,
            "cached_tokens": grown(before.cached, after.cached) if before and after else None,
            "input_tokens": int(prompt) if prompt else window.input_tokens,
            "gpus": watch.gpus(),
            "energy_j": watch.energy_j,
        }
    )


def _settled(session: Session, before: Counters | None, tokens: int) -> Counters | None:
    """The counters once they have caught up with the client, or when they had their time."""
    if before is None:
        return None
    end = time.monotonic() + SETTLE_S
    after = session.counters()
    while after and (grown(before.generated, after.generated) or 0) < tokens and time.monotonic() < end:
        time.sleep(0.5)
        after = session.counters()
    return after
