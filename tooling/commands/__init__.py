"""The commands of the console script: one module a family, each with `register(app)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tooling.commands import (
    bench_kernels,
    build,
    census,
    correctness,
    deploy,
    gates,
    hosts,
    inspect,
    judge,
    patches,
    probe,
    prune,
    release,
    release_stack,
    throughput,
    triage,
    verify,
)

if TYPE_CHECKING:
    import typer


class CommandModule(Protocol):
    """A module that adds its commands to the console script."""

    def register(self, app: typer.Typer) -> None:
        """Add the commands."""


COMMAND_MODULES: tuple[CommandModule, ...] = (
    bench_kernels,
    build,
    census,
    correctness,
    deploy,
    gates,
    hosts,
    inspect,
    judge,
    patches,
    probe,
    prune,
    release,
    release_stack,
    throughput,
    triage,
    verify,
)
