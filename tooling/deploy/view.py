"""Tables and lines for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tooling import console
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.deploy.rollout import Rollout
    from tooling.deploy.session import Event

_COLOURS = {"done": "green", "failed": "bold red", "not begun": "yellow"}
_SHORT = 19
_FILE_WIDTH = 180
_BAD, _GOOD, _WARN = "bold red", "green", "yellow"


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


def show(table: Table) -> None:
    """Print a table: as wide as the terminal, or wide enough for a file."""
    wide = console.out if console.out.is_terminal else Console(file=console.out.file, width=_FILE_WIDTH)
    wide.print(table)


def progress_line(host: str, group: str, event: Event) -> str:
    """One event as a line."""
    state = {"start": "...", "progress": "...", "done": "done", "failed": "FAILED"}[event.state]
    return f"{host}/{group} {event.time[11:19]} {event.step} {state} {event.message}"


def rollout_table(rollout: Rollout) -> Table:
    """What came of a deploy."""
    table = Table(title=f"{rollout.release}, {rollout.digest[:_SHORT]}", title_justify="left")
    for heading in ("host", "group", "state", "operation", "dark s", "sent", ""):
        table.add_column(heading)
    for step in rollout.steps:
        sent = "" if step.bytes_sent is None else f"{step.bytes_sent} B"
        state = Text(step.state, style=_COLOURS[step.state])
        dark = "" if step.dark_seconds is None else f"{step.dark_seconds:.1f}"
        words = Text(step.message.split("\n")[0])
        table.add_row(step.host, step.group, state, step.operation, dark, sent, words)
    return table


def group_status(row: HostAnswer) -> dict[str, Any]:
    """The status document of the one group that was asked for."""
    groups = row.answer.get("groups", []) if isinstance(row.answer, dict) else []
    return next((each for each in groups if each.get("group") == row.group), {})


def is_well(row: HostAnswer) -> bool:
    """Whether a group serves what is committed there, or is meant not to serve."""
    found = group_status(row)
    if row.error or not found or found.get("faults"):
        return False
    return found.get("wanted") != "running" or bool(found.get("serving") and found.get("ready"))


def status_table(rows: Sequence[HostAnswer]) -> Table:
    """What every host and group serves."""
    table = Table(title="hosts", title_justify="left")
    for heading in ("host", "group", "state", "now", "release", "image", "model", "since", "back to"):
        table.add_column(heading)
    for row in rows:
        found = group_status(row)
        current = found.get("current") or {}
        model = current.get("model") or {}
        words, style = _state(row, found)
        table.add_row(
            row.host,
            row.group,
            Text(words, style=style),
            str(current.get("generation", "")),
            str(current.get("release", "")),
            str(current.get("digest", ""))[:_SHORT],
            f"{model['id']}@{str(model.get('revision', ''))[:12]}" if model else "",
            str(current.get("since", ""))[:19],
            _ways_back(found, current),
        )
    return table


def _state(row: HostAnswer, found: dict[str, Any]) -> tuple[str, str]:
    if row.error:
        return row.error.splitlines()[0], _BAD
    if found.get("faults"):
        return "; ".join(found["faults"]), _BAD
    if found.get("busy"):
        return "an operation runs", _WARN
    if not found.get("current") or found.get("wanted") != "running":
        return ("stopped on purpose" if found.get("current") else "nothing was deployed"), _WARN
    if not found.get("serving"):
        return "does not run", _BAD
    return ("answers", _GOOD) if found.get("ready") else ("runs, does not answer yet", _WARN)


def _ways_back(found: dict[str, Any], current: dict[str, Any]) -> str:
    """Generations that served and whose images are there."""
    return ", ".join(
        str(each["generation"])
        for each in found.get("earlier", [])
        if each.get("served") and each.get("image_present") and each["generation"] != current.get("generation")
    )


def history_table(row: HostAnswer) -> Table:
    """What one group did, the newest last."""
    table = Table(title=f"{row.host}/{row.group}" if row.group else row.host, title_justify="left")
    for heading in ("time", "action", "generation", "release", "dark s", "operation", ""):
        table.add_column(heading)
    if row.error:
        table.add_row("", "", "", "", "", "", Text(row.error.splitlines()[0], style=_BAD))
        return table
    for line in row.answer.get("history", []):
        table.add_row(
            str(line.get("time", ""))[:19],
            str(line.get("action", "")),
            str(line.get("generation", "")),
            str(line.get("release", "")),
            str(line.get("dark_seconds", "")),
            str(line.get("operation", "")),
            Text(str(line.get("error", ""))),
        )
    return table
