"""`judge`: the rules of the correctness gate and of deploys on what somebody else recorded."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003  # typer looks it up
from typing import Annotated

import typer

from tooling import console
from tooling.deploy.recorded import judge_host
from tooling.errors import InputError
from tooling.gates.correctness.recorded import judge_bodies, judge_launches, judge_scores
from tooling.gates.correctness.sse import judge_extraction
from tooling.gates.records import Check, Verdict


class Kind(StrEnum):
    """What was recorded."""

    ANSWERS = "answers"
    STREAM = "stream"
    LAUNCHES = "launches"
    SCORES = "scores"
    HOST = "host"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="judge")(judge)


def judge(  # noqa: PLR0917  # options of a command line
    kind: Annotated[Kind, typer.Argument(help="What the file holds.")],
    file: Annotated[
        Path,
        typer.Argument(
            help="Bodies, a stream's bytes, rows of launches, a table of scores, or messages of a host."
        ),
    ],
    questions: Annotated[int | None, typer.Option(help="Questions behind each number.")] = None,
    extracted: Annotated[Path | None, typer.Option(help="stream: the text that a reader took from it.")] = None,
    whole: Annotated[Path | None, typer.Option(help="stream: the answer without streaming.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Judge recorded answers, streams, launches, scores, or a host's own words, by the product's own rules."""
    raw = _read(file)
    text = raw.decode("utf-8", "replace")
    if kind is Kind.STREAM:
        if extracted is None:
            raise InputError("a stream is judged against what a reader made of it", fix="give --extracted FILE")
        taken = _read(extracted).decode().rstrip("\n")
        checks = [judge_extraction(raw, taken, _read(whole).decode().rstrip("\n") if whole else None)]
    elif kind is Kind.ANSWERS:
        checks = judge_bodies(text)
    elif kind is Kind.HOST:
        checks = judge_host(text)
    elif kind is Kind.LAUNCHES:
        checks = judge_launches(text, questions)
    else:
        checks = judge_scores(text, questions)
    _print(checks, json=json)
    if any(check.verdict is not Verdict.PASS for check in checks):
        raise typer.Exit(1)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError("the file cannot be read", where=str(file), fix=str(error)) from error


def _print(checks: list[Check], *, json: bool) -> None:
    if json:
        console.print_json([check.model_dump(mode="json") for check in checks])
        return
    for check in checks:
        console.out.print(f"{check.verdict:13} {check.name}: {check.seen}", markup=False)
        for line in check.details:
            console.out.print(f"{'':13} {line}", markup=False)
