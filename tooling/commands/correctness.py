"""`correctness`: the correctness gate against any OpenAI-compatible server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tooling import console
from tooling.errors import InputError
from tooling.gates.correctness import Endpoint, Tier, load_baselines, load_profile, run_correctness
from tooling.gates.correctness.battery import ANSWERS
from tooling.gates.records import GateResult, Verdict

#: Environment variable with the server's bearer token; it never appears in arguments.
API_KEY = "BLACKWELL_STACKS_API_KEY"
_STYLE = {Verdict.PASS: "green", Verdict.FAIL: "bold red"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="correctness")(correctness)


def correctness(  # noqa: PLR0917  # options of a command line
    url: Annotated[str, typer.Option(help="The server, e.g. http://127.0.0.1:30000.")],
    profile: Annotated[str, typer.Option(help="Model profile: a name under stacks/models/, or a file.")],
    tier: Annotated[Tier, typer.Option(help="T0: a minute, T1: ten minutes, T2: an hour.")] = Tier.T0,
    model: Annotated[str, typer.Option(help="Name of the model, where several are served.")] = "",
    baseline: Annotated[
        list[Path] | None, typer.Option(help="Answers of earlier launches; repeatable.")
    ] = None,
    write_baseline: Annotated[Path | None, typer.Option(help="Write this launch's answers here.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with question files for T1 and T2.")] = None,
    evidence: Annotated[Path, typer.Option(help="Folder for the raw log.")] = Path(
        "build/evidence/correctness"
    ),
    boot: Annotated[str, typer.Option(help="What was launched, e.g. the container's id.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the gate's record as JSON.")] = False,
) -> None:
    """Check the answers of a running server: right, finite, at every length, under load."""
    if write_baseline and write_baseline.exists():
        raise InputError(
            "the baseline to write is there already", where=str(write_baseline), fix="name a new file"
        )
    result = run_correctness(
        Endpoint(url, model, os.environ.get(API_KEY, "")),
        load_profile(profile),
        tier,
        load_baselines(baseline or []),
        evidence=evidence,
        data=data,
        boot=boot,
        say=console.say,
    )
    if write_baseline and (evidence / ANSWERS).is_file():
        write_baseline.write_bytes((evidence / ANSWERS).read_bytes())
    if json:
        console.print_json(result)
    else:
        console.out.print(_table(result))
        for limitation in result.limitations:
            console.say(f"limitation: {limitation}")
        console.say(f"verdict: {result.verdict}; raw log in {evidence}")
    if result.verdict is not Verdict.PASS:
        raise typer.Exit(1)


def _table(result: GateResult) -> Table:
    table = Table("check", "verdict", "seen", title=f"gate {result.gate}")
    for check in result.checks:
        style = _STYLE.get(check.verdict, "yellow")
        details = "" if check.verdict is Verdict.PASS else "".join(f"\n  {line}" for line in check.details)
        table.add_row(check.name, f"[{style}]{check.verdict}[/]", _plain(check.seen + details))
    return table


def _plain(text: str) -> str:
    """Text without markup: answers of a model may hold brackets."""
    return text.replace("[", "\\[")
