"""The commands that change a host: each holds the lock, settles what an earlier crash left, then acts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Callable, Optional

from tooling.errors import InputError, ToolkitError
from tooling.host import pin, plan, preflight
from tooling.host.containers import ensure_container
from tooling.host.contract import LABEL_GROUP, LABEL_ROLE, gpu_options
from tooling.host.faults import at
from tooling.host.reconcile import DarkError, needs_settling, reconcile
from tooling.host.state import RUNNING, STOPPED, Group, groups
from tooling.host.steps import take_down
from tooling.host.swap import swap
from tooling.host.trust import verify_records
from tooling.host.way_back import SwapError

if TYPE_CHECKING:
    from tooling.host.host import Host
    from tooling.host.request import Contract, Request
    from tooling.host.state import Generation


def run_locked(host: Host, action: Callable[[], dict[str, Any]], *, name: str) -> dict[str, Any]:
    """Carry out an action as the only one on this group.

    Raises:
        BusyError: Another operation runs.
        ToolkitError: Whatever the action raises; it is written into the history.
    """
    host.group.make()
    with host.group.lock(f"operation {host.operation} ({name})"):
        at("locked")
        try:
            return action()
        except ToolkitError as error:
            # A swap that was taken back has its line already.
            if not isinstance(error, SwapError):
                host.group.write_history("refused", host.operation, command=name, error=error.what)
            raise


def deploy(host: Host, request: Request) -> dict[str, Any]:
    """Bring a release onto this host."""
    _settle(host)
    current = host.group.current()
    decision = plan.decide("deploy", _snapshot(host, request))
    if decision.action == plan.NOTHING:
        return _nothing(host, decision)
    if decision.target:
        return _swap_to(host, host.group.generation(decision.target), "start")
    host.events.done("trust", verify_records(host.group.root, request))
    _check_host(host, request, current.generation if current else 0)
    _check_disk(host, request)
    at("checked")
    image = preflight.bring_image(host.docker, request, host.events)
    at("pulled")
    generation = host.group.record(request, image, host.operation)
    at("recorded")
    host.events.done("record", f"generation {generation.number} is recorded", generation=generation.number)
    return _swap_to(host, generation, "deploy", checked=True)


def rollback(host: Host, wanted: int = 0) -> dict[str, Any]:
    """Bring back a generation that served: the same swap, with what is on the host."""
    _settle(host)
    decision = plan.decide("rollback", _snapshot(host), wanted)
    if decision.action == plan.REFUSE:
        raise InputError(decision.message, where=f"group {host.group.name}", fix=decision.fix)
    if decision.action == plan.NOTHING:
        return _nothing(host, decision)
    current = host.group.current()
    kind = "start" if current and current.generation == decision.target else "rollback"
    return _swap_to(host, host.group.generation(decision.target), kind)


def start(host: Host) -> dict[str, Any]:
    """Start the current generation after a stop."""
    _settle(host)
    decision = plan.decide("start", _snapshot(host))
    if decision.action == plan.REFUSE:
        raise InputError(decision.message, where=f"group {host.group.name}", fix=decision.fix)
    if decision.action == plan.NOTHING:
        return _nothing(host, decision)
    return _swap_to(host, host.group.generation(decision.target), "start")


def stop(host: Host) -> dict[str, Any]:
    """Stop the current generation; it stays stopped over reboots until `start`, `rollback` or `deploy`."""
    _settle(host)
    decision = plan.decide("stop", _snapshot(host))
    if decision.action == plan.NOTHING:
        return _nothing(host, decision)
    # Written first: a crash half-way must not start it again.
    host.group.want(STOPPED)
    take_down(host, host.group.generation(decision.target))
    host.group.write_history("stop", host.operation, generation=decision.target)
    return {"generation": decision.target, "changed": True, "serving": 0}


def repair(host: Host, generation: int) -> dict[str, Any]:
    """Write a lost commit point anew, then make the host right."""
    current = host.group.repair(generation)
    host.group.write_history("repair", host.operation, generation=generation)
    return {"repaired": current.generation, **reconcile(host)}


def _settle(host: Host) -> None:
    """Finish or take back what an earlier operation left."""
    if needs_settling(host):
        host.events.start("settle", "an earlier operation was broken off: settling that first")
        try:
            reconcile(host)
        except DarkError as error:
            # The command at hand may be the very cure.
            host.events.failed("settle", error)


def _snapshot(host: Host, request: Optional[Request] = None) -> plan.Snapshot:
    current = host.group.current()
    same = False
    if current is not None and request is not None:
        same = _essence(host.group.generation(current.generation).request) == _essence(request)
    return plan.Snapshot(
        current=current,
        known=host.group.numbers(),
        previous=host.previous(),
        serving=current is not None and host.is_serving(current.generation),
        same=same,
    )


def _essence(request: Request) -> Request:
    """What makes a generation: two requests with the same essence start the same."""
    return dataclasses.replace(
        request, records=(), trust=(), attestations=(), keep=1, pull="registry", confirm_seconds=0.0
    )


def _nothing(host: Host, decision: plan.Decision) -> dict[str, Any]:
    host.events.done("plan", decision.message)
    serving = decision.target if decision.target and host.is_serving(decision.target) else 0
    return {"generation": decision.target, "changed": False, "serving": serving, "message": decision.message}


def _swap_to(host: Host, target: Generation, kind: str, *, checked: bool = False) -> dict[str, Any]:
    """Prepare a recorded generation and swap to it."""
    request = target.request
    if not checked:
        current = host.group.current()
        _check_host(host, request, current.generation if current else 0)
        preflight.check_disk(host.docker, host.group.root, request, needs_pull=False)
        at("checked")
        image = preflight.bring_image(host.docker, request, host.events)
        if image != target.image:
            target = dataclasses.replace(target, image=image)
        at("pulled")
    pin.ensure_pin(host.docker, host.group.name, target.number, target.image)
    at("pinned")
    preflight.make_cache_directory(request)
    ensure_container(host, target)
    _try_gpus(host, target)
    host.events.done("create", f"the container of generation {target.number} is there, stopped")
    at("created")
    facts = swap(host, target, kind)
    return {**facts, "changed": True, "serving": target.number, "release": request.release}


def _check_host(host: Host, request: Request, current: int) -> None:
    """The checks that a deploy and a rollback share; the driver is not rolled back, so it is asked again."""
    host.events.start("preflight", "checking engine, GPUs, files and ports")
    version = preflight.check_engine(host.docker, request)
    before = host.group.current()
    if before is not None and before.engine not in ("", version):
        host.events.progress(
            "preflight", f"the engine was {before.engine} at the last swap and is {version} now"
        )
    here = preflight.check_gpus(host.smi, request)
    others = [name for name in groups(host.group.root) if name != host.group.name]
    preflight.check_disjoint(here, request, [one for one in map(_current_of, _states(host, others)) if one])
    preflight.check_strangers(host.smi, here, host.running_ids())
    preflight.check_files(request)
    running = current and host.is_serving(current)
    preflight.check_ports(
        request.contract, host.group.generation(current).request.contract if running else None
    )
    host.events.done(
        "preflight", "this host is fit for the release", engine=version, gpus=[one.name for one in here]
    )


def _states(host: Host, names: list[str]) -> list[Group]:
    return [Group(host.group.root, name) for name in names]


def _current_of(group: Group) -> Optional[Generation]:
    current = group.current()
    return group.generation(current.generation) if current and current.wanted == RUNNING else None


def _check_disk(host: Host, request: Request) -> None:
    absent = preflight.find_image(host.docker, request) is None
    facts = preflight.check_disk(host.docker, host.group.root, request, needs_pull=absent)
    host.events.done("disk", "there is room", **facts)


def _try_gpus(host: Host, target: Generation) -> None:
    """Find out with a container that sleeps, while the old stack serves, that the engine hands out the GPUs."""
    contract: Contract = target.request.contract
    if contract.gpus:
        labels = {LABEL_GROUP: host.group.name, LABEL_ROLE: "trial"}
        name = f"{host.name_of(target)}-trial"
        pin.try_start(host.docker, name, target.image, labels, gpu_options(contract))
