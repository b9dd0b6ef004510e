"""The swap: the old stack stops, the new one starts and must answer, and one rename decides which one it is.

The GPUs hold one of them at a time, so between stop and answer nothing serves. Until the commit every failure
leads back to the old generation; after it, nothing does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Optional

from tooling.errors import CheckError, EngineError, ToolkitError
from tooling.host import gpus
from tooling.host.answers import check_answers, wait_ready
from tooling.host.containers import base_url, ensure_container, how_it_ended
from tooling.host.faults import at
from tooling.host.host import DARK, FAILED
from tooling.host.keep import apply_keep_rule
from tooling.host.preflight import make_cache_directory
from tooling.host.state import RUNNING, Pending

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.host.host import Host
    from tooling.host.state import Current, Generation

GUARDED, UNGUARDED = "unless-stopped", "no"
#: A trial that failed gets no long grace: nobody streams from it.
_TRIAL_GRACE_S = 10
_RETURNS = 2
_CONFIRM_POLL_S = 0.2
#: File in an operation's folder by which somebody confirms it.
CONFIRMED = "confirmed"


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


@dataclass
class Times:
    """Seconds of a swap by a clock that nobody can set: from the order to stop to the first answer.

    Attributes:
        begun: When the old generation was told to stop, or the swap began where none served.
        drain: Until it had ended.
        load: From the start of the new one to its first answer.
    """

    begun: float = field(default_factory=time.monotonic)
    drain: float = 0.0
    load: float = 0.0

    def as_json(self) -> dict[str, float]:
        """`dark_seconds` in all; `beyond_seconds` of it are neither drain nor load."""
        dark = time.monotonic() - self.begun
        return {
            "dark_seconds": round(dark, 3),
            "drain_seconds": round(self.drain, 3),
            "load_seconds": round(self.load, 3),
            "beyond_seconds": round(dark - self.drain - self.load, 3),
        }


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
            raise _take_back(host, old, target, as_toolkit_error(error), times) from error
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
    at("old-stopped")
    wait_gpus(host, target)
    at("gpus-free")
    model, times.load = bring_up(host, target, checked=True)
    facts = {"generation": target.number, **times.as_json()}
    check(host, target, model)
    at("answered")
    return facts


def take_down(host: Host, generation: Generation) -> float:
    """Stop a generation: its streams get the grace of its contract.

    Returns:
        Seconds that it took.

    Raises:
        EngineError: It still runs.
    """
    name, grace = host.name_of(generation), generation.request.contract.stop_grace_seconds
    if host.docker.inspect(name) is None:
        return 0.0
    host.docker.restart_policy(name, UNGUARDED)
    at("unguarded")
    host.events.start("stop", f"generation {generation.number} drains, for {grace} s at most")
    began = time.monotonic()
    host.docker.stop(name, grace)
    took = time.monotonic() - began
    there = host.docker.inspect(name)
    if there is not None and there["State"]["Running"]:
        raise EngineError(
            f"generation {generation.number} was told to stop and still runs",
            where=name,
            fix="look at the engine's log; the next one is not started beside it",
        )
    cut = there is not None and there["State"]["ExitCode"] == 137 and took >= grace  # noqa: PLR2004
    host.events.done(
        "stop",
        f"generation {generation.number} was killed after its grace, streams were cut"
        if cut
        else f"generation {generation.number} has stopped",
        seconds=round(took, 3),
        cut=cut,
    )
    return took


def wait_gpus(host: Host, generation: Generation) -> None:
    """Wait until nobody holds the GPUs that a generation needs."""
    contract = generation.request.contract
    if not contract.gpus:
        return
    host.events.start("gpus", "waiting until no process holds the GPUs")
    took = gpus.wait_free(host.smi, contract.gpus, contract.gpu_release_seconds)
    host.events.done("gpus", "the GPUs are free", seconds=round(took, 3))


def bring_up(host: Host, generation: Generation, *, checked: bool = False) -> tuple[str, float]:
    """Start a generation and wait for its first answer.

    Args:
        host: Where.
        generation: Which.
        checked: Its container was held against the record just now; each question costs dark time.

    Returns:
        Name of the model, and seconds from start to answer.

    Raises:
        ToolkitError: It ended, or never answered.
    """
    name, contract = host.name_of(generation), generation.request.contract
    make_cache_directory(generation.request)
    if not checked:
        ensure_container(host, generation)
    host.events.start("start", f"generation {generation.number} starts")
    began = time.monotonic()
    host.docker.start(name)
    at("started")
    with host.docker.watch(name) as watch:
        try:

            def ended() -> Optional[str]:
                return None if watch.poll() is None else how_it_ended(host.docker, name)

            model, _ = wait_ready(base_url(host.docker, name, contract), contract.health, ended)
        finally:
            watch.kill()
    took = time.monotonic() - began
    host.events.done("ready", f"generation {generation.number} answers", model=model, seconds=round(took, 3))
    at("ready")
    return model, took


def check(host: Host, generation: Generation, model: str) -> None:
    """Ask the questions of its contract."""
    name, contract = host.name_of(generation), generation.request.contract
    host.events.start("answers", f"asking {len(contract.health.questions)} questions")
    base = base_url(host.docker, name, contract)
    right = check_answers(base, model, contract.health)
    host.events.done("answers", f"all {right} answers are right", questions=right)


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


def _take_back(
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
            bring_up(host, old)
            host.docker.restart_policy(host.name_of(old), GUARDED)
        except ToolkitError as error:
            last = error
            host.events.failed("return", error)
        else:
            host.events.done("return", f"generation {old.number} serves again")
            at("revert-ready")
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
