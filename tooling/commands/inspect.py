"""`inspect`: what can be proved of an image without a GPU."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from tooling import console
from tooling.dockerhost import ensure_engine
from tooling.errors import CheckError
from tooling.gates.records import GateResult, Verdict
from tooling.inspection import inspect_image
from tooling.paths import checkout


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inspect")(inspect)


def inspect(
    stack: Annotated[str, typer.Argument(help="Name of the stack.")],
    image: Annotated[str | None, typer.Option(help="Image; by default what was built last.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Inspect an image: device code, compiled kernels, patches, arch gates, contents; no GPU is needed."""
    result = inspect_image(stack, checkout(), ensure_engine(console.say), console.say, image)
    if as_json:
        console.print_json(result)
    else:
        console.out.print(_table(result))
        for line in result.limitations:
            console.out.print(Text(f"not checked: {line}", "dim"))
    if result.verdict is not Verdict.PASS:
        if as_json:
            raise typer.Exit(CheckError.exit_code)
        bad = [check for check in result.checks if check.verdict is not Verdict.PASS]
        raise CheckError(
            f"verdict {result.verdict}: {len(bad)} of {len(result.checks)} checks did not pass",
            details=[f"{check.name}: {check.seen}" for check in bad],
            fix="see the rows above",
        )


def _table(result: GateResult) -> Table:
    table = Table("verdict", "check", "seen", title=f"{result.gate}: {result.verdict}", title_justify="left")
    for check in result.checks:
        colour = "green" if check.verdict is Verdict.PASS else "red"
        table.add_row(Text(check.verdict, colour), Text(check.name), Text(check.seen))
        if check.verdict is not Verdict.PASS:
            for line in check.details:
                table.add_row("", "", Text(f"  {line}", "dim"))
    return table
