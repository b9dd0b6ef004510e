"""Every command in every state, and what must run after a crash at any moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tooling.host.plan import (
    NOTHING,
    REFUSE,
    STOP,
    SWAP,
    Container,
    Snapshot,
    decide,
    fallback,
    kept,
    settlement,
)
from tooling.host.state import RUNNING, STOPPED, Current, Pending


def at(generation: int, *, by: str = "deploy", wanted: str = RUNNING, replaced: int = 0, served=()) -> Current:
    return Current(generation, tuple(served) or (generation,), by, replaced, wanted, "")


def snapshot(current: Current | None, known: int, *, serving: bool = True, same: bool = False) -> Snapshot:
    return Snapshot(current, tuple(range(1, known + 1)), {n: n - 1 for n in range(1, known + 1)}, serving, same)


EMPTY = snapshot(None, 0, serving=False)
ONE_FAILED = snapshot(None, 1, serving=False)
ONE = snapshot(at(1), 1)
TWO = snapshot(at(2, replaced=1, served=(1, 2)), 2)
TWO_SAME = snapshot(at(2, replaced=1, served=(1, 2)), 2, same=True)
CRASHED_SAME = snapshot(at(2, served=(1, 2)), 2, serving=False, same=True)
THREE_FAILED = snapshot(at(2, served=(1, 2)), 3)
ROLLED_BACK = snapshot(at(1, by="rollback", replaced=2, served=(2, 1)), 2)
ROLLED_BACK_DOWN = snapshot(at(1, by="rollback", replaced=2, served=(2, 1)), 2, serving=False)
FELL_BACK = snapshot(at(1, by="fallback", replaced=2, served=(2, 1)), 2)
STOPPED_TWO = snapshot(at(2, wanted=STOPPED, served=(1, 2)), 2, serving=False)
STOPPED_SAME = snapshot(at(2, wanted=STOPPED, served=(1, 2)), 2, serving=False, same=True)


@pytest.mark.parametrize(
    ("state", "command", "wanted", "action", "target"),
    [
        (EMPTY, "deploy", 0, SWAP, 0),
        (EMPTY, "rollback", 0, REFUSE, 0),
        (EMPTY, "rollback", 1, REFUSE, 0),
        (EMPTY, "start", 0, REFUSE, 0),
        (EMPTY, "stop", 0, NOTHING, 0),
        (ONE_FAILED, "deploy", 0, SWAP, 0),
        (ONE_FAILED, "rollback", 1, REFUSE, 0),
        (ONE, "deploy", 0, SWAP, 0),
        (ONE, "rollback", 0, REFUSE, 0),
        (ONE, "rollback", 1, NOTHING, 1),
        (ONE, "rollback", 9, REFUSE, 0),
        (ONE, "start", 0, NOTHING, 1),
        (ONE, "stop", 0, STOP, 1),
        (TWO, "deploy", 0, SWAP, 0),
        (TWO, "rollback", 0, SWAP, 1),
        (TWO, "rollback", 1, SWAP, 1),
        (TWO, "rollback", 2, NOTHING, 2),
        (TWO_SAME, "deploy", 0, NOTHING, 2),
        (CRASHED_SAME, "deploy", 0, SWAP, 2),
        (CRASHED_SAME, "start", 0, SWAP, 2),
        (CRASHED_SAME, "rollback", 0, SWAP, 1),
        (CRASHED_SAME, "stop", 0, STOP, 2),
        (THREE_FAILED, "rollback", 0, SWAP, 1),  # not 2 of a list, and not the failed 3
        (THREE_FAILED, "rollback", 3, REFUSE, 0),
        (ROLLED_BACK, "rollback", 0, NOTHING, 1),  # twice is not a toggle
        (ROLLED_BACK, "rollback", 2, SWAP, 2),
        (ROLLED_BACK, "deploy", 0, SWAP, 0),
        (ROLLED_BACK_DOWN, "rollback", 0, SWAP, 1),
        (FELL_BACK, "rollback", 0, NOTHING, 1),
        (STOPPED_TWO, "deploy", 0, SWAP, 0),
        (STOPPED_TWO, "rollback", 0, SWAP, 1),
        (STOPPED_TWO, "rollback", 2, SWAP, 2),
        (STOPPED_TWO, "start", 0, SWAP, 2),
        (STOPPED_TWO, "stop", 0, NOTHING, 2),
        (STOPPED_SAME, "deploy", 0, SWAP, 2),
    ],
)
def test_every_command_in_every_state(state, command, wanted, action, target):
    decision = decide(command, state, wanted)
    assert (decision.action, decision.target) == (action, target)
    if action in (REFUSE, NOTHING):
        assert decision.message
    if action == REFUSE:
        assert decision.fix


def test_what_serves_before_is_a_matter_of_descent_and_not_of_time():
    # 3 was rolled away from to 2; a fall-back from 2 must not lead to 3, the latest but one.
    current = at(2, by="rollback", replaced=3, served=(1, 3, 2))
    assert fallback(current, {1: 0, 2: 1, 3: 2}) == 1


@pytest.mark.parametrize(
    ("current", "pending", "running", "expected"),
    [
        (None, None, (), ("clean", (), 0)),
        (None, Pending("deploy", 1, 0, ""), (1,), ("taken-back", ("g1",), 0)),
        (at(1), None, (1,), ("clean", (), 1)),
        (at(1), None, (), ("clean", (), 1)),
        (at(1), Pending("deploy", 2, 1, ""), (2,), ("taken-back", ("g2",), 1)),
        (at(1), Pending("deploy", 2, 1, ""), (1, 2), ("taken-back", ("g2",), 1)),
        (at(2), Pending("deploy", 2, 1, ""), (2,), ("completed", (), 2)),
        (at(2), Pending("unreadable", 0, 0, ""), (1,), ("taken-back", ("g1",), 2)),
        (at(2, wanted=STOPPED), None, (2,), ("clean", ("g2",), 0)),
        (at(2, wanted=STOPPED), Pending("start", 2, 2, ""), (2,), ("taken-back", ("g2",), 0)),
    ],
)
def test_after_a_crash(current, pending, running, expected):
    found = settlement(current, pending, [Container(f"g{n}", n, n in running) for n in (1, 2)])
    assert (found.outcome, found.stop, found.start) == expected


@st.composite
def _moments(draw):
    """The state of a host that died at any moment of any number of swaps, each of which went well or not."""
    committed, known = 0, 0
    for _ in range(draw(st.integers(0, 6))):
        target = draw(st.integers(1, known)) if known and draw(st.booleans()) else known + 1
        known = max(known, target)
        moment = draw(st.integers(0, 4))
        before = committed
        if moment == 0:  # intent written
            return committed, target, {before}, known
        if moment == 1:  # old stopped
            return committed, target, set(), known
        if moment == 2:  # new started
            return committed, target, {target}, known
        committed = target if draw(st.booleans()) else committed
        if moment == 3:  # committed or taken back, intent not cleared
            return committed, target, {committed}, known
    return committed, 0, {committed}, known


@given(_moments(), st.sets(st.integers(1, 7)))
def test_at_any_moment_exactly_the_committed_generation_is_to_run(moment, restarted):
    """Also when the engine started some by itself meanwhile."""
    committed, target, running, known = moment
    up = (running | restarted) - {0}
    current = at(committed) if committed else None
    pending = Pending("deploy", target, committed, "") if target else None
    containers = [Container(f"g{n}", n, n in up) for n in range(1, max(known, 7) + 1)]
    found = settlement(current, pending, containers)
    left = {one.generation for one in containers if one.running and one.name not in found.stop}
    assert left | ({found.start} - {0}) == {committed} - {0}
    again = settlement(current, None, [Container(f"g{n}", n, n == committed) for n in range(1, known + 1)])
    assert again.stop == ()
    assert again.outcome == "clean"


@given(st.lists(st.integers(1, 30), unique=True, min_size=1), st.integers(1, 5), st.integers(0, 3))
def test_the_current_one_and_enough_before_it_are_always_kept(served, keep, failed):
    known = range(1, max(served) + failed + 1)
    found = kept(at(served[-1], served=served), known, keep)
    assert served[-1] in found
    assert len([n for n in found if n in served]) == min(len(served), keep + 1)
    assert set(found) - set(served) <= {max(known)}
    assert set(served[-keep - 1 :]) <= set(found)
