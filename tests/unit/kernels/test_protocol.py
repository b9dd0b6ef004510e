"""The all-reduce's protocol in every schedule: right as it is built, and each known mistake is found."""

from __future__ import annotations

import pytest

from tests.unit.kernels.protocol_model import WRAP, Fault, Path, Scenario
from tests.unit.kernels.protocol_search import ViolationError, explore, unordered

_ONE_SHOT = (Path.PUSH_ONE_SHOT, Path.PULL_ONE_SHOT)
_TWO_SHOT = (Path.PUSH_TWO_SHOT, Path.PULL_TWO_SHOT)
_PUSH = (Path.PUSH_ONE_SHOT, Path.PUSH_TWO_SHOT)
_PULL = (Path.PULL_ONE_SHOT, Path.PULL_TWO_SHOT)


def _scenario(path: Path, world: int, rows: tuple[int, ...], *faults: Fault, **more: int) -> Scenario:
    return Scenario(path, world, rows, faults=frozenset(faults), **more)


def _violation(path: Path, world: int, rows: tuple[int, ...], *faults: Fault, **more: int) -> str:
    return explore(_scenario(path, world, rows, *faults, **more)).violation


@pytest.mark.parametrize("path", Path)
@pytest.mark.parametrize("rows", [(2, 2, 2, 2), (2, 1, 2, 1), (1, 2, 2, 1)])
def test_two_ranks_are_right_in_every_schedule(path, rows):
    outcome = explore(_scenario(path, 2, rows))
    assert outcome.violation == ""
    assert outcome.states > 50


@pytest.mark.parametrize("path", Path)
@pytest.mark.parametrize("rows", [(3, 3, 3), (3, 1, 3)])
def test_three_ranks_are_right_in_every_schedule(path, rows):
    assert explore(_scenario(path, 3, rows), words=1).violation == ""


def test_four_ranks_with_one_row_are_right_in_every_schedule():
    assert explore(_scenario(Path.PUSH_TWO_SHOT, 4, (1, 1, 1)), words=1).violation == ""


@pytest.mark.parametrize("path", Path)
@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_every_pair_of_accesses_is_ordered_however_rows_change(path, world):
    for rows in ((world,) * 6, (1, world) * 3, (world, 1, 1, world, world - 1, 1)):
        assert unordered(_scenario(path, world, rows)) == []


@pytest.mark.parametrize("path", Path)
def test_rounds_on_both_sides_of_the_wrap(path):
    assert explore(_scenario(path, 2, (2, 2, 2, 2), first=WRAP - 2)).violation == ""


@pytest.mark.parametrize("path", _ONE_SHOT)
def test_without_a_second_half_a_fast_rank_overwrites_what_was_not_read(path):
    assert _violation(path, 2, (2, 2, 2), Fault.SINGLE_BUFFER)


@pytest.mark.parametrize("path", [*_ONE_SHOT, Path.PULL_TWO_SHOT])
def test_a_round_chosen_on_the_host_breaks_when_a_graph_is_replayed(path):
    assert _violation(path, 2, (2, 2, 2), Fault.HOST_ROUND)


@pytest.mark.parametrize("path", _TWO_SHOT)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_rank_that_does_not_wait_for_the_end_of_a_round_runs_ahead(path, world):
    """The second half helps only as long as a rank knows that all the others began the last round."""
    found = explore(_scenario(path, world, (1, 1, 1), Fault.NO_END), words=1).violation
    assert "overwrites" in found or "reads" in found


@pytest.mark.parametrize("path", _PULL)
def test_a_plain_compare_takes_an_old_flag_for_a_new_one_at_the_wrap(path):
    assert "reads" in _violation(path, 2, (2, 2, 2, 2), Fault.UNSIGNED_COMPARE, first=WRAP - 2)


@pytest.mark.parametrize("path", _PULL)
def test_a_flag_without_release_overtakes_the_data(path):
    assert "reads" in _violation(path, 2, (2, 2), Fault.RELAXED_FLAG)


@pytest.mark.parametrize("path", _PUSH)
def test_a_vector_of_which_one_word_is_looked_at_is_read_half(path):
    assert "-1]" in _violation(path, 2, (2, 2), Fault.ONE_LANE)


@pytest.mark.parametrize("path", _PUSH)
def test_a_payload_that_looks_like_the_mark_never_arrives_unless_it_is_replaced(path):
    assert _violation(path, 2, (2, 2), looks_empty=1) == ""
    assert "for ever" in _violation(path, 2, (2, 2), Fault.UNREPLACED_MARK, looks_empty=1)


@pytest.mark.parametrize("path", Path)
def test_a_dead_rank_is_given_up_by_the_others_wherever_it_dies(path):
    outcome = explore(_scenario(path, 2, (2, 2, 2)), dies=1)
    assert outcome.violation == ""
    assert outcome.traps
    assert all(waits.startswith("rank 0 waits") for waits in outcome.traps)
    assert "for ever" in explore(_scenario(path, 2, (2, 2, 2), Fault.UNBOUNDED), dies=1).violation


@pytest.mark.parametrize("path", Path)
def test_a_late_rank_costs_the_round_and_never_its_truth(path):
    """Who gave up delivers nothing; nobody else takes wrong data for right ones because of it."""
    assert explore(_scenario(path, 2, (2, 2, 2)), late=True).violation == ""
    found = explore(_scenario(path, 2, (2, 2, 2), Fault.GIVES_UP_AND_GOES_ON), late=True).violation
    assert "goes on without" in found


@pytest.mark.parametrize("path", Path)
def test_a_restarted_rank_must_not_take_its_old_place(path):
    """Its slab is new and counts from the start, its peers do not: a group is made by all ranks, or by none."""
    assert explore(_scenario(path, 2, (2, 2, 2), Fault.REJOINS_ALONE), dies=1).violation


def test_a_schedule_that_does_not_end_is_no_proof():
    with pytest.raises(ViolationError, match="nobody sends"):
        unordered(_scenario(Path.PUSH_ONE_SHOT, 2, (2, 2, 2), Fault.SINGLE_BUFFER))


def test_vector_clocks_name_what_nothing_orders():
    found = unordered(_scenario(Path.PULL_ONE_SHOT, 2, (2, 2, 2), Fault.HOST_ROUND))
    assert any("may read" in line for line in found)
