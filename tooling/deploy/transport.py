"""The exact commands by which a host is reached; pure, so that a test can hold every word of them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pydantic import Field

from tooling.errors import InputError
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.deploy.inventory import Host

#: Seconds to connect; then seconds between signs of life, and how many may be missed.
CONNECT_TIMEOUT_S, ALIVE_INTERVAL_S, ALIVE_MISSED = 15, 15, 4


class Forward(Record):
    """A port of the host's loopback that leads back to one of ours, while the command runs.

    Attributes:
        there: Port on the host.
        here: Port on this machine.
    """

    there: int = Field(ge=1, le=65535)
    here: int = Field(ge=1, le=65535)


def ssh_options(
    host: Host, *, config: Path | None = None, forward: Forward | None = None, terminal: bool = False
) -> list[str]:
    """Options of the system's ssh.

    Nothing is ever asked (`BatchMode`) and an unknown or changed host key is refused; agent, keys, users, ports
    and ProxyJump come from the user's own configuration.
    """
    options = ["-F", str(config)] if config else []
    options += ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
    options += ["-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}"]
    options += ["-o", f"ServerAliveInterval={ALIVE_INTERVAL_S}", "-o", f"ServerAliveCountMax={ALIVE_MISSED}"]
    if host.jump:
        options += ["-J", host.jump]
    if forward:
        ends = f"127.0.0.1:{forward.there}:127.0.0.1:{forward.here}"
        options += ["-o", "ExitOnForwardFailure=yes", "-R", ends]
    return [*options, "-t" if terminal else "-T"]


def remote_command(
    host: Host, argv: Sequence[str], *, config: Path | None = None, forward: Forward | None = None
) -> list[str]:
    """The command on this machine that runs a program on a host.

    Args:
        host: Where.
        argv: Program and arguments there; they arrive as they are, whatever characters they hold.
        config: An ssh configuration in place of the user's own.
        forward: A port to forward meanwhile; on this machine none is needed and none is made.

    Raises:
        InputError: The transport cannot forward ports into the host.
    """
    words = [*(["sudo", "-n"] if host.sudo else []), *argv]
    if host.transport == "pct":
        if forward is not None:
            raise InputError(
                "pct exec forwards no port into a container",
                where=host.name,
                fix="give the container an sshd and use transport ssh, or a registry that it can reach",
            )
        # sudo is for pct itself; inside the container the command is root's already.
        words = [*(["sudo", "-n"] if host.sudo else []), "pct", "exec", str(host.container), "--", *argv]
    if not host.destination:
        return words
    options = ssh_options(host, config=config, forward=forward)
    # The far shell takes the words apart again, so they are quoted for it.
    return ["ssh", *options, "--", host.destination, shlex.join(words)]


def check_can_forward(host: Host) -> None:
    """Refuse a host into which no port can be forwarded, before anything is begun there.

    Raises:
        InputError: It is one.
    """
    remote_command(host, ["true"], forward=Forward(there=1, here=1))


def host_program(host: Host, program: str, group: str, *words: str) -> list[str]:
    """The host program's command line on the host."""
    return [host.python, program, "--root", host.root, "--group", group, "--json", *words]
