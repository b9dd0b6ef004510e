"""`rollback`, `status` and `history`: what hosts serve, what they served, and back to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tooling import console
from tooling.commands.host_options import (
    Groups,
    Hosts,
    InventoryFile,
    Root,
    SshConfig,
    Sudo,
    print_commands,
    printer,
    ready_session,
)
from tooling.commands.release_options import AsJson  # noqa: TC001  # typer reads it at run time
from tooling.deploy.choose import Overrides, choose
from tooling.deploy.installing import current_program
from tooling.deploy.session import operation_failed
from tooling.deploy.transport import host_program, remote_command
from tooling.deploy.view import HostAnswer, history_table, is_well, show, status_table
from tooling.errors import ToolkitError

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.deploy.choose import Chosen
    from tooling.deploy.session import Outcome


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("rollback")(rollback)
    app.command("status")(status)
    app.command("history")(history)


def rollback(
    generation: Annotated[
        int | None, typer.Argument(help="Number in the history; the one before by default.")
    ] = None,
    *,
    host: Hosts = None,
    inventory: InventoryFile = None,
    group: Groups = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the exact commands.")] = False,
    root: Root = "",
    sudo: Sudo = False,
    ssh_config: SshConfig = None,
    as_json: AsJson = False,
) -> None:
    """Bring back a generation that served, with its arguments, mounts and model; no network is needed.

    Doing it twice is the same as doing it once. Hosts and groups go one after another, up to the first failure.
    """
    chosen = choose(inventory, host or (), group or (), Overrides(root=root, sudo=sudo))
    words = ["rollback", *([str(generation)] if generation is not None else [])]
    program = current_program()
    if dry_run:
        commands = [
            remote_command(each, host_program(each, program.path(each), group_.name, *words), config=ssh_config)
            for each in chosen.hosts
            for group_ in chosen.groups_of(each)
        ]
        print_commands(commands, as_json=as_json)
        return
    outcomes: list[Outcome] = []
    for each in chosen.hosts:
        session = ready_session(each, program, ssh_config)
        for group_ in chosen.groups_of(each):
            if not outcomes or outcomes[-1].exit_code == 0:
                outcomes.append(session.operate(group_.name, words, printer(each.name, group_.name)))
    if as_json:
        console.print_json([outcome.model_dump(mode="json") for outcome in outcomes])
    for outcome in outcomes:
        if outcome.exit_code:
            raise operation_failed(outcome)
        if not as_json:
            console.out.print(Text(f"{outcome.host}/{outcome.group}: {outcome.message}"))


def status(
    *,
    host: Hosts = None,
    inventory: InventoryFile = None,
    group: Groups = None,
    root: Root = "",
    sudo: Sudo = False,
    ssh_config: SshConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show what every host and group serves, in one table; exit code 1 when one is not as it should be."""
    chosen = choose(inventory, host or (), group or (), Overrides(root=root, sudo=sudo))
    rows = _ask_all(chosen, ssh_config, "status")
    if as_json:
        console.print_json([row.model_dump(mode="json") for row in rows])
    else:
        show(status_table(rows))
    if any(not is_well(row) for row in rows):
        raise typer.Exit(1)


def history(
    *,
    host: Hosts = None,
    inventory: InventoryFile = None,
    group: Groups = None,
    root: Root = "",
    sudo: Sudo = False,
    ssh_config: SshConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show what every host and group has served and tried, the newest last."""
    chosen = choose(inventory, host or (), group or (), Overrides(root=root, sudo=sudo))
    rows = _ask_all(chosen, ssh_config, "history")
    if as_json:
        console.print_json([row.model_dump(mode="json") for row in rows])
    else:
        for row in rows:
            show(history_table(row))
    if any(row.error for row in rows):
        raise typer.Exit(1)


def _ask_all(chosen: Chosen, config: Path | None, command: str) -> list[HostAnswer]:
    """Ask every group of every host; one that cannot be asked is a row as well."""
    program = current_program()
    rows: list[HostAnswer] = []
    for host in chosen.hosts:
        try:
            session = ready_session(host, program, config)
            for group in chosen.groups_of(host):
                answer = session.ask(group.name, command)
                rows.append(HostAnswer(host=host.name, group=group.name, answer=answer))
        except ToolkitError as error:
            rows.append(HostAnswer(host=host.name, group="", error=str(error)))
    return rows
