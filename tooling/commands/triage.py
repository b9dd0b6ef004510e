"""`triage`: what a log says about the boot that wrote it."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer
from rich.markup import escape
from rich.table import Table

from tooling import console
from tooling.errors import InputError
from tooling.triage import LogTriage, Outcome, Role
from tooling.triage.reader import parse_stamp, read_chunks, split_chunks

if TYPE_CHECKING:
    from datetime import datetime

    from tooling.triage.records import TriageReport

_STYLES = {
    Outcome.OK: "green",
    Outcome.WARN: "yellow",
    Outcome.NOT_READY: "cyan",
    Outcome.INCONCLUSIVE: "magenta",
    Outcome.REFUSE: "bold red",
    Outcome.FAIL: "bold red",
}
#: Exit codes; 2 is a wrong command line.
_EXIT_CODES = {Outcome.OK: 0, Outcome.WARN: 0, Outcome.NOT_READY: 3, Outcome.INCONCLUSIVE: 4}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("triage")(triage_command)


def triage_command(
    log: Annotated[str, typer.Argument(metavar="LOGFILE|-", help="A log file, or - for stdin.")],
    engine: Annotated[str, typer.Option(help="sglang, vllm, ...; recognised from the log if left out.")] = "",
    version: Annotated[str, typer.Option(help="Version of the engine.")] = "",
    since: Annotated[
        str, typer.Option(help="Start of the boot (State.StartedAt); older lines are another boot's.")
    ] = "",
    device: Annotated[str, typer.Option(help="gpu, or cpu for a dry boot.")] = "gpu",
    *,
    json: Annotated[bool, typer.Option("--json", help="The report as JSON on stdout.")] = False,
) -> None:
    """Say what a log means: the root cause of a failure, what is on, what is off.

    Exit code 0: nothing wrong, or warnings; 1: the boot failed or must be refused; 3: still on its way; 4: the
    log does not tell.
    """
    if device not in ("gpu", "cpu"):
        raise InputError(f"unknown device {device!r}", fix="write gpu or cpu")
    reader = LogTriage(engine=engine, version=version, since=_since(since), device=device)
    with ExitStack() as stack:
        for line in split_chunks(read_chunks(_open(log, stack))):
            reader.feed(line)
    report = reader.report()
    if json:
        console.print_json(report)
    else:
        _print(report)
    code = _EXIT_CODES.get(report.outcome, 1)
    if code:
        raise typer.Exit(code)


def _since(text: str) -> datetime | None:
    if not text:
        return None
    stamp = parse_stamp(text)
    if stamp is None:
        raise InputError(f"{text!r} is no time", where="--since", fix="write 2026-06-01T12:30:00Z")
    return stamp


def _open(log: str, stack: ExitStack) -> BinaryIO:
    if log == "-":
        return sys.stdin.buffer
    try:
        return stack.enter_context(Path(log).open("rb"))
    except OSError as error:
        raise InputError(f"the log cannot be read: {error.strerror}", where=log) from error


def _print(report: TriageReport) -> None:
    style = _STYLES[report.outcome]
    console.out.print(f"[{style}]{report.outcome}[/] {escape(report.diagnosis)}")
    if report.root is not None:
        console.out.print(f"  line {report.root.first_line}: {escape(report.root.text)}")
    if report.advice:
        console.out.print(f"  to do: {escape(report.advice)}")
    for note in report.notes:
        console.out.print(f"  note: {escape(note)}")
    table = Table("line", "count", "outcome", "role", "signature", "meaning")
    for finding in report.findings:
        if finding.role is not Role.PROGRESS:
            table.add_row(
                str(finding.first_line),
                str(finding.count),
                f"[{_STYLES[finding.outcome]}]{finding.outcome}[/]",
                finding.role.value,
                finding.signature,
                escape(finding.meaning),
            )
    if table.row_count:
        console.out.print(table)
    console.say(f"{report.lines_read} lines of this boot read")
