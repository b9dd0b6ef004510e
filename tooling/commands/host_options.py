"""Options that the commands about hosts share, and what all of them do with a host."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tooling import console
from tooling.deploy.channel import Channel
from tooling.deploy.inventory import INVENTORY_VARIABLE
from tooling.deploy.session import HostSession
from tooling.deploy.view import progress_line
from tooling.release.records import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tooling.deploy.installing import HostProgram
    from tooling.deploy.inventory import Host
    from tooling.deploy.session import Event

Release = Annotated[
    str, typer.Argument(help="host[:port]/repository:RELEASE or :CHANNEL, oci:DIRECTORY, or a bare RELEASE "
                             "with an inventory that names its repository.")
]  # fmt: skip
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", help="user@host as for ssh, a name of the inventory, or local; repeatable."),
]
InventoryFile = Annotated[
    Path | None, typer.Option("--inventory", envvar=INVENTORY_VARIABLE, help="YAML file of hosts.")
]
Groups = Annotated[list[str] | None, typer.Option("--group", help="Only these GPU groups; repeatable.")]
SshConfig = Annotated[Path | None, typer.Option(help="ssh configuration in place of your own.")]
Root = Annotated[str, typer.Option(help="Where the host keeps its generations.")]
Sudo = Annotated[bool, typer.Option("--sudo", help="Go through sudo -n on the host.")]
Model = Annotated[str, typer.Option(help="ID@REVISION of the weights, the full commit of the hub.")]
ModelPath = Annotated[str, typer.Option(help="Weights on the host outside of a Hugging Face cache.")]
ModelCache = Annotated[str, typer.Option(help="Hugging Face cache on the host.")]
Gpus = Annotated[str, typer.Option(help="GPUs of the host, e.g. 0,1,2,3, or UUIDs.")]
Port = Annotated[int | None, typer.Option(help="TCP port on the host; 30000 unless given.")]
Bind = Annotated[
    str,
    typer.Option(help="Address that the port is published on; the loopback unless given: there is no login."),
]
Argument = Annotated[list[str] | None, typer.Option(help="A further serve argument, e.g. --tp=4; repeatable.")]
EnvironmentFile = Annotated[
    list[str] | None, typer.Option("--env-file", help="File on the host with NAME=value lines, for secrets.")
]
Accept = Annotated[
    Status | None, typer.Option(help="Take a release that is less than qualified; recorded on the host.")
]
Reason = Annotated[str, typer.Option(help="Why it is accepted, or why it is rolled back.")]


def ready_session(host: Host, program: HostProgram, config: Path | None) -> HostSession:
    """A host with the host program in place.

    Raises:
        HostFault: It cannot be reached, or the program cannot be put there.
    """
    session = HostSession(Channel(host, config), program)
    if session.install(session.look()):
        console.say(f"{host.name}: host program {program.sha256[:12]} installed")
    return session


def printer(host: str, group: str) -> Callable[[Event], None]:
    """Shows the events of one operation, on stderr; what only repeats the last words is left out."""
    last: list[str] = []

    def show(event: Event) -> None:
        words = [event.step, event.state, event.message]
        if words != last:
            last[:] = words
            console.say(progress_line(host, group, event))

    return show


def print_commands(commands: Sequence[Sequence[str]], *, as_json: bool) -> None:
    """Commands as they would be run, for a shell or as data."""
    if as_json:
        console.print_json([list(command) for command in commands])
        return
    for command in commands:
        typer.echo(shlex.join(command))
