"""`prune`: device code that no target can run, and what a stack lists, leave a folder."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from tooling import console
from tooling.prune.records import PruneRules, load_prune_rules
from tooling.prune.run import prune_tree

if TYPE_CHECKING:
    from tooling.prune.records import PruneReport

_COLOURS = {"pruned": "green", "deleted": "yellow", "skipped": "red"}
_MB = 1e6


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("prune")(prune_command)


def prune_command(
    root: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that is EDITED IN PLACE.")],
    *,
    keep: Annotated[list[str], typer.Option(help="Target that is kept, e.g. sm_120. May be repeated.")],
    rules: Annotated[Path | None, typer.Option(help="Prune rules of the stack, YAML.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the report there; one of an earlier run is carried on.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON on stdout.")] = False,
) -> None:
    """Take device code that no target can run, and what the rules list, out of a folder. Edits it IN PLACE."""
    wanted = load_prune_rules(rules) if rules else PruneRules()
    console.say(
        f"warning: libraries below {root} are edited in place; other GPUs than {', '.join(keep)} lose them"
    )
    if report is None:
        console.say("no --report: nothing will be able to tell a pruned file from a damaged one")
    done = prune_tree(root, keep, wanted, report, console.say)
    if as_json:
        console.print_json(done)
    else:
        console.out.print(_table(done))


def _table(report: PruneReport) -> Table:
    table = Table(title=report.root)
    for name in ("file", "", "MB before", "MB after", "MB kept", "MB left for others", ""):
        table.add_column(name, overflow="fold", justify="right" if name.startswith("MB") else "left")
    for file in report.files:
        if file.status == "unchanged" and not file.bytes_foreign_left:
            continue
        sizes = (file.bytes_before, file.bytes_after, file.bytes_kept, file.bytes_foreign_left)
        status = Text(file.how or file.status, _COLOURS.get(file.status, ""))
        table.add_row(Text(file.path), status, *(f"{size / _MB:.1f}" for size in sizes), Text(file.reason))
    for unread in report.unread:
        table.add_row(Text(unread.path), Text("not read", "red"), "", "", "", "", Text(unread.reason))
    totals = report.totals
    for name, what in (("stripped", "without symbols"), ("dropped", "dropped"), ("linked", "copies linked")):
        if totals.get(name):
            saved = f"{totals[f'bytes_{name}'] / _MB:.1f} MB less"
            table.add_row(f"{totals[name]} files", Text(what, "green"), "", "", "", "", saved)
    for kept in report.stripped:
        if kept.reason:
            table.add_row(Text(kept.path), Text("symbols kept", "red"), "", "", "", "", Text(kept.reason))
    sums = (totals.get(f"bytes_{name}", 0) for name in ("before", "after", "kept", "foreign_left"))
    table.add_section()
    table.add_row(f"{len(report.files)} files", "", *(f"{size / _MB:.1f}" for size in sums), "")
    return table
