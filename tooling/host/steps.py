"""The steps that swap, way back and reconciliation share: stop, wait for the GPUs, start, ask."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from tooling.errors import EngineError
from tooling.host import gpus
from tooling.host.answers import check_answers, wait_ready
from tooling.host.containers import base_url, ensure_container, how_it_ended
from tooling.host.faults import at
from tooling.host.host import is_up
from tooling.host.preflight import make_cache_directory

if TYPE_CHECKING:
    from tooling.host.host import Host
    from tooling.host.state import Generation

#: Restart policies of a committed generation, and of every other one: a policy would hide the first crash.
GUARDED, UNGUARDED = "unless-stopped", "no"


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


def take_down(host: Host, generation: Generation) -> float:
    """Stop a generation: its streams get the grace of its contract.

    Returns:
        Seconds that it took.

    Raises:
        EngineError: It still runs.
    """
    name, grace = host.name_of(generation), generation.request.contract.stop_grace_seconds
    before = host.docker.inspect(name)
    if before is None:
        return 0.0
    # Also of one that does not run: the engine would start it at the next boot.
    host.docker.restart_policy(name, UNGUARDED)
    at("unguarded")
    if not is_up(before):
        return 0.0
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


def bring_up(
    host: Host, generation: Generation, *, checked: bool = False, stage: str = ""
) -> tuple[str, float]:
    """Start a generation and wait for its first answer.

    Args:
        host: Where.
        generation: Which.
        checked: Its container was held against the record just now; each question costs dark time.
        stage: Prefix of its steps, for the crash tests.

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
    at(f"{stage}started")
    with host.docker.watch(name) as watch:
        try:

            def ended() -> Optional[str]:
                return None if watch.poll() is None else how_it_ended(host.docker, name)

            model, _ = wait_ready(base_url(host.docker, name, contract), contract.health, ended)
        finally:
            watch.kill()
    took = time.monotonic() - began
    host.events.done("ready", f"generation {generation.number} answers", model=model, seconds=round(took, 3))
    at(f"{stage}ready")
    return model, took


def check(host: Host, generation: Generation, model: str) -> None:
    """Ask the questions of its contract."""
    name, contract = host.name_of(generation), generation.request.contract
    host.events.start("answers", f"asking {len(contract.health.questions)} questions")
    base = base_url(host.docker, name, contract)
    right = check_answers(base, model, contract.health)
    host.events.done("answers", f"all {right} answers are right", questions=right)
