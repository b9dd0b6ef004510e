"""Plans from measurements, kept and read back; joint decisions of ranks that are threads here."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from blackwell_kernels.errors import GroupError, KernelError
from blackwell_kernels.plans import Plan, choose, measured_rows, read_plans, slowest, topology_key, write_plans
from blackwell_kernels.vote import Vote

if TYPE_CHECKING:
    from collections.abc import Callable

TIMES = {(1, 0): 3e-6, (1, 1): 5e-6, (8, 0): 9e-6, (8, 1): 6e-6, (8, 3): 6e-6, (32, 1): 20e-6}


def test_the_fastest_path_of_every_measured_size_is_taken():
    plan = choose(TIMES)
    assert plan == Plan(((1, 0), (8, 1), (32, 1)))
    assert [plan.path(rows) for rows in (1, 2, 8, 9, 32)] == [0, 1, 1, 1, 1]
    with pytest.raises(KernelError, match="33 rows are more than the 32"):
        plan.path(33)


@pytest.mark.parametrize("times", [{}, {(1, 0): 0.0}, {(1, 0): float("nan")}, {(1, 0): float("inf")}])
def test_no_or_impossible_times_make_no_plan(times):
    with pytest.raises(KernelError):
        choose(times)


def test_sizes_to_measure_and_the_slowest_rank():
    assert measured_rows(1) == (1,)
    assert measured_rows(100) == (1, 2, 4, 8, 16, 32, 64, 100)
    assert slowest([{(1, 0): 1.0, (1, 1): 5.0}, {(1, 0): 3.0, (1, 1): 2.0}]) == {(1, 0): 3.0, (1, 1): 5.0}


def test_kept_plans_are_read_back_and_damaged_ones_are_measured_again(tmp_path):
    path = tmp_path / "deep" / "plan.json"
    write_plans(path, {"world": 2}, {4096: choose(TIMES)}, {4096: TIMES})
    text = path.read_text()
    assert '"8 rows, push_two_shot": 6.0' in text
    assert read_plans(text, (4096,)) == {4096: choose(TIMES)}
    assert [entry.name for entry in path.parent.iterdir()] == ["plan.json"], "no draft stays"
    assert read_plans(text, (4096, 7168)) is None, "a size is missing"
    for damaged in (text[:-9], text.replace('"format": 1', '"format": 2'), "[]", text.replace("32,", "-32,")):
        assert damaged != text
        assert read_plans(damaged, (4096,)) is None


def test_a_topology_is_its_facts():
    assert topology_key({"a": 1, "b": 2}) == topology_key({"b": 2, "a": 1})
    assert topology_key({"a": 1}) != topology_key({"a": 2})


class Exchange:
    """All-gather between threads."""

    def __init__(self, world: int) -> None:
        self.meet = threading.Barrier(world, timeout=10)
        self.sent: list[bytes] = [b""] * world

    def of(self, rank: int):
        def exchange(data: bytes) -> list[bytes]:
            self.sent[rank] = data
            self.meet.wait()
            answers = list(self.sent)
            self.meet.wait()
            return answers

        return exchange


def _vote(world: int, steps: list[Callable[[], int]]) -> list[object]:
    exchange = Exchange(world)

    def rank(number: int) -> object:
        try:
            return Vote(world, exchange.of(number)).agree("no slab", steps[number])
        except GroupError as error:
            return str(error)

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(rank, range(world)))


def _fails() -> int:
    raise RuntimeError("out of memory")


def test_a_step_that_one_rank_cannot_take_is_taken_by_none():
    assert _vote(3, [lambda: 0, lambda: 1, lambda: 2]) == [0, 1, 2]
    found = _vote(3, [lambda: 0, _fails, lambda: 2])
    assert found == ["no slab (rank 1: RuntimeError: out of memory)"] * 3


def test_an_exchange_that_fails_or_forgets_a_rank_is_no_agreement():
    with pytest.raises(GroupError, match="answered for 1 ranks of 2"):
        Vote(2, lambda data: [data]).agree("x", lambda: 1)

    def broken(_: bytes) -> list[bytes]:
        raise OSError("closed")

    with pytest.raises(GroupError, match="the exchange between ranks failed: closed"):
        Vote(2, broken).agree("x", lambda: 1)
