"""The gate that says whether requested kernels ran, on files that the plugin itself wrote."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from blackwell_kernels.sglang_plugin.counters import Counters
from blackwell_kernels.sglang_plugin.settings import Feature

from tooling.errors import InputError
from tooling.gates.dispatch_counters import (
    DEVICE_KINDS,
    FEATURES,
    CounterFile,
    dispatch_check,
    dispatch_gate,
    parse_counters,
    read_counters,
)
from tooling.gates.records import Check, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
RMSNORM = "all_reduce_residual_rmsnorm_unrounded"


def _counters(feature: Feature, rounds: dict[str, int] | None = None, rank: int | None = 0) -> Counters:
    counters = Counters({"package": "0.1.0", "engine": "sglang 0.5.23", "strict": False, "rank": rank})
    counters.request(feature)
    if rounds is not None:
        counters.add_launches("ranks 0-1 hidden 4096", lambda: rounds)
    return counters


def _file(counters: Counters, pid: int) -> CounterFile:
    (found,) = parse_counters({"x": json.dumps({**counters.document(), "pid": pid})})
    return found


def _check(
    after: Sequence[CounterFile],
    before: Sequence[CounterFile] = (),
    feature: Feature = Feature.ALLREDUCE_RMSNORM,
    ranks: int = 2,
) -> Check:
    return dispatch_check(feature, before, after, ranks=ranks)


def test_features_and_kinds_are_those_of_the_package():
    assert set(FEATURES) == {str(feature) for feature in Feature}
    tree = ast.parse((ROOT / "images/kernels/blackwell_kernels/slab.py").read_text())
    kinds = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "KINDS"
    )
    assert sorted(kind for names in DEVICE_KINDS.values() for kind in names) == sorted(kinds)


def test_launches_of_the_load_on_every_rank_pass():
    before = [
        _file(_counters(Feature.ALLREDUCE_RMSNORM, {f"push_one_shot.{RMSNORM}": 40}), pid) for pid in (1, 2)
    ]
    counters = _counters(Feature.ALLREDUCE_RMSNORM, {f"push_one_shot.{RMSNORM}": 900, f"calls.{RMSNORM}": 3})
    counters.ran(Feature.ALLREDUCE_RMSNORM, "32x4096")
    counters.fell_back(Feature.ALLREDUCE_RMSNORM, "no group takes the shape", "4000x4096")
    check = _check([_file(counters, pid) for pid in (1, 2)], before)
    assert check.verdict is Verdict.PASS
    assert check.seen == "1720 launches on 2 of 2 ranks, 2 calls went the engine's own way"
    assert check.details[0] == "process 1, rank 0: ran 32x4096 (1)"
    assert "4000x4096 (1)" in check.details[1]


def test_requested_and_never_launched_under_the_load_fails():
    """Rounds of the start-up's measurement are no proof."""
    same = [
        _file(_counters(Feature.ALLREDUCE_RMSNORM, {f"push_one_shot.{RMSNORM}": 40}), pid) for pid in (1, 2)
    ]
    check = _check(same, same)
    assert check.verdict is Verdict.FAIL
    assert check.seen.startswith("0 launches on 0 of 2 ranks")


def test_without_a_reading_before_the_load_nobody_knows():
    after = [
        _file(_counters(Feature.ALLREDUCE_RMSNORM, {f"push_one_shot.{RMSNORM}": 40}), pid) for pid in (1, 2)
    ]
    assert _check(after).verdict is Verdict.INCONCLUSIVE


def test_one_rank_that_did_not_run_it_fails():
    after = [
        _file(_counters(Feature.ALLREDUCE_RMSNORM, {f"push_one_shot.{RMSNORM}": rounds}), pid)
        for pid, rounds in ((1, 90), (2, 0))
    ]
    before = [_file(_counters(Feature.ALLREDUCE_RMSNORM, {}), pid) for pid in (1, 2)]
    assert _check(after, before).verdict is Verdict.FAIL


def test_another_features_kernels_prove_nothing():
    after = [
        _file(_counters(Feature.ALLREDUCE_RMSNORM, {"push_one_shot.all_reduce": 90}), pid) for pid in (1, 2)
    ]
    assert _check(after, after).verdict is Verdict.FAIL


def test_a_disabled_feature_fails_with_its_reason():
    counters = _counters(Feature.TOPK)
    counters.disable(Feature.TOPK, "not active: no CUDA device")
    check = _check([_file(counters, 1)], feature=Feature.TOPK, ranks=1)
    assert check.verdict is Verdict.FAIL
    assert check.seen.endswith("DISABLED: not active: no CUDA device")


def test_an_engine_without_the_plugin_fails():
    check = _check([])
    assert check.verdict is Verdict.FAIL
    assert "plugin was loaded" in check.seen


def test_topk_is_counted_by_its_calls_and_the_gate_says_so():
    counters = _counters(Feature.TOPK)
    counters.ran(Feature.TOPK, "8x4096 k 512")
    result = dispatch_gate(
        [Feature.TOPK], (), [_file(counters, 1)], ranks=1, started="2026-11-29T00:00:00+00:00"
    )
    assert result.verdict is Verdict.PASS
    assert "replays of CUDA graphs are not seen" in result.limitations[0]


@pytest.mark.parametrize("requested", [[], ["warp-drive"]])
def test_a_gate_over_nothing_is_refused(requested):
    with pytest.raises(InputError):
        dispatch_gate(requested, (), (), ranks=1, started="2026-11-29T00:00:00+00:00")


def test_files_are_read_whole_and_foreign_ones_refused(tmp_path):
    counters = _counters(Feature.TOPK)
    path = counters.export_to(tmp_path / "counters", interval_s=3600)
    (found,) = read_counters(tmp_path / "counters")
    assert (found.pid, found.features["topk"].state) == (os.getpid(), "requested")
    path.write_text("{}")
    with pytest.raises(InputError, match="no counter file"):
        read_counters(tmp_path / "counters")
    assert read_counters(tmp_path / "nothing") == ()


def test_a_group_that_cannot_be_read_is_an_error_and_no_number():
    def lost() -> dict[str, int]:
        raise RuntimeError("the context is lost")

    counters = _counters(Feature.ALLREDUCE)
    counters.add_launches("ranks 0-1", lost)
    found = _file(counters, 1)
    assert (found.launches, found.errors) == ({}, {"ranks 0-1": "the context is lost"})
    check = _check([found], feature=Feature.ALLREDUCE, ranks=1)
    assert check.verdict is Verdict.FAIL
    assert "cannot be read: the context is lost" in check.details[0]
