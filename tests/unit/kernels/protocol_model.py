"""The ranks' protocol as data: what each rank stores, waits for and reads in each round, one block, one vector.

It follows `images/kernels/csrc/protocol.cuh` and `all_reduce.cuh`. A block of one rank talks to the block of
the same number of the others alone, and each thread to its own vector, so one of each stands for all.
Faults are planted by name; without any it is the protocol as built.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

#: An empty mailbox; what no sender may send.
EMPTY = -1
WRAP = 1 << 32


class Path(StrEnum):
    PUSH_ONE_SHOT = "push_one_shot"
    PUSH_TWO_SHOT = "push_two_shot"
    PULL_ONE_SHOT = "pull_one_shot"
    PULL_TWO_SHOT = "pull_two_shot"


class Fault(StrEnum):
    SINGLE_BUFFER = "one half for all rounds"
    HOST_ROUND = "the round is a launch argument, frozen in a captured graph"
    NO_END = "a rank without a row leaves the round when it has sent"
    UNSIGNED_COMPARE = "rounds are compared without thought of the wrap"
    RELAXED_FLAG = "the flag is raised without release"
    ONE_LANE = "only the first word of a vector is held against the mark"
    UNREPLACED_MARK = "a payload that looks like the mark is sent as it is"
    UNBOUNDED = "a rank waits for ever"
    GIVES_UP_AND_GOES_ON = "a rank that gave up finishes the round with what it has"
    REJOINS_ALONE = "a restarted rank takes its old place without the others"


class Op(NamedTuple):
    """One step of a rank.

    Attributes:
        kind: `put` (a store, its own slab or a peer's), `flag` (release store), `take` (wait for a mailbox and
            empty it), `await` (wait for a flag), `get` (load).
        place: Where.
        value: Value stored, expected, or the round of a flag.
    """

    kind: str
    place: tuple[object, ...]
    value: int


@dataclass(frozen=True)
class Scenario:
    """What is launched.

    Attributes:
        path: The path.
        world: Ranks.
        rows: Rows of each round, as the one block sees them: at most `world`, one group.
        first: Round before the first one.
        faults: Planted faults.
        looks_empty: Rank whose payload of the first round has the bits of the mark.
    """

    path: Path
    world: int
    rows: tuple[int, ...]
    first: int = 0
    faults: frozenset[Fault] = frozenset()
    looks_empty: int | None = None

    def number(self, index: int) -> int:
        """The round that a rank counts; on the host it would be that of the capture."""
        return (self.first + 1 + (0 if Fault.HOST_ROUND in self.faults else index)) % WRAP

    def half(self, index: int) -> int:
        return 0 if Fault.SINGLE_BUFFER in self.faults else self.number(index) & 1

    def payload(self, rank: int, index: int) -> int:
        """A value that says whose it is and of which launch."""
        if rank == self.looks_empty and index == 0:
            return EMPTY if Fault.UNREPLACED_MARK in self.faults else 9999
        return 1 + index * self.world + rank


def program(scenario: Scenario, rank: int) -> list[tuple[Op, ...]]:
    """The steps of a rank, by round."""
    build = {
        Path.PUSH_ONE_SHOT: _push_one_shot,
        Path.PULL_ONE_SHOT: _pull_one_shot,
        Path.PUSH_TWO_SHOT: _push_two_shot,
        Path.PULL_TWO_SHOT: _pull_two_shot,
    }[scenario.path]
    return [tuple(build(scenario, rank, index)) for index in range(len(scenario.rows))]


def _peers(scenario: Scenario, rank: int) -> list[int]:
    return [(rank + step) % scenario.world for step in range(1, scenario.world)]


def _push_one_shot(s: Scenario, rank: int, index: int) -> list[Op]:
    half = s.half(index)
    sends = [Op("put", (peer, "box", half, rank), s.payload(rank, index)) for peer in _peers(s, rank)]
    takes = [Op("take", (rank, "box", half, peer), s.payload(peer, index)) for peer in sorted(_peers(s, rank))]
    return sends + takes


def _flags(s: Scenario, rank: int, index: int, stage: str, *, to: list[int], of: list[int]) -> list[Op]:
    number = s.number(index)
    raised = [Op("flag", (peer, stage, rank), number) for peer in to]
    return raised + [Op("await", (rank, stage, peer), number) for peer in of]


def _pull_one_shot(s: Scenario, rank: int, index: int) -> list[Op]:
    half, peers = s.half(index), _peers(s, rank)
    own = [Op("put", (rank, "rows", half), s.payload(rank, index))]
    reads = [Op("get", (peer, "rows", half), s.payload(peer, index)) for peer in sorted(peers)]
    return own + _flags(s, rank, index, "one", to=peers, of=peers) + reads


def _sum(s: Scenario, owner: int, index: int) -> int:
    """The wire vector of an owner's row: a value of its own, not a mailbox mark."""
    return 1000 + s.payload(owner, index)


def _push_two_shot(s: Scenario, rank: int, index: int) -> list[Op]:
    half, rows, peers = s.half(index), s.rows[index], _peers(s, rank)
    ops = [Op("put", (peer, "rows", half, rank), s.payload(rank, index)) for peer in peers if peer < rows]
    if rank < rows:
        ops += [Op("take", (rank, "rows", half, peer), s.payload(peer, index)) for peer in sorted(peers)]
        ops += [Op("put", (peer, "sums", half, rank), _sum(s, rank, index)) for peer in peers]
    elif Fault.NO_END in s.faults:
        return ops
    return ops + [
        Op("take", (rank, "sums", half, owner), _sum(s, owner, index))
        for owner in sorted(peers)
        if owner < rows
    ]


def _pull_two_shot(s: Scenario, rank: int, index: int) -> list[Op]:
    half, rows, peers = s.half(index), s.rows[index], _peers(s, rank)
    ops = [Op("put", (rank, "rows", half, peer), s.payload(rank, index)) for peer in peers if peer < rows]
    if Fault.NO_END in s.faults and rank >= rows:
        return ops + _flags(s, rank, index, "scatter", to=peers, of=[])
    ops += _flags(s, rank, index, "scatter", to=peers, of=peers)
    if rank < rows:
        ops += [Op("get", (peer, "rows", half, rank), s.payload(peer, index)) for peer in sorted(peers)]
        ops.append(Op("put", (rank, "sums", half), _sum(s, rank, index)))
    speaks = peers if rank < rows else []
    ops += _flags(s, rank, index, "gather", to=speaks, of=[peer for peer in peers if peer < rows])
    return ops + [
        Op("get", (owner, "sums", half), _sum(s, owner, index)) for owner in sorted(peers) if owner < rows
    ]
