"""How a release is shown to people; the same words everywhere, waivers and limitations never left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tooling.release.records import Assessment, State, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.release.verify import Listed, Verification

_STATUS_STYLE = {Status.QUALIFIED: "green", Status.SOURCE_QUALIFIED: "yellow", Status.UNTESTED: "red"}
_STATE_STYLE = {State.MET: "green", State.WAIVED: "yellow", State.MISSING: "red", State.FAILED: "red"}


def summary(found: Verification) -> Text:
    """Name, status with its hardware, key, waivers, limitations and later failures of a verified release."""
    release = found.release
    text = Text()
    text.append(f"{release.name}  ")
    text.append(found.status.value, style=_STATUS_STYLE[found.status])
    text.append(f"\n  image       {found.source}@{found.digest}")
    text.append(f"\n  hardware    {'; '.join(release.assessment.hardware) or 'none: it ran on no target'}")
    text.append(f"\n  released    {release.created}, signed by key {found.key_id[:12]}")
    for waiver in release.waivers:
        expired = waiver in found.expired_waivers
        text.append("\n  EXPIRED     " if expired else "\n  waiver      ", style="red" if expired else "yellow")
        text.append(waiver.describe())
    for line in release.assessment.limitations:
        text.append(f"\n  limitation  {line}")
    for line in found.notes:
        text.append(f"\n  later       {line}", style="red")
    return text


def checklist(assessment: Assessment) -> Table:
    """The requirements and how each stands."""
    table = Table("requirement", "state", "found")
    for item in assessment.items:
        table.add_row(item.requirement, Text(item.state.value, style=_STATE_STYLE[item.state]), Text(item.text))
    return table


def list_table(listed: Sequence[Listed]) -> Table:
    """One row a release."""
    table = Table("release", "status", "hardware", "waivers")
    # Half a name is of no use to anybody.
    table.columns[0].no_wrap = True
    table.columns[0].min_width = max((len(item.name) for item in listed), default=0)
    for item in listed:
        status = (
            Text(item.status.value, style=_STATUS_STYLE[item.status])
            if item.status
            else Text(item.problem, style="red")
        )
        table.add_row(item.name, status, Text("\n".join(item.hardware)), Text("\n".join(item.waivers)))
    return table
