"""The GPU comparison says no when it must; what it computes needs a GPU."""

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.prune_compare import MUST_MAP, difference, problems

GOOD: dict[str, Any] = {"sha256": "a", "repeats": True, "distinct": 100, "finite": True}
ORIGINAL, PRUNED = Path("/original"), Path("/pruned")


def side(site: Path, **results: dict[str, Any]) -> dict[str, Any]:
    return {"files": [f"{site}/lib/{part}.1" for part in MUST_MAP], "results": results}


def test_equal_results_are_no_problem():
    sides = {ORIGINAL: side(ORIGINAL, matmul=GOOD), PRUNED: side(PRUNED, matmul=dict(GOOD))}
    assert problems(sides) == []


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (GOOD, {**GOOD, "sha256": "b"}, "another result when pruned"),
        (GOOD, {"error": "no kernel image"}, "fails when pruned: no kernel image"),
        ({**GOOD, "repeats": False}, GOOD, "differs from call to call"),
        ({**GOOD, "distinct": 1}, GOOD, "proves nothing"),
        ({**GOOD, "finite": False}, GOOD, "proves nothing"),
        ({"error": "not there"}, {"error": "not there"}, "could not be compared"),
        ({"error": "not there"}, {"error": "something else"}, "something else"),
        ({"error": "not there"}, GOOD, "not there"),
    ],
)
def test_what_is_no_proof_is_a_problem(before: dict[str, Any], after: dict[str, Any], message: str):
    assert message in difference("matmul", before, after)


def test_what_a_gpu_may_lack_is_no_problem_when_both_lack_it():
    lacking = {"error": "not on this GPU"}
    assert difference("fp8 matmul", lacking, dict(lacking)) == ""
    assert difference("fp8 matmul", lacking, {"error": "no kernel image"})


def test_a_side_that_loaded_the_libraries_of_the_other_proves_nothing():
    sides = {ORIGINAL: side(ORIGINAL, matmul=GOOD), PRUNED: side(ORIGINAL, matmul=GOOD)}
    assert len(problems(sides)) == len(MUST_MAP)
    assert "was not loaded from /pruned" in problems(sides)[0]
