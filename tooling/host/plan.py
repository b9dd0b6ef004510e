"""What a command means in every state, and what must run after a crash: pure rules, tested as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from tooling.host.state import RUNNING, STOPPED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.host.state import Current, Pending

REFUSE, NOTHING, SWAP, STOP = "refuse", "nothing", "swap", "stop"
#: Commits by which an operator or the program went back.
_WENT_BACK = ("rollback", "fallback")


@dataclass(frozen=True)
class Snapshot:
    """What is known before a command is carried out.

    Attributes:
        current: The committed generation, if any.
        known: All generations, failed ones included.
        previous: Of each generation, the one that served when it was made (0: none).
        serving: The container of the current generation runs.
        same: The request is for what the current generation is already.
    """

    current: Optional[Current]
    known: tuple[int, ...]
    previous: Mapping[int, int]
    serving: bool
    same: bool = False


@dataclass(frozen=True)
class Decision:
    """What a command comes to.

    Attributes:
        action: `refuse`, `nothing`, `swap` or `stop`.
        target: Generation to swap to; 0: the one that the request makes.
        message: For people.
        fix: What to do, of a refusal.
    """

    action: str
    target: int = 0
    message: str = ""
    fix: str = ""


def decide(command: str, snapshot: Snapshot, wanted: int = 0) -> Decision:
    """What to do.

    Args:
        command: `deploy`, `rollback`, `start` or `stop`.
        snapshot: The state, with no swap pending (that is settled first).
        wanted: Generation named for a rollback; 0: none named.
    """
    current = snapshot.current
    if command == "deploy":
        return _deploy(snapshot)
    if current is None:
        if command == "stop":
            return Decision(NOTHING, message="nothing was ever deployed here, nothing runs")
        return Decision(REFUSE, message="nothing was ever deployed here", fix="deploy a release first")
    if command == "rollback":
        return _named(snapshot, current, wanted) if wanted else _back(snapshot, current)
    return _again(snapshot, current) if command == "start" else _stop(snapshot, current)


def _stop(snapshot: Snapshot, current: Current) -> Decision:
    if current.wanted == STOPPED and not snapshot.serving:
        return Decision(NOTHING, current.generation, "it is stopped already")
    return Decision(STOP, current.generation, f"generation {current.generation} stops")


def _deploy(snapshot: Snapshot) -> Decision:
    current = snapshot.current
    if current is not None and snapshot.same:
        return _again(snapshot, current)
    return Decision(SWAP, 0, "a new generation")


def _again(snapshot: Snapshot, current: Current) -> Decision:
    """The current generation is wanted: it serves, or it is started."""
    if current.wanted == RUNNING and snapshot.serving:
        return Decision(NOTHING, current.generation, f"generation {current.generation} serves this already")
    return Decision(SWAP, current.generation, f"generation {current.generation} is started again")


def _back(snapshot: Snapshot, current: Current) -> Decision:
    """A rollback that names no generation: to what served before, once."""
    if current.by in _WENT_BACK:
        # Doing it twice gives the same as doing it once; further back only goes who says how far.
        again = _again(snapshot, current)
        if again.action == SWAP:
            return again
        message = f"generation {current.generation} serves already since the rollback from {current.replaced}"
        return Decision(NOTHING, current.generation, f"{message}; name a generation to go elsewhere")
    previous = snapshot.previous.get(current.generation, 0)
    if not previous:
        return Decision(
            REFUSE,
            message=f"generation {current.generation} is the first that served, nothing was before it",
            fix="name a generation (`history`), or deploy another release",
        )
    return _named(snapshot, current, previous)


def _named(snapshot: Snapshot, current: Current, wanted: int) -> Decision:
    """A rollback to a generation."""
    if wanted not in snapshot.known:
        known = ", ".join(map(str, sorted(current.served)))
        return Decision(REFUSE, message=f"there is no generation {wanted}", fix=f"name one of: {known}")
    if wanted not in current.served:
        return Decision(
            REFUSE,
            message=f"generation {wanted} was tried and never served",
            fix="deploy its release again: a rollback goes only to what was once proved here",
        )
    if wanted == current.generation:
        return _again(snapshot, current)
    return Decision(SWAP, wanted, f"back to generation {wanted}")


@dataclass(frozen=True)
class Container:
    """A container of the group, as far as the rules need it."""

    name: str
    generation: int
    running: bool


@dataclass(frozen=True)
class Settlement:
    """What makes a host right after a crash.

    Attributes:
        outcome: `clean`, `taken-back` (the swap did not happen) or `completed` (it did, the rest was left).
        stop: Containers that must not run, in their order.
        start: Generation that must run; 0: none.
    """

    outcome: str
    stop: tuple[str, ...]
    start: int


def settlement(
    current: Optional[Current], pending: Optional[Pending], containers: Sequence[Container]
) -> Settlement:
    """What must stop and what must run: exactly the committed generation, never a trial.

    Args:
        current: The committed generation.
        pending: The swap that was begun and not finished.
        containers: All containers of the group but the pins.
    """
    right = current.generation if current is not None and current.wanted == RUNNING else 0
    if pending is None:
        outcome = "clean"
    elif right and pending.target == right:
        outcome = "completed"
    else:
        outcome = "taken-back"
    wrong = [one.name for one in containers if one.running and one.generation != right]
    return Settlement(outcome, tuple(sorted(wrong)), right)


def fallback(current: Current, previous: Mapping[int, int]) -> int:
    """The generation that served before the current one was made; 0: none.

    By descent, not by time: the latest but one in time may be the very one that was rolled away from.
    """
    return previous.get(current.generation, 0)


def kept(current: Current, known: Sequence[int], keep: int) -> tuple[int, ...]:
    """Generations whose images and containers stay.

    Args:
        current: The committed generation.
        known: All generations.
        keep: How many of those that served before it stay.

    Returns:
        The current one, `keep` more that served, latest first, and the newest one if it failed: its container
        is the evidence.
    """
    earlier = [one for one in reversed(current.served) if one != current.generation][:keep]
    newest = max(known, default=0)
    failed = [newest] if newest and newest not in current.served else []
    return tuple(sorted({current.generation, *earlier, *failed}))
