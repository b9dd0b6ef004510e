"""For people who deploy by their own means: command, compose file and units that start what `deploy` starts.

All are made from the one `docker run` command that the host program's own function gives. An option that a
format cannot say is an error here, never left out.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tooling.deploy.export.command import shell_text, take_apart
from tooling.deploy.export.compose import compose_file
from tooling.deploy.export.quadlet import quadlet
from tooling.deploy.export.unit import systemd_unit
from tooling.host.contract import cache_directory, run_argv
from tooling.records import Record

if TYPE_CHECKING:
    from tooling.host.request import Request

__all__ = ["Exports", "export"]


class Exports(Record):
    """One release in every form.

    Attributes:
        docker_run: A shell command.
        compose: A compose file.
        systemd: A unit that runs the Docker client.
        quadlet: A Podman quadlet (`.container`).
        before: Commands that have to be run once before, e.g. to make the cache folder.
    """

    docker_run: str
    compose: str
    systemd: str
    quadlet: str
    before: tuple[str, ...] = ()


def export(request: Request) -> Exports:
    """Every form of one request.

    Raises:
        ToolkitError: The contract uses an option that a form cannot say.
    """
    name = f"{request.stack}-{request.group}" if request.group != "default" else request.stack
    argv = run_argv(request, name=name)
    command = take_apart(argv)
    cache = cache_directory(request)
    grace = request.contract.stop_grace_seconds
    return Exports(
        docker_run=shell_text(argv),
        compose=compose_file(name, command),
        systemd=systemd_unit(name, request.release, grace, command),
        quadlet=quadlet(name, request.release, grace, command),
        # The engine is no root in its container, and Docker makes missing folders for root alone.
        before=(f"sudo install -d -m 1777 {shlex.quote(cache)}",) if cache else (),
    )
