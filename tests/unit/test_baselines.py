import json
from pathlib import Path

import pytest

from tooling.errors import InputError
from tooling.gates.baselines import (
    Baseline,
    HostFingerprint,
    Match,
    MetricBaseline,
    baseline_path,
    find_baseline,
    pin_differences,
    record_baseline,
)
from tooling.gates.verdict import Better, Boot, Metric

HOST = HostFingerprint(gpus=("RTX PRO 6000",) * 8, cpu="EPYC 9575F", cores=128, topology="pix")
MODEL = "org/Model-4B"
PINS = {"client": "c975", "driver": "580.95", "plan": "aa11"}
RATE = Metric(name="output-rate@c32", unit="tok/s")
TIME = Metric(name="time-per-token@c1", unit="ms", better=Better.LOWER)


def _metrics(rate: float, time: float = 10.0) -> list[MetricBaseline]:
    return [
        MetricBaseline(metric=RATE, boots=(Boot(boot_id="1", value=rate),)),
        MetricBaseline(metric=TIME, boots=(Boot(boot_id="1", value=time),)),
    ]


def _record(folder: Path, rate: float, time: float = 10.0, pins: dict[str, str] | None = None) -> Path:
    return record_baseline(folder, HOST, MODEL, pins or PINS, _metrics(rate, time), subject="sha256:1")


def test_what_was_recorded_is_found_again_as_boots_of_another_day(tmp_path: Path):
    _record(tmp_path, 100)
    found = find_baseline(tmp_path, HOST, MODEL, PINS)
    assert found.match is Match.FOUND
    assert found.boots_of(RATE.name) == (Boot(boot_id="1", value=100, fresh=False),)
    assert found.boots_of("never-measured") == ()


def test_nothing_recorded_is_missing(tmp_path: Path):
    found = find_baseline(tmp_path, HOST, MODEL, PINS)
    assert found.match is Match.MISSING
    assert MODEL in found.message
    assert found.best_of(RATE.name) is None


def test_other_pins_make_it_stale_and_are_named_but_the_best_ever_still_holds(tmp_path: Path):
    _record(tmp_path, 100)
    found = find_baseline(tmp_path, HOST, MODEL, PINS | {"driver": "590.1", "kernel": "6.8"})
    assert found.match is Match.STALE
    assert "stale" in found.message
    assert found.differences == (
        "driver: baseline 580.95, this run 590.1",
        "kernel: baseline has none, this run 6.8",
    )
    assert found.boots_of(RATE.name) == ()
    assert found.best_of(RATE.name) == 100


def test_a_pin_that_vanished_is_a_difference_too():
    assert pin_differences({"a": "1"}, {}) == ("a: baseline 1, this run has none",)
    assert pin_differences({"a": "1"}, {"a": "1"}) == ()


def test_the_best_ever_survives_a_worse_recording_for_both_directions(tmp_path: Path):
    _record(tmp_path, 100, 10)
    path = _record(tmp_path, 90, 12, pins={"client": "new"})
    stored = Baseline.model_validate_json(path.read_bytes())
    assert (stored.best_of(RATE.name), stored.best_of(TIME.name)) == (100, 10)
    _record(tmp_path, 110, 9)
    stored = Baseline.model_validate_json(path.read_bytes())
    assert (stored.best_of(RATE.name), stored.best_of(TIME.name)) == (110, 9)


@pytest.mark.parametrize(
    "host", [HOST.model_copy(update={"gpus": HOST.gpus[:4]}), HOST.model_copy(update={"topology": "phb"})]
)
def test_another_host_has_another_file(tmp_path: Path, host: HostFingerprint):
    _record(tmp_path, 100)
    assert find_baseline(tmp_path, host, MODEL, PINS).match is Match.MISSING


def test_models_whose_names_look_alike_do_not_share_a_file(tmp_path: Path):
    assert baseline_path(tmp_path, HOST, "a/b-c") != baseline_path(tmp_path, HOST, "a/b.c")


def test_a_baseline_under_the_wrong_name_is_refused(tmp_path: Path):
    path = _record(tmp_path, 100)
    path.rename(baseline_path(tmp_path, HOST, "other"))
    with pytest.raises(InputError, match="another host or model"):
        find_baseline(tmp_path, HOST, "other", PINS)


@pytest.mark.parametrize("content", ["", "{}", "not json"])
def test_a_damaged_file_is_one_clear_message(tmp_path: Path, content: str):
    path = _record(tmp_path, 100)
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match="not a usable baseline") as caught:
        find_baseline(tmp_path, HOST, MODEL, PINS)
    assert str(path) in caught.value.where


def test_a_field_from_the_future_is_not_ignored(tmp_path: Path):
    path = _record(tmp_path, 100)
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(document | {"surprise": 1}), encoding="utf-8")
    with pytest.raises(InputError, match="not permitted"):
        find_baseline(tmp_path, HOST, MODEL, PINS)


def test_a_boot_that_produced_nothing_cannot_become_a_baseline(tmp_path: Path):
    with pytest.raises(InputError, match="of 0"):
        _record(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []
