"""The clients that are compared: ours, and aiperf in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from uv import find_uv_bin

from tooling.errors import CommandError, InputError
from tooling.gates.limits import default_limits
from tooling.gates.throughput.bench import BenchPlan, Reading
from tooling.gates.throughput.extension import client_pin
from tooling.gates.throughput.load import Load, LoadClient
from tooling.gates.throughput.mock_process import MockHandle
from tooling.gates.throughput.plan import Route
from tooling.gates.throughput.prompts import make_prompts, new_nonce, write_tokenizer
from tooling.gates.throughput.raw import to_window
from tooling.runner import run as run_program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WORDS = 16
#: A client may take so much longer than the ideal, and so long to start. Seconds.
PATIENCE = 10.0
START_S = 240.0
#: Installing aiperf the first time. Seconds.
INSTALL_LIMIT_S = 1800.0

#: Runs a client once against a mock.
Contender: TypeAlias = Callable[[MockHandle, BenchPlan, int], Reading]


def our_contender(client: LoadClient) -> Contender:
    """One of our own clients."""

    def run(mock: MockHandle, plan: BenchPlan, concurrency: int) -> Reading:
        prompts = make_prompts(plan.rounds * concurrency, WORDS, new_nonce())
        load = Load(
            url=mock.url,
            model=mock.model,
            route=Route.COMPLETIONS,
            prompts=tuple(prompts),
            output_tokens=plan.output_tokens,
            concurrency=concurrency,
        )
        window = to_window(
            client.run(load, {}, limit_s=_limit_s(plan)),
            requested=len(prompts),
            output_tokens=plan.output_tokens,
            concurrency=concurrency,
            request_rate=None,
            freeze_ratio=default_limits().throughput.freeze_ratio,
        )
        return Reading(
            completed=window.completed,
            tokens_per_s=window.tokens_per_s,
            ttft_ms=window.ttft_ms.p50,
            tpot_ms=window.tpot_ms.p50,
            cpu_s=window.client_cpu_s,
        )

    return run


def aiperf_program() -> list[str]:
    """The argv that runs the pinned aiperf; its 140 packages stay out of ours.

    Raises:
        CommandError: It cannot be installed.
    """
    program = [find_uv_bin(), "tool", "run", "--from", f"aiperf=={client_pin().aiperf}", "aiperf"]
    run_program([*program, "--help"], timeout_s=INSTALL_LIMIT_S)
    return program


def aiperf_command(
    program: Sequence[str], mock: MockHandle, plan: BenchPlan, concurrency: int, folder: Path
) -> list[str]:
    """The argv of aiperf for the same load."""
    return [
        *program,
        "profile",
        f"--model={mock.model}",
        f"--url={mock.url}",
        "--endpoint-type=completions",
        "--streaming",
        f"--concurrency={concurrency}",
        f"--request-count={plan.rounds * concurrency}",
        f"--tokenizer={folder / 'tokenizer'}",
        f"--osl={plan.output_tokens}",
        f"--isl={WORDS}",
        "--extra-inputs=ignore_eos:true",
        "--use-server-token-count",
        "--ui=none",
        "--no-gpu-telemetry",
        f"--artifact-dir={folder / 'artifacts'}",
    ]


def parse_aiperf(document: Mapping[str, Any], cpu_s: float) -> Reading:
    """A reading from aiperf's `profile_export_aiperf.json`.

    Its inter-token latency is what others call TPOT, (end - first token) / (tokens - 1).

    Raises:
        InputError: The document lacks a figure.
    """
    try:
        return Reading(
            completed=int(document["request_count"]["avg"]),
            tokens_per_s=document["output_token_throughput"]["avg"],
            ttft_ms=document["time_to_first_token"]["p50"],
            tpot_ms=document["inter_token_latency"]["p50"],
            cpu_s=cpu_s,
        )
    except (KeyError, TypeError) as error:
        raise InputError(f"aiperf's export lacks {error}", fix="use the pinned version of aiperf") from error


def aiperf_contender(program: Sequence[str]) -> Contender:
    """Aiperf, as `aiperf_program` gives it."""

    def run(mock: MockHandle, plan: BenchPlan, concurrency: int) -> Reading:
        with tempfile.TemporaryDirectory(prefix="aiperf-") as name:
            folder = Path(name)
            write_tokenizer(folder)
            argv = aiperf_command(program, mock, plan, concurrency, folder)
            cpu_s = _run_and_count(argv, _limit_s(plan))
            export = folder / "artifacts" / "profile_export_aiperf.json"
            return parse_aiperf(json.loads(export.read_text(encoding="utf-8")), cpu_s)

    return run


def _limit_s(plan: BenchPlan) -> float:
    return START_S + PATIENCE * plan.rounds * plan.pace.duration_s(plan.output_tokens)


def _run_and_count(argv: list[str], limit_s: float) -> float:
    """Run a program to its end; processor time of it and of all children that it waited for, seconds."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        before = os.times()
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            if child.poll() is None:
                os.killpg(child.pid, 9)
                child.wait()
        after = os.times()
        log.seek(0)
        tail = log.read().strip().splitlines()[-5:]
    if code:
        raise CommandError(f"{argv[0]} failed with exit code {code}", details=tail)
    return after.children_user - before.children_user + after.children_system - before.children_system
