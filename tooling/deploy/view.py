"""Tables and lines for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from tooling.records import Record

if TYPE_CHECKING:
    from tooling.deploy.rollout import Rollout
    from tooling.deploy.session import Event

_COLOURS = {"done": "green", "failed": "bold red", "not begun": "yellow"}
_SHORT = 19


def progress_line(host: str, group: str, event: Event) -> str:
    """One event as a line."""
    return f"{host}/{group} {event.time[11:19]} {event.step} {event.state}: {event.message}"


def rollout_table(rollout: Rollout) -> Table:
    """What came of a deploy."""
    table = Table(title=f"{rollout.release}, {rollout.digest[:_SHORT]}", title_justify="left")
    for heading in ("host", "group", "state", "operation", "sent", ""):
        table.add_column(heading)
    for step in rollout.steps:
        sent = "" if step.bytes_sent is None else f"{step.bytes_sent} B"
        state = Text(step.state, style=_COLOURS[step.state])
        table.add_row(step.host, step.group, state, step.operation, sent, Text(step.message))
    return table


class HostAnswer(Record):
    """What one group of one host answered.

    Attributes:
        host: Name of the host.
        group: GPU group; empty when the host could not be asked at all.
        answer: The host program's document.
        error: Why there is none.
    """

    host: str
    group: str
    answer: Any = None
    error: str = ""
