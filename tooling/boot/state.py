"""What the Docker Engine says of a container, as a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Mapping


class ContainerState(Record):
    """State of one container.

    Attributes:
        running: Its first process lives (and it is not waiting for a restart).
        status: Docker's word: created, running, restarting, exited, dead.
        exit_code: Of the last end; 0 while it never ended.
        oom_killed: Its memory limit killed something in it.
        error: Docker's own message on a failed start.
        started_at: ISO 8601 with nanoseconds, of the present run.
        finished_at: Same, of the last end.
        restarts: Restarts by its policy.
    """

    running: bool
    status: str
    exit_code: int
    oom_killed: bool
    error: str
    started_at: str
    finished_at: str
    restarts: int


def parse_state(inspected: Mapping[str, Any], *, oom_seen: bool = False) -> ContainerState:
    """Read `docker inspect` of a container.

    Args:
        inspected: The inspected container.
        oom_seen: Docker reported an `oom` event; the flag of the state is not set when a child process was
            killed and the first one lived on.
    """
    state = inspected["State"]
    return ContainerState(
        running=bool(state["Running"]) and not state.get("Restarting", False),
        status=str(state["Status"]),
        exit_code=int(state["ExitCode"]),
        oom_killed=bool(state["OOMKilled"]) or oom_seen,
        error=str(state["Error"]),
        started_at=str(state["StartedAt"]),
        finished_at=str(state["FinishedAt"]),
        restarts=int(inspected.get("RestartCount", 0)),
    )


def has_crashed_again(before: ContainerState, after: ContainerState) -> bool:
    """Whether a restart policy started the container anew: the first time is one too many."""
    return (
        after.status == "restarting"
        or after.restarts > before.restarts
        or (after.running and after.started_at != before.started_at)
    )
