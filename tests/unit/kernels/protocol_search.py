"""Every schedule of a scenario, or proof that all of them are one.

`explore` walks the states: which rank runs next, which store in flight lands next (a 16-byte store as two words
on their own, in any order but on one address), who dies when, who waits too long. `unordered` follows vector
clocks through one schedule and names every pair of accesses to one place that nothing orders. Ranks are
deterministic and wait for data, so a scenario without such a pair has one outcome in every schedule; that is
partial-order reduction at its end, and holds for sizes that no walk through the states could finish.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tests.unit.kernels.protocol_model import EMPTY, WRAP, Fault, Op, Scenario, program

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEAD, _TRAPPED = -1, -2
#: Added to the steps of a rank that was started again; it does not die once more.
_SECOND_LIFE = 1 << 20
_LIMIT = 100_000


class State(NamedTuple):
    """Where everything is.

    Attributes:
        at: Next step of each rank; negative when it is gone.
        memory: Values by place.
        flying: By rank, its stores on their way: (place, value, whether it is a release).
    """

    at: tuple[int, ...]
    memory: tuple[int, ...]
    flying: tuple[tuple[tuple[int, int, bool], ...], ...]


@dataclass
class Outcome:
    """What a search found.

    Attributes:
        states: States visited.
        violation: What went wrong, with the steps that lead there; empty when nothing did.
        traps: Ranks that gave up, with what they waited for.
    """

    states: int = 0
    violation: str = ""
    traps: set[str] = field(default_factory=set)


class ViolationError(Exception):
    """A state that must not be."""


class Search:
    """One scenario, compiled to numbers."""

    def __init__(
        self, scenario: Scenario, *, words: int = 2, dies: int | None = None, late: bool = False
    ) -> None:
        self.faults = scenario.faults
        self.dies = dies
        self.late = late
        self.names: list[tuple[object, ...]] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self.programs = [
            [step for steps in program(scenario, rank) for step in steps] for rank in range(scenario.world)
        ]
        boxes = {op.place for ops in self.programs for op in ops if op.kind == "take"}
        self._words = words
        self.compiled = [[self._compile(op) for op in ops] for ops in self.programs]
        self.boxes = {number for place in boxes for number in self._places(place)}
        flags = {op.place for ops in self.programs for op in ops if op.kind in {"flag", "await"}}
        first = {self._number((place, 0)) for place in flags}
        self.empty = tuple(scenario.first if number in first else EMPTY for number in range(len(self.names)))
        self.start = State((0,) * scenario.world, self.empty, ((),) * scenario.world)

    def _number(self, place: tuple[object, ...]) -> int:
        if place not in self._numbers:
            self._numbers[place] = len(self.names)
            self.names.append(place)
        return self._numbers[place]

    def _places(self, place: tuple[object, ...]) -> tuple[int, ...]:
        return tuple(self._number((place, word)) for word in range(self._words))

    def _compile(self, op: Op) -> tuple[str, tuple[int, ...], int]:
        single = op.kind in {"flag", "await"}
        return op.kind, (self._number((op.place, 0)),) if single else self._places(op.place), op.value

    def next_step(self, rank: int, at: int) -> tuple[str, tuple[int, ...], int] | None:
        """What a rank does next; None when it is done or gone."""
        index = at % _SECOND_LIFE
        return self.compiled[rank][index] if at >= 0 and index < len(self.compiled[rank]) else None

    def settle(self, state: State) -> State:
        """Issue all stores that come next: that is seen by nobody before they land."""
        at, flying = list(state.at), list(state.flying)
        for rank in range(len(self.compiled)):
            while (step := self.next_step(rank, at[rank])) is not None and step[0] in {"put", "flag"}:
                kind, places, value = step
                release = kind == "flag" and Fault.RELAXED_FLAG not in self.faults
                flying[rank] += tuple((place, value, release) for place in places)
                at[rank] += 1
        return State(tuple(at), state.memory, tuple(flying))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Everything that can happen next.

        Raises:
            ViolationError: One of them must not happen.
        """
        yield from self._landings(state)
        for rank in range(len(self.compiled)):
            yield from self._moves(state, rank)

    def _landings(self, state: State) -> Iterator[tuple[str, State]]:
        for rank, stores in enumerate(state.flying):
            for index, (place, value, release) in enumerate(stores):
                earlier = stores[:index]
                if (release and earlier) or any(place == other for other, _, _ in earlier):
                    continue
                if place in self.boxes and state.memory[place] != EMPTY:
                    raise ViolationError(f"rank {rank} overwrites {self.names[place]} before it was read")
                flying = (*state.flying[:rank], (*earlier, *stores[index + 1 :]), *state.flying[rank + 1 :])
                memory = (*state.memory[:place], value, *state.memory[place + 1 :])
                yield f"{self.names[place]} = {value} lands", State(state.at, memory, flying)

    def _moves(self, state: State, rank: int) -> Iterator[tuple[str, State]]:
        at = state.at[rank]
        if at == _DEAD and Fault.REJOINS_ALONE in self.faults:
            owned = [self.names[number][0][0] == rank for number in range(len(self.empty))]  # type: ignore[index]
            memory = tuple(
                first if own else now for own, first, now in zip(owned, self.empty, state.memory, strict=True)
            )
            yield f"rank {rank} starts again", self._with(state, rank, _SECOND_LIFE, memory)
        step = self.next_step(rank, at)
        if step is None:
            return
        kind, places, value = step
        if self.dies == rank and at < _SECOND_LIFE:
            yield f"rank {rank} dies", self._with(state, rank, _DEAD, state.memory)
        if self._ready(kind, places, value, state.memory):
            memory = self._after(rank, kind, places, value, state.memory)
            yield f"rank {rank}: {kind} {self.names[places[0]][0]}", self._with(state, rank, at + 1, memory)
        elif self.late:
            yield f"rank {rank} gives up", self.give_up(state, rank)

    def give_up(self, state: State, rank: int) -> State:
        """A wait that took too long."""
        if Fault.GIVES_UP_AND_GOES_ON in self.faults:
            raise ViolationError(f"rank {rank} goes on without what it waits for")
        return self._with(state, rank, _TRAPPED, state.memory)

    @staticmethod
    def _with(state: State, rank: int, at: int, memory: tuple[int, ...]) -> State:
        return State((*state.at[:rank], at, *state.at[rank + 1 :]), memory, state.flying)

    def _ready(self, kind: str, places: tuple[int, ...], value: int, memory: tuple[int, ...]) -> bool:
        if kind == "await":
            seen = memory[places[0]]
            if Fault.UNSIGNED_COMPARE in self.faults:
                return seen >= value
            return (seen - value) % WRAP < WRAP // 2
        if kind == "take":
            looked_at = places[:1] if Fault.ONE_LANE in self.faults else places
            return all(memory[place] != EMPTY for place in looked_at)
        return True

    def _after(
        self, rank: int, kind: str, places: tuple[int, ...], value: int, memory: tuple[int, ...]
    ) -> tuple[int, ...]:
        if kind == "await":
            return memory
        seen = [memory[place] for place in places]
        if any(one != value for one in seen):
            raise ViolationError(f"rank {rank} reads {seen} from {self.names[places[0]][0]}, sent was {value}")
        if kind == "get":
            return memory
        emptied = list(memory)
        for place in places:
            emptied[place] = EMPTY
        return tuple(emptied)


def explore(scenario: Scenario, *, words: int = 2, dies: int | None = None, late: bool = False) -> Outcome:
    """Walk through every reachable state.

    Args:
        scenario: What is launched.
        words: Parts of a vector that land on their own.
        dies: A rank that may die at any step.
        late: Whether a rank may wait longer than its bound although the peer lives.

    Returns:
        What was found; the first violation ends the walk.
    """
    search = Search(scenario, words=words, dies=dies, late=late)
    start = search.settle(search.start)
    came: dict[State, tuple[State | None, str]] = {start: (None, "launch")}
    stack, outcome = [start], Outcome()
    while stack:
        state = stack.pop()
        outcome.states += 1
        if outcome.states > _LIMIT:
            raise RuntimeError(f"more than {_LIMIT} states: the bounds are too wide")
        try:
            following = list(search.steps(state))
            if not following:
                _judge_end(search, state, outcome)
        except ViolationError as error:
            outcome.violation = "\n".join([*_path_to(came, state), str(error)])
            return outcome
        for label, after in following:
            settled = search.settle(after)
            if settled not in came:
                came[settled] = (state, label)
                stack.append(settled)
    return outcome


def _path_to(came: dict[State, tuple[State | None, str]], state: State | None) -> list[str]:
    labels = []
    while state is not None:
        state, label = came[state]
        labels.append(label)
    return labels[::-1]


def _judge_end(search: Search, state: State, outcome: Outcome) -> None:
    """Nothing can happen any more: everybody is done, or somebody waits."""
    gone = any(at < 0 for at in state.at)
    for rank, at in enumerate(state.at):
        step = search.next_step(rank, at)
        if step is None:
            continue
        kind, places, _ = step
        waits = f"rank {rank} waits: {kind} {search.names[places[0]][0]}"
        if not gone or Fault.UNBOUNDED in search.faults:
            raise ViolationError(f"{waits}, for ever")
        search.give_up(state, rank)
        outcome.traps.add(waits)


class _Clocks:
    """One schedule with a vector clock a rank.

    Attributes:
        found: Pairs of accesses that nothing orders.
    """

    def __init__(self, world: int) -> None:
        self.found: list[str] = []
        self._clocks = [[0] * world for _ in range(world)]
        #: Place -> who stored there last, what, and his clock then.
        self._stored: dict[tuple[object, ...], tuple[int, int, list[int]]] = {}
        self._raised: dict[tuple[tuple[object, ...], int], list[int]] = {}
        self._readers: dict[tuple[object, ...], list[tuple[int, int]]] = {}

    def run(self, rank: int, op: Op) -> bool:
        """Do a step, unless it has to wait."""
        if op.kind == "await" and (op.place, op.value) not in self._raised:
            return False
        if op.kind == "take" and self._stored.get(op.place, (0, None, []))[1] != op.value:
            return False
        self._clocks[rank][rank] += 1
        getattr(self, f"_{op.kind}")(rank, op)
        return True

    def _put(self, rank: int, op: Op) -> None:
        clock = self._clocks[rank]
        for reader, time in self._readers.pop(op.place, []):
            if clock[reader] < time:
                self.found.append(f"{op.place}: rank {rank} stores while rank {reader} may read")
        self._stored[op.place] = (rank, op.value, clock.copy())

    def _flag(self, rank: int, op: Op) -> None:
        self._raised[op.place, op.value] = self._clocks[rank].copy()

    def _await(self, rank: int, op: Op) -> None:
        self._clocks[rank][:] = map(max, self._clocks[rank], self._raised[op.place, op.value])

    def _take(self, rank: int, op: Op) -> None:
        self._clocks[rank][:] = map(max, self._clocks[rank], self._stored[op.place][2])
        self._reads(rank, op)

    def _get(self, rank: int, op: Op) -> None:
        writer, _, then = self._stored[op.place]
        if then[writer] > self._clocks[rank][writer]:
            self.found.append(f"{op.place}: rank {rank} reads what rank {writer} may not have stored")
        self._reads(rank, op)

    def _reads(self, rank: int, op: Op) -> None:
        self._readers.setdefault(op.place, []).append((rank, self._clocks[rank][rank]))


def unordered(scenario: Scenario) -> list[str]:
    """Pairs of accesses to one place of which nothing makes one come first.

    Follows one schedule with vector clocks: a rank's own order, what it took from a mailbox, and flags of just
    the round that it waited for (a later flag orders more, so this is the weakest case).

    Raises:
        ViolationError: The schedule does not end: somebody waits for what nobody sends.
    """
    programs = [[op for steps in program(scenario, rank) for op in steps] for rank in range(scenario.world)]
    clocks = _Clocks(scenario.world)
    at = [0] * scenario.world
    moved = True
    while moved:
        moved = False
        for rank, ops in enumerate(programs):
            while at[rank] < len(ops) and clocks.run(rank, ops[at[rank]]):
                at[rank] += 1
                moved = True
    waiting = [rank for rank, ops in enumerate(programs) if at[rank] < len(ops)]
    if waiting:
        raise ViolationError(f"ranks {waiting} wait for what nobody sends")
    return clocks.found
