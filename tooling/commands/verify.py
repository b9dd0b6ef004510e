"""`verify-stack` and `verify-attach`: boot or attach, run the gates, print the verdict."""

from __future__ import annotations

from pathlib import Path  # typer reads it at run time
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.table import Table

from tooling import console
from tooling.errors import InputError
from tooling.gates.correctness import Tier
from tooling.gates.records import Verdict
from tooling.gates.throughput.plan import ThroughputPlan
from tooling.paths import checkout
from tooling.verify import VerifyRecord, verify_attached, verify_stack

AsJson = Annotated[bool, typer.Option("--json", help="Print the record as JSON on stdout.")]
TierOption = Annotated[Tier, typer.Option(help="T0 below a minute, T1 below ten, T2 about an hour.")]
Baselines = Annotated[Path | None, typer.Option(help="Folder of throughput baselines.")]
Output = Annotated[Path | None, typer.Option(help="Folder for record and evidence; by default below build/.")]
_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "bold red"}
_TABLE_WIDTH = 120


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("verify-stack")(verify)
    app.command("verify-attach")(attached)


def verify(
    stack: Annotated[str, typer.Argument(help="Name of the stack.")],
    *,
    device: Annotated[str, typer.Option(help="cpu or gpu; by default what the stack is for.")] = "",
    model: Annotated[
        Path | None, typer.Option(help="Folder or file of the model; default: the tiny one.")
    ] = None,
    profile: Annotated[str, typer.Option(help="Model profile: questions, answers, thresholds.")] = "tiny",
    tier: TierOption = Tier.T0,
    argument: Annotated[list[str] | None, typer.Option(help="A further serve argument, e.g. --x=1.")] = None,
    boots: Annotated[int, typer.Option(help="Boots; a comparison with a baseline needs three or more.")] = 1,
    against: Annotated[
        str, typer.Option(help="Image to compare with, booted by turns: A B B A. Give --boots 3 or more.")
    ] = "",
    baselines: Baselines = None,
    save_baseline: Annotated[bool, typer.Option(help="Make these boots the baseline in --baselines.")] = False,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Boot the image of a stack, hold it against the gates, and print the verdict of each."""
    if device not in {"", "cpu", "gpu"}:
        raise InputError(f"there is no device {device!r}", fix="write cpu or gpu")
    record = verify_stack(
        stack,
        checkout(),
        device=device,
        model=model,
        profile=profile,
        tier=tier,
        extra=argument or (),
        boots=boots,
        against=against,
        baselines=baselines,
        save=save_baseline,
        output=output,
    )
    _tell(record, as_json=as_json)


def attached(
    *,
    url: Annotated[str, typer.Option(help="Base URL of the running engine, without /v1.")],
    log: Annotated[Path | None, typer.Option(help="Its log file.")] = None,
    container: Annotated[str, typer.Option(help="Its container, instead of a log file.")] = "",
    engine: Annotated[str, typer.Option(help="sglang, vllm or xllamacpp: knows the log's wording.")] = "",
    version: Annotated[str, typer.Option(help="Version of the engine.")] = "",
    argument: Annotated[
        list[str] | None,
        typer.Option(help="A serve argument it was started with, e.g. --x=1; may be repeated."),
    ] = None,
    profile: Annotated[str, typer.Option("--profile", "--model-profile", help="Model profile.")] = "instruct",
    tier: TierOption = Tier.T0,
    concurrency: Annotated[str, typer.Option(help="Closed-loop levels of the load, ascending.")] = "1,8,32",
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer under load.")] = 128,
    input_words: Annotated[int, typer.Option(help="Words of each prompt under load.")] = 256,
    baselines: Baselines = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Hold a running engine that somebody else started against the same gates; it is left alone."""
    try:
        plan = ThroughputPlan(
            concurrencies=tuple(int(level) for level in concurrency.split(",")),
            output_tokens=output_tokens,
            input_words=input_words,
        )
    except (ValidationError, ValueError) as error:
        raise InputError("this load cannot be used", details=str(error).splitlines()[:4]) from error
    record = verify_attached(
        url,
        checkout(),
        log=log,
        container=container,
        engine=engine,
        version=version,
        arguments=argument or (),
        profile=profile,
        tier=tier,
        plan=plan,
        baselines=baselines,
        output=output,
    )
    _tell(record, as_json=as_json)


def _tell(record: VerifyRecord, *, as_json: bool) -> None:
    """Print the record; exit code 1 when a gate failed or could not decide."""
    if as_json:
        console.print_json(record)
    else:
        table = Table(
            title=f"{record.stack or 'attached engine'} on {record.device}: {record.verdict}",
            width=_TABLE_WIDTH,
        )
        for heading in ("gate", "check", "verdict", "seen"):
            table.add_column(heading, overflow="fold")
        for gate in record.gates:
            for check in gate.checks:
                colour = _COLOURS.get(check.verdict, "yellow")
                seen = "\n".join([check.seen, *check.details[:6]])
                table.add_row(gate.gate, check.name, f"[{colour}]{check.verdict}[/]", seen.replace("[", "\\["))
        console.out.print(table)
        limits = dict.fromkeys(
            [*record.limitations, *(line for gate in record.gates for line in gate.limitations)]
        )
        for line in limits:
            console.out.print(f"not checked: {line}", markup=False)
    if record.verdict is Verdict.NO_BASELINE:
        console.say("no baseline yet: nothing failed, and nothing was compared; a release needs a baseline")
    elif record.verdict is not Verdict.PASS:
        raise typer.Exit(1)
