"""`throughput`: load a server and judge it; `bench-client`: how true and how cheap the load clients are."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from tooling import console
from tooling.errors import InputError
from tooling.gates.records import GateResult, Verdict
from tooling.gates.throughput.bench import BenchPlan, BenchResult, bench_clients
from tooling.gates.throughput.contenders import aiperf_contender, aiperf_program, our_contender
from tooling.gates.throughput.gate import run_throughput
from tooling.gates.throughput.load import fallback_client, load_client
from tooling.gates.throughput.plan import ClientKind, Endpoint, Route, Throughput, ThroughputPlan
from tooling.gates.throughput.regression import save_baseline

#: Columns that the table of bench-client needs.
TABLE_WIDTH = 110
_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "bold red"}


def _levels(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{text!r} is no list of concurrencies", fix="write for example 1,8,32") from error


def _plain(error: ValidationError) -> InputError:
    first = error.errors()[0]
    return InputError(
        f"this value cannot be used: {first['msg']}", where=".".join(str(part) for part in first["loc"])
    )


def throughput(
    *,
    url: Annotated[str, typer.Option(help="Base URL of the running server, without /v1.")],
    model: Annotated[str, typer.Option(help="Model name; by default the first that the server lists.")] = "",
    route: Annotated[Route, typer.Option(help="API to load.")] = Route.COMPLETIONS,
    concurrency: Annotated[str, typer.Option(help="Closed-loop levels, ascending.")] = "1,8,32",
    input_words: Annotated[int, typer.Option(help="Words of each prompt, about as many tokens.")] = 256,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 128,
    windows: Annotated[int, typer.Option(help="Windows at each level.")] = 3,
    requests_per_stream: Annotated[int, typer.Option(help="Requests of a window, times its level.")] = 4,
    client: Annotated[ClientKind, typer.Option(help="Load client.")] = ClientKind.AUTO,
    freeze_ms: Annotated[float | None, typer.Option(help="Gap between tokens that is a freeze.")] = None,
    calibrate: Annotated[bool, typer.Option(help="Hold the client against the fixed-rate mock.")] = True,
    counter: Annotated[bool, typer.Option(help="Insist on the server's own token counter.")] = True,
    record: Annotated[Path | None, typer.Option(help="Write gate result and measurements here.")] = None,
    baselines: Annotated[Path | None, typer.Option(help="Folder of baselines to compare with.")] = None,
    record_baseline: Annotated[bool, typer.Option(help="Make this boot the baseline in --baselines.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Load a running server, check every number against another witness, and judge."""
    try:
        endpoint = Endpoint(url=url, model=model, route=route)
        plan = ThroughputPlan(
            input_words=input_words,
            output_tokens=output_tokens,
            concurrencies=_levels(concurrency),
            requests_per_stream=requests_per_stream,
            windows=windows,
            freeze_ms=freeze_ms,
            calibrate=calibrate,
            require_counter=counter,
            client=client,
        )
    except ValidationError as error:
        raise _plain(error) from error
    if record_baseline and not baselines:
        raise InputError("there is nowhere to put the baseline", fix="add --baselines FOLDER")
    result, measured = run_throughput(endpoint, plan, baselines=baselines, say=console.say)
    if record_baseline and baselines:
        console.say(f"recorded {save_baseline(baselines, result, measured)}")
    document = {"result": result.model_dump(mode="json"), "measured": measured.model_dump(mode="json")}
    if record:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if as_json:
        console.print_json(document)
    else:
        _show(result, measured)
    # Without a baseline nothing is wrong with the server; a release still cannot exist.
    if result.verdict not in {Verdict.PASS, Verdict.NO_BASELINE}:
        raise typer.Exit(1)


def _show(result: GateResult, measured: Throughput) -> None:
    table = Table(title=f"{measured.model} · {measured.client.name} {measured.client.version}")
    for heading in ("load", "tok/s", "TTFT p50 ms", "TPOT p50 ms", "largest gap ms", "completed"):
        table.add_column(heading, justify="right")
    for window in [*measured.windows, *([measured.open_loop] if measured.open_loop else [])]:
        table.add_row(
            f"c={window.concurrency}" if window.request_rate is None else f"{window.request_rate:.3g}/s",
            f"{window.tokens_per_s:.1f}",
            f"{window.ttft_ms.p50:.1f}",
            f"{window.tpot_ms.p50:.2f}",
            f"{window.gap_ms.largest:.0f}",
            f"{window.completed}/{window.requested}",
        )
    console.out.print(table)
    checks = Table(title=f"throughput: {result.verdict}")
    for heading in ("check", "verdict", "seen"):
        checks.add_column(heading)
    for check in result.checks:
        colour = _COLOURS.get(check.verdict, "yellow")
        checks.add_row(check.name, f"[{colour}]{check.verdict}[/]", "\n".join([check.seen, *check.details]))
    console.out.print(checks)
    for line in result.limitations:
        console.out.print(f"not checked: {line}", markup=False)


def bench_client(
    concurrency: Annotated[str, typer.Option(help="Closed-loop levels, ascending.")] = "1,64,256,1024",
    repeats: Annotated[int, typer.Option(help="Runs of each client at each level, interleaved.")] = 3,
    rounds: Annotated[int, typer.Option(help="Requests of each stream.")] = 4,
    aiperf: Annotated[bool, typer.Option(help="Compare with aiperf (about 1 GB, installed by uv).")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compare what load clients report with what a fixed-rate mock really wrote, and what they cost."""
    try:
        plan = BenchPlan(concurrencies=_levels(concurrency), repeats=repeats, rounds=rounds)
    except ValidationError as error:
        raise _plain(error) from error
    contenders = {
        "compiled": our_contender(load_client(ClientKind.COMPILED)),
        "fallback": our_contender(fallback_client()),
    }
    if aiperf:
        console.say("preparing aiperf in an environment of its own ...")
        contenders["aiperf"] = aiperf_contender(aiperf_program())
    result = bench_clients(plan, contenders, console.say)
    if as_json:
        console.print_json(result)
    else:
        _show_bench(result)
    if any(row.runs == 0 for row in result.rows):
        raise typer.Exit(1)


def _show_bench(result: BenchResult) -> None:
    pace = result.plan.pace
    table = Table(
        title=f"{result.processors} x {result.processor}, load {result.load_average:.1f} at the start; "
        f"mock: first token {pace.ttft_ms:g} ms, then one each {pace.itl_ms:g} ms"
    )
    table.add_column("c", justify="right")
    table.add_column("client", no_wrap=True)
    for heading in ("offered", "rate err", "TTFT err", "TPOT err", "CPU/1k", "spread", "mock", "runs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result.rows:
        cells = (
            f"{row.offered:.1%}",
            f"{row.rate_error:+.2%}",
            f"{row.ttft_error_ms:+.0f} ms",
            f"{row.tpot_error:+.2%}",
            f"{row.cpu_s_per_1k:.3f} s",
            f"{row.spread:.1%}",
            f"{row.mock_speed:.1%}",
        )
        runs = f"{row.runs}" + (f" ({row.failed} failed)" if row.failed else "")
        table.add_row(f"{row.concurrency}", row.client, *(cells if row.runs else ["-"] * len(cells)), runs)
    # Into a pipe rich would squeeze it to 80 columns, and a cut number is no number.
    Console(width=max(TABLE_WIDTH, console.out.width), highlight=False).print(table)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("throughput")(throughput)
    app.command("bench-client")(bench_client)
