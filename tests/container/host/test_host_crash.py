"""The crash matrix: the program dies at every step, the whole engine too; afterwards one right stack runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import pytest

from tooling.host.faults import RECONCILE, REVERT, SWAP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.container.host.deck import Deck, Image, Line

pytestmark = pytest.mark.container
Result = TypeVar("Result")
#: From here on the new generation is the right one.
COMMITTED = SWAP.index("committed")
#: A rollback records nothing.
ROLLBACK = tuple(step for step in SWAP if step != "recorded")
AT_ONCE = 3


def each(lines: Sequence[Line], work: Callable[[Line], Result]) -> list[Result]:
    """Do something with several groups at a time; they have nothing in common but the engine."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, lines))


@pytest.fixture(scope="module")
def lines(deck: Deck, v1: Image, new_line: Callable[[], Line]) -> Iterator[list[Line]]:
    """As many groups as there are steps, v1 on each."""
    del deck
    made = [new_line() for _ in SWAP]
    first = each(made, lambda line: line.deploy(v1))
    assert [run.code for run in first] == [0] * len(made), [run.said for run in first if run.code]
    yield made
    each(made, lambda line: line.clear())


def crash(line: Line, step: str, *command: str, image: Image | None = None, **changes: object) -> None:
    """Die at a step, and be sure that it was there."""
    run = line.run(*command, fault=step) if image is None else line.deploy(image, fault=step, **changes)
    assert run.code == 1, f"{step}: {run.said}"
    assert "ended without a result" in run.stderr, f"{step}: {run.said}"


def reconcile_all(lines: Sequence[Line]) -> None:
    """What runs at boot, for some groups."""
    runs = each(lines, lambda line: line.run("reconcile"))
    assert [run.code for run in runs] == [0] * len(lines), [run.said for run in runs if run.code]


def test_a_deploy_that_dies_with_the_whole_engine(deck: Deck, lines: list[Line], v2: Image):
    steps = dict(zip((line.group for line in lines), SWAP, strict=True))
    each(lines, lambda line: crash(line, steps[line.group], image=v2))
    deck.engine.lose_power()
    deck.engine.start()
    reconcile_all(lines)
    for line in lines:
        line.assert_right("v2" if SWAP.index(steps[line.group]) >= COMMITTED else "v1")


@pytest.mark.long
def test_a_rollback_whose_program_is_killed(lines: list[Line], v2: Image):
    # Those whose deploy was taken back get it now; the others say that there is nothing to do.
    assert each(lines, lambda line: line.deploy(v2).code) == [0] * len(lines)
    steps = dict(zip((line.group for line in lines), ROLLBACK, strict=False))
    some = [line for line in lines if line.group in steps]
    each(some, lambda line: crash(line, steps[line.group], "rollback", "1"))
    reconcile_all(some)
    for line in some:
        line.assert_right("v1" if SWAP.index(steps[line.group]) >= COMMITTED else "v2")


@pytest.mark.long
def test_the_way_back_and_the_reconciliation_die_too(deck: Deck, lines: list[Line], v2: Image):
    some = lines[: len(REVERT) + len(RECONCILE)]
    before = {line.group: line.version() for line in some}
    steps = dict(zip((line.group for line in some), (*REVERT, *RECONCILE), strict=True))

    def die(line: Line) -> None:
        step = steps[line.group]
        fault = {"contract__environment": {"STAND_IN_FAULT": "crash"}}
        # A reconciliation can die only where there is something to reconcile.
        crash(line, step if step in REVERT else "ready" if step == "reconcile-stopped" else "old-stopped",
              image=v2, **(fault if step in REVERT else {"release": "another"}))  # fmt: skip
        if step in RECONCILE:
            crash(line, step, "reconcile")

    each(some, die)
    deck.engine.lose_power()
    deck.engine.start()
    reconcile_all(some)
    for line in some:
        line.assert_right(before[line.group])


def test_the_engine_dies_under_the_living_program(deck: Deck, served: Line, v2: Image):
    with served.deploy_in_background(v2, contract__environment={"STAND_IN_FAULT": "slow"}) as operator:
        served.await_step("start")
        deck.engine.lose_power()
        # It says that nothing serves, which is true, and does not hang.
        assert operator.wait() == 4
    deck.engine.start()
    settled = served.run("reconcile")
    if "the engine keeps port" in settled.said:
        # It died while it gave the port to v2; the message says that only one more start of it helps.
        deck.engine.restart_daemon(lambda: True)
        settled = served.run("reconcile")
    assert settled.code == 0, settled.said
    served.assert_right("v1")
