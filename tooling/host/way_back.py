"""The way back: what a failed swap leaves behind, and the old generation in its place again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional

from tooling.errors import ToolkitError
from tooling.host.faults import at
from tooling.host.host import DARK, FAILED
from tooling.host.steps import GUARDED, UNGUARDED, Times, bring_up, wait_gpus

if TYPE_CHECKING:
    from tooling.host.host import Host
    from tooling.host.state import Generation

#: A trial that failed gets no long grace: nobody streams from it.
_TRIAL_GRACE_S = 10
_RETURNS = 2


class SwapError(ToolkitError):
    """A swap did not happen."""

    def __init__(self, error: ToolkitError, *, serving: int, exit_code: int, facts: dict[str, Any]) -> None:
        super().__init__(error.what, error.where, error.fix, error.details)
        self.serving = serving
        self.exit_code = exit_code
        self.facts = facts

    def as_record(self) -> dict[str, object]:
        """The message as data."""
        return {**super().as_record(), "serving": self.serving}


def take_back(
    host: Host, old: Optional[Generation], target: Generation, error: ToolkitError, times: Times
) -> SwapError:
    """The old generation serves again; what there is to know about the failure is kept."""
    host.events.failed("swap", error, generation=target.number)
    at("revert-begun")
    facts: dict[str, Any] = {"failed": target.number, "error": error.what}
    aside = _try(lambda: _put_aside(host, target, facts))
    back = _try(lambda: _return_to(host, old))
    dark = old is not None and back is not None
    serving = old.number if old is not None and back is None else 0
    problems = [problem.what for problem in (aside, back) if problem is not None]
    facts.update(times.as_json(), serving=serving, problems=problems)
    _try(lambda: host.group.write_history("dark" if dark else "reverted", host.operation, **facts))
    at("revert-written")
    _try(host.group.settle)
    error.details = [*error.details, *problems]
    if dark:
        error.fix = f"NOTHING SERVES: the generation before did not come up again. {error.fix}"
    return SwapError(error, serving=serving, exit_code=DARK if dark else FAILED, facts=facts)


def _put_aside(host: Host, target: Generation, facts: dict[str, Any]) -> None:
    """Keep the log of a failed trial, and stop it; its container stays."""
    name = host.name_of(target)
    there = host.docker.inspect(name)
    if there is None:
        return
    log = host.group.logs / f"g{target.number:04d}-{host.operation}.log"
    host.docker.save_log(name, log, since=there["State"]["StartedAt"])
    facts["log"] = str(log)
    host.docker.restart_policy(name, UNGUARDED)
    host.docker.stop(name, min(_TRIAL_GRACE_S, target.request.contract.stop_grace_seconds))
    host.events.done("aside", f"generation {target.number} was stopped, its log is kept", log=str(log))
    at("revert-stopped")


def _return_to(host: Host, old: Optional[Generation]) -> None:
    """Bring the old generation up again."""
    if old is None:
        return
    last: Optional[ToolkitError] = None
    for _ in range(_RETURNS):
        host.events.start("return", f"back to generation {old.number}")
        try:
            wait_gpus(host, old)
            bring_up(host, old, stage="revert-")
            host.docker.restart_policy(host.name_of(old), GUARDED)
        except ToolkitError as error:
            last = error
            host.events.failed("return", error)
        else:
            host.events.done("return", f"generation {old.number} serves again")
            return
    if last is not None:
        raise last


def _try(action: Callable[[], None]) -> Optional[ToolkitError]:
    """Do one step of the way back; a failure must not keep the next from being tried."""
    try:
        action()
    except Exception as error:  # noqa: BLE001  # it is returned and reported
        return as_toolkit_error(error)
    return None


def as_toolkit_error(error: Exception) -> ToolkitError:
    """Any failure as one of the family."""
    if isinstance(error, ToolkitError):
        return error
    if isinstance(error, OSError):
        return ToolkitError(
            f"the host refused: {error}", fix="look at disk and permissions of the state directory"
        )
    return ToolkitError(
        f"a fault of the program: {type(error).__name__}: {error}", fix="report this with the events"
    )
