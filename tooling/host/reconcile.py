"""After a crash or a boot: exactly the committed generation runs, never a trial, never two, never none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from tooling.errors import ToolkitError
from tooling.host import plan
from tooling.host.answers import wait_ready
from tooling.host.containers import base_url, how_it_ended
from tooling.host.contract import container_name
from tooling.host.faults import at
from tooling.host.host import DARK
from tooling.host.steps import GUARDED, UNGUARDED, bring_up, take_down, wait_gpus
from tooling.host.swap import finish

if TYPE_CHECKING:
    from tooling.host.host import Host
    from tooling.host.state import Current, Generation

#: Starts of a committed generation that may fail before the one before it gets its place.
TRIES = 3


class DarkError(ToolkitError):
    """Nothing serves, and it should."""

    exit_code = DARK


def needs_settling(host: Host) -> bool:
    """Whether something else runs than the state says, or a swap was left half-way."""
    settlement = plan.settlement(host.group.current(), host.group.pending(), host.containers())
    return settlement.outcome != "clean" or bool(settlement.stop)


def reconcile(host: Host) -> dict[str, Any]:
    """Make this host what its state says.

    Returns:
        `outcome` and the `generation` that serves (0: none, and none should).

    Raises:
        DarkError: No generation comes up.
        StateError: The state is damaged; containers are left as they are.
    """
    current, pending = host.group.current(), host.group.pending()
    settlement = plan.settlement(current, pending, host.containers())
    for name in settlement.stop:
        host.events.start("settle", f"{name} must not run and is stopped")
        host.docker.restart_policy(name, UNGUARDED)
        host.docker.stop(name, _grace(host, name))
        at("reconcile-stopped")
    if pending is not None and settlement.outcome == "taken-back":
        host.events.done("settle", f"the swap to generation {pending.target} was broken off and is taken back")
        host.group.write_history("taken-back", host.operation, failed=pending.target, of=pending.operation)
        host.group.settle()
    facts: dict[str, Any] = {"outcome": settlement.outcome, "generation": settlement.start}
    if settlement.start and current is not None:
        facts.update(_serve(host, current))
        current = host.group.current()
    done = settlement.outcome == "completed" and current is not None and pending is not None
    if done and pending is not None and current is not None and current.generation == pending.target:
        finish(host, pending.kind, pending.operation, {"generation": pending.target, "completed": True})
    host.group.settle()
    host.events.done("settle", f"{settlement.outcome}: generation {facts['generation']} serves", **facts)
    return facts


def _grace(host: Host, name: str) -> int:
    """Seconds that a container which must not run gets for its end."""
    there = host.docker.inspect(name)
    given: Optional[int] = (there or {}).get("Config", {}).get("StopTimeout")
    return 10 if given is None else given


def _serve(host: Host, current: Current) -> dict[str, Any]:
    """Have the committed generation answer; one that does not come up any more gives way to the one before."""
    generation = host.group.generation(current.generation)
    if host.is_serving(generation.number) and _answers(host, generation):
        host.docker.restart_policy(host.name_of(generation), GUARDED)
        host.group.forget_tries()
        return {"generation": generation.number, "started": False}
    errors: list[ToolkitError] = []
    while host.group.count_try(generation.number) <= TRIES:
        at("reconcile-counted")
        error = _start(host, generation)
        if error is None:
            return {"generation": generation.number, "started": True}
        errors.append(error)
    return _fall_back(host, current, errors)


def _answers(host: Host, generation: Generation) -> bool:
    """Whether the running container of a generation answers, given the time of a load."""
    name, contract = host.name_of(generation), generation.request.contract
    # The engine's own policy starts a crashing container again and again; one crash is enough to know.
    host.docker.restart_policy(name, UNGUARDED)
    try:
        wait_ready(
            base_url(host.docker, name, contract), contract.health, lambda: how_it_ended(host.docker, name)
        )
    except ToolkitError as error:
        host.events.failed("ready", error)
        return False
    return True


def _start(host: Host, generation: Generation) -> Optional[ToolkitError]:
    """Start a generation anew; the error if it does not come up."""
    try:
        take_down(host, generation)
        wait_gpus(host, generation)
        bring_up(host, generation, stage="reconcile-")
        host.docker.restart_policy(host.name_of(generation), GUARDED)
    except ToolkitError as error:
        host.events.failed("start", error, tries=host.group.tries(generation.number))
        return error
    host.group.forget_tries()
    return None


def _fall_back(host: Host, current: Current, errors: list[ToolkitError]) -> dict[str, Any]:
    """The generation before the committed one takes its place."""
    number = plan.fallback(current, host.previous())
    failed = host.group.generation(current.generation)
    log = host.group.logs / f"g{failed.number:04d}-{host.operation}.log"
    if host.docker.inspect(container_name(host.group.name, failed.number)) is not None:
        host.docker.save_log(host.name_of(failed), log)
        take_down(host, failed)
    host.group.forget_tries()
    problem = errors[-1].what if errors else f"it was started {TRIES} times in vain before"
    fix = errors[-1].fix if errors else ""
    if not number:
        host.group.write_history("dark", host.operation, failed=failed.number, error=problem)
        raise DarkError(
            f"generation {failed.number} does not come up, and none served before it: {problem}",
            where=f"group {host.group.name}",
            fix=fix or "read its log, then deploy a release or run `reconcile` again",
            details=[str(log)],
        )
    before = host.group.generation(number)
    error = _start(host, before)
    if error is not None:
        host.group.write_history("dark", host.operation, failed=number, error=error.what)
        raise DarkError(
            f"neither generation {failed.number} nor {number}, which served before it, comes up: {error.what}",
            where=f"group {host.group.name}",
            fix=error.fix or "read their logs and look at the host (doctor), then run `reconcile` again",
            details=[*error.details, str(log)],
        )
    host.group.commit(number, "fallback")
    host.group.write_history("fallback", host.operation, generation=number, failed=failed.number, error=problem)
    host.events.done("fallback", f"generation {number} serves in place of {failed.number}: {problem}")
    return {"generation": number, "started": True, "fallback_from": failed.number, "error": problem}
