"""The swap: the old stack stops, the new one starts and must answer, and one rename decides which one it is.

The GPUs hold one of them at a time, so between stop and answer nothing serves. Until the commit every failure
leads back to the old generation; after it, nothing does.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Optional

from tooling.errors import CheckError, ToolkitError
from tooling.host.containers import how_it_ended
from tooling.host.faults import at
from tooling.host.keep import apply_keep_rule
from tooling.host.state import RUNNING, Pending
from tooling.host.steps import GUARDED, Times, bring_up, check, take_down, wait_gpus
from tooling.host.way_back import as_toolkit_error, take_back

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.host.host import Host
    from tooling.host.state import Current, Generation

_CONFIRM_POLL_S = 0.2
#: File in an operation's folder by which somebody confirms it.
CONFIRMED = "confirmed"


def swap(host: Host, target: Generation, kind: str) -> dict[str, Any]:
    """Bring up a generation in place of the one that serves.

    Everything that can fail without an outage was done before: image, pin and stopped container are there.

    Args:
        host: Where.
        target: What is to serve.
        kind: `deploy`, `rollback`, `start`.

    Returns:
        Facts of the swap, for result and history.

    Raises:
        SwapError: The old generation serves again, or nothing does (exit code 4).
    """
    before = host.group.current()
    old = _serving_before(host, before, target)
    host.group.intend(Pending(kind, target.number, before.generation if before else 0, host.operation))
    at("intent")
    times = Times()
    try:
        facts = _change_over(host, old, target, times)
        if kind == "deploy" and target.request.confirm_seconds:
            _wait_confirmed(host, target)
        if before is not None and before.generation == target.number:
            host.group.want(RUNNING)
        else:
            host.group.commit(target.number, kind, engine=str(host.docker.version()["Server"]["Version"]))
    except Exception as error:  # whatever it was: the old generation must serve again
        if not _is_committed(host, target):
            raise take_back(host, old, target, as_toolkit_error(error), times) from error
        host.events.failed("commit", as_toolkit_error(error))
        facts = {"generation": target.number}
    at("committed")
    host.events.done("commit", f"generation {target.number} is committed", generation=target.number)
    finish(host, kind, host.operation, facts)
    return facts


def _is_committed(host: Host, target: Generation) -> bool:
    """Whether the rename happened, although something failed after it."""
    current = host.group.current()
    return current is not None and (current.generation, current.wanted) == (target.number, RUNNING)


def _serving_before(host: Host, before: Optional[Current], target: Generation) -> Optional[Generation]:
    """The generation to which a failure leads back."""
    if before is None or before.wanted != RUNNING or before.generation == target.number:
        return None
    return host.group.generation(before.generation)


def _change_over(host: Host, old: Optional[Generation], target: Generation, times: Times) -> dict[str, Any]:
    if old is not None:
        times.drain = take_down(host, old)
        times.begun = time.monotonic() - times.drain
    else:
        # Nothing that serves is lost; one that crashes and is started again and again must end first.
        take_down(host, target)
    at("old-stopped")
    wait_gpus(host, target)
    at("gpus-free")
    model, times.load = bring_up(host, target, checked=True)
    facts = {"generation": target.number, **times.as_json()}
    check(host, target, model)
    at("answered")
    return facts


def _wait_confirmed(host: Host, target: Generation) -> None:
    """Wait for a person, or a gate that runs elsewhere, to say that it is good."""
    limit_s = target.request.confirm_seconds
    path = confirmation(host)
    host.events.start(
        "confirm", f"waiting for `confirm {host.operation}`, {limit_s:g} s at most", seconds=limit_s
    )
    end = time.monotonic() + limit_s
    while not path.exists():
        gone = how_it_ended(host.docker, host.name_of(target))
        if gone or time.monotonic() > end:
            raise CheckError(
                f"the container ended before it was confirmed: {gone}"
                if gone
                else f"nobody confirmed within {limit_s:g} s",
                fix="run the gates against it within that time, and confirm",
            )
        time.sleep(_CONFIRM_POLL_S)
    if path.read_text(encoding="utf-8").strip() != "yes":
        raise CheckError("it was rejected", fix="see who ran the gates")
    host.events.done("confirm", "confirmed")


def confirmation(host: Host) -> Path:
    """The file by which an operation is confirmed."""
    return host.group.operations / host.operation / CONFIRMED


def finish(host: Host, action: str, operation: str, facts: dict[str, Any]) -> None:
    """What follows a commit; a crash in here is completed by `reconcile`.

    Raises:
        ToolkitError: It could not be finished; what was committed serves.
    """
    current = host.group.current()
    if current is None:
        return
    generation = host.group.generation(current.generation)
    try:
        host.docker.restart_policy(host.name_of(generation), GUARDED)
        at("guarded")
        apply_keep_rule(host, current, generation.request.keep)
        at("kept")
    except ToolkitError as error:
        error.what = f"generation {generation.number} serves and is committed, but: {error.what}"
        error.fix = f"{error.fix}; then run `reconcile`"
        raise
    host.group.forget_tries()
    lines, _ = host.group.history()
    if not any(line.get("operation") == operation and line.get("action") == action for line in lines[-3:]):
        _write_history(host, current, action, operation, facts)
    at("written")
    host.group.settle()
    at("settled")


def _write_history(host: Host, current: Current, action: str, operation: str, facts: dict[str, Any]) -> None:
    generation = host.group.generation(current.generation)
    host.group.write_history(
        action,
        operation,
        release=generation.request.release,
        digest=generation.request.digest,
        **{"generation": generation.number, "replaced": current.replaced, **facts},
    )
