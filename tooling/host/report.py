"""What a host says of itself: status, and what a doctor finds; both only read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

from tooling.errors import ToolkitError
from tooling.host import gpus, plan
from tooling.host.answers import NotYetError, models
from tooling.host.containers import base_url, differences, find_image, how_it_ended
from tooling.host.contract import pin_name
from tooling.host.request import Sizes
from tooling.host.state import RUNNING
from tooling.host.steps import GUARDED
from tooling.host.trust import DIRECTORY
from tooling.host.unit import UNIT, is_enabled

if TYPE_CHECKING:
    from tooling.host.host import Host
    from tooling.host.state import Current, Generation


def status(host: Host) -> dict[str, Any]:
    """What is to serve, what does, and where both differ.

    Raises:
        StateError: The state is damaged.
    """
    current, pending = host.group.current(), host.group.pending()
    document: dict[str, Any] = {
        "schema": "blackwell-stacks/host-status/v1",
        "group": host.group.name,
        "busy": host.group.is_locked(),
        "pending": None if pending is None else {"kind": pending.kind, "target": pending.target},
        "wanted": None if current is None else current.wanted,
        "current": None,
        "serving": False,
        "ready": False,
        "faults": [],
        "earlier": [],
    }
    if current is not None:
        generation = host.group.generation(current.generation)
        document["current"] = {
            **describe(generation),
            "since": current.since,
            "by": current.by,
            "replaced": current.replaced,
        }
        document["serving"] = host.is_serving(generation.number)
        document["ready"] = document["serving"] and _is_ready(host, generation)
        document["faults"] = faults(host, current, generation)
        document["earlier"] = [_earlier(host, current, number) for number in reversed(host.group.numbers())]
    settlement = plan.settlement(current, pending, host.containers())
    document["faults"] += [f"{name} runs and must not" for name in settlement.stop]
    if pending is not None and not document["busy"]:
        document["faults"].append(f"the swap to generation {pending.target} was broken off: run `reconcile`")
    return document


def describe(generation: Generation) -> dict[str, Any]:
    """A generation in short."""
    request = generation.request
    return {
        "generation": generation.number,
        "release": request.release,
        "stack": request.stack,
        "digest": request.digest,
        "image": generation.image,
        "model": None
        if request.model is None
        else {"id": request.model.id, "revision": request.model.revision},
        "gpus": list(request.contract.gpus),
        "ports": [port.host for port in request.contract.ports],
    }


def faults(host: Host, current: Current, generation: Generation) -> list[str]:
    """Where what runs is not what is recorded; never judged by a tag."""
    name = host.name_of(generation)
    there = host.docker.inspect(name)
    if there is None:
        return ["the container of the current generation is gone"] if current.wanted == RUNNING else []
    found = differences(there, generation)
    if current.wanted == RUNNING:
        ended = how_it_ended(host.docker, name)
        if ended is not None:
            found.append(f"it should run and does not: {ended}")
        policy = there["HostConfig"]["RestartPolicy"]["Name"]
        if policy != GUARDED and not host.group.is_locked():
            found.append(f"its restart policy is {policy}, not {GUARDED}")
        if there.get("RestartCount"):
            found.append(f"the engine restarted it {there['RestartCount']} times: it crashes")
    return found


def _is_ready(host: Host, generation: Generation) -> bool:
    try:
        models(base_url(host.docker, host.name_of(generation), generation.request.contract))
    except (NotYetError, ToolkitError):
        return False
    return True


def _earlier(host: Host, current: Current, number: int) -> dict[str, Any]:
    generation = host.group.generation(number)
    return {
        **describe(generation),
        "served": number in current.served,
        "image_present": image_present(host, generation),
        "pinned": host.is_pinned(number),
    }


def image_present(host: Host, generation: Generation) -> bool:
    """Whether a rollback to it needs no network."""
    return bool(find_image(host.docker, generation))


def doctor(host: Host) -> list[dict[str, Any]]:
    """Whether this host is ready for the next swap and the way back, one finding a check."""
    found = [_check("engine", lambda: _engine(host)), _check("state", lambda: _state(host))]
    if not all(one["ok"] for one in found):
        return found
    current = host.group.current()
    found += [_check("serving", lambda: _serving(host, current)), _check("disk", lambda: _disk(host))]
    if current is not None:
        generation = host.group.generation(current.generation)
        found.append(_check("rollback-target", lambda: _target(host, current)))
        if generation.request.contract.gpus:
            found.append(_check("gpus", lambda: _gpus(host, generation)))
    found += [_check("boot", _boot), _check("live-restore", lambda: _live_restore(host))]
    found.append(_check("trust", lambda: _trust(host)))
    return found


#: A finding: whether it is good (None: worth knowing), what was seen, what to do.
Finding = tuple[Optional[bool], str, str]


def _check(name: str, look: Callable[[], Finding]) -> dict[str, Any]:
    try:
        ok, seen, fix = look()
    except ToolkitError as error:
        ok, seen, fix = False, error.what, error.fix
    return {"check": name, "ok": ok is not False, "warning": ok is None, "seen": seen, "fix": fix}


def _engine(host: Host) -> Finding:
    versions = host.docker.version()
    client, server = versions["Client"], versions["Server"]
    seen = (
        f"engine {server['Version']} (API {server.get('MinAPIVersion', '?')} to {server['ApiVersion']}), "
        f"client {client['Version']} (API {client['ApiVersion']})"
    )
    current = host.group.current()
    if current is not None and current.engine not in ("", server["Version"]):
        return (
            None,
            f"{seen}; it was {current.engine} at the last swap",
            "probe the stack again before the next swap",
        )
    return True, seen, ""


def _state(host: Host) -> Finding:
    numbers = host.group.numbers()
    for number in numbers:
        host.group.generation(number)
    current, pending = host.group.current(), host.group.pending()
    _, unreadable = host.group.history()
    if pending is not None and not host.group.is_locked():
        return False, f"the swap to generation {pending.target} was broken off", "run `reconcile`"
    if unreadable:
        return (
            None,
            f"{unreadable} lines of the history cannot be read",
            "a crash tore them; nothing depends on them",
        )
    committed = f"generation {current.generation} is committed" if current else "nothing was deployed"
    return True, f"{len(numbers)} generations are readable, {committed}", ""


def _serving(host: Host, current: Optional[Current]) -> Finding:
    if current is None or current.wanted != RUNNING:
        return True, "nothing is to serve", ""
    generation = host.group.generation(current.generation)
    wrong = faults(host, current, generation)
    if wrong:
        return False, "; ".join(wrong), "run `reconcile`"
    if not _is_ready(host, generation):
        return (
            False,
            f"generation {generation.number} runs and does not answer",
            "wait for its load, read its log",
        )
    return True, f"generation {generation.number} answers and is as recorded", ""


def _target(host: Host, current: Current) -> Finding:
    number = plan.fallback(current, host.previous())
    if not number:
        return None, "there is no earlier generation to go back to", "the next deploy makes this one the target"
    generation = host.group.generation(number)
    if not image_present(host, generation):
        return (
            False,
            f"the rollback target, generation {number}, is NOT present: its image is gone",
            f"docker pull {generation.request.reference}",
        )
    if not host.is_pinned(number):
        pin = pin_name(host.group.name, number)
        seen = f"the rollback target, generation {number}, is present, but its pin {pin} does not run"
        return False, f"{seen}: a prune takes it", "run `reconcile`"
    return True, f"the rollback target, generation {number}, is present and pinned", ""


def _disk(host: Host) -> Finding:
    directory = host.docker.root()
    if not Path(directory).is_dir():
        return None, f"{directory} is not to be seen from here", "look at the engine's disk"
    free = shutil.disk_usage(directory).free
    seen = f"{free / 1e9:.1f} GB are free in {directory}"
    return free > Sizes.margin, seen, "" if free > Sizes.margin else "free space (docker system df)"


def _gpus(host: Host, generation: Generation) -> Finding:
    request = generation.request
    here = gpus.chosen(host.smi.gpus(), request.contract.gpus)
    lacks = gpus.unmet(here, request.requirements, len(request.contract.gpus))
    held = gpus.describe(gpus.foreign(host.smi.holders(), here, host.running_ids()))
    if lacks or held:
        return False, "; ".join([*lacks, *held]), "make the host what the release needs before the next start"
    return True, f"{len(here)} GPUs, driver {here[0].driver if here else '?'}, nobody else is on them", ""


def _boot() -> Finding:
    if is_enabled() is None:
        return (
            None,
            "no systemd here: nothing reconciles at boot by itself",
            "run `reconcile` from what starts at boot",
        )
    if not is_enabled():
        return None, f"{UNIT} is not enabled", "run `install-unit`"
    return True, f"{UNIT} reconciles at boot", ""


def _live_restore(host: Host) -> Finding:
    if host.docker.call("info", "--format", "{{.LiveRestoreEnabled}}").strip() == "true":
        return True, "an engine restart leaves the stack running", ""
    return None, "an engine restart costs a model load", 'set "live-restore": true in the engine\'s daemon.json'


def _trust(host: Host) -> Finding:
    keys = list((host.group.root / DIRECTORY).glob("*.pub"))
    if not keys:
        return (
            None,
            "no keys are kept here: signatures are checked by keys of each request",
            f"put keys into {DIRECTORY}/",
        )
    return bool(shutil.which("openssl")), f"{len(keys)} keys are kept here", "install openssl"
