from pathlib import Path

import pytest

from tests.unit.patch_trees import GATE, OPEN, TILE, install, patch, write_series
from tooling.errors import InputError
from tooling.patches.overlay import reader
from tooling.patches.record import record_series, write_record
from tooling.patches.series import Selection, Series, load_series
from tooling.patches.state import State, series_state


@pytest.fixture
def series(tmp_path: Path) -> Series:
    folder = write_series(tmp_path / "series", p0001_open=patch("opens", OPEN), p0002_tile=patch("tile", TILE))
    pristine = install(tmp_path / "pristine")
    write_record(
        record_series(load_series("engine-1.0", folder), reader(pristine)), folder / "engine-1.0/series.yaml"
    )
    return load_series("engine-1.0", folder)


def _states(series: Series, root: Path, version: str, selection: Selection | None = None) -> list[State]:
    found = series_state(series, version, reader(root), selection)
    return [patch.state for patch in found.patches]


def test_a_pristine_tree_is_to_be_patched(series: Series, tmp_path: Path):
    state = series_state(series, "1.0", reader(install(tmp_path / "tree")))
    assert [patch.state for patch in state.patches] == [State.APPLIES, State.APPLIES]
    assert state.usable


def test_an_installed_image_is_patched_already(series: Series, tmp_path: Path):
    gate = GATE.replace("(9, 10)", "(9, 10, 12)")
    assert _states(series, install(tmp_path / "tree", gate=gate), "1.0") == [State.APPLIED, State.APPLIES]


def test_what_a_newer_version_has_is_to_be_dropped(series: Series, tmp_path: Path):
    gate = "# new\n" + GATE.replace("(9, 10)", "(9, 10, 12)")
    assert _states(series, install(tmp_path / "tree", "1.1", gate), "1.1") == [State.UPSTREAM, State.MOVED]


def test_what_a_newer_version_rewrote_conflicts(series: Series, tmp_path: Path):
    gate = GATE.replace("return major in (9, 10)", "return supported(major)")
    state = series_state(series, "1.1", reader(install(tmp_path / "tree", "1.1", gate)))
    assert [patch.state for patch in state.patches] == [State.CONFLICT, State.APPLIES]
    assert "engine/gate.py hunk 1 (line 5): conflict" in state.patches[0].details
    assert not state.usable


def test_a_patch_that_is_off_does_not_make_a_tree_unusable(series: Series, tmp_path: Path):
    gate = GATE.replace("return major in (9, 10)", "return supported(major)")
    root = install(tmp_path / "tree", gate=gate)
    selection = Selection(series="engine-1.0", disable=("0001",))
    assert series_state(series, "1.0", reader(root), selection).usable


def test_a_file_that_upstream_removed_is_named(series: Series, tmp_path: Path):
    (install(tmp_path / "tree", "1.1") / "engine/gate.py").unlink()
    (tmp_path / "tree/engine/other.py").write_text("")
    with pytest.raises(InputError, match=r"no file that series engine-1.0 patches"):
        _states(series, tmp_path / "tree", "1.1")


def test_the_header_says_when_a_patch_goes(series: Series, tmp_path: Path):
    root = install(tmp_path / "tree", "2.0", GATE.replace("return major in (9, 10)", "return supported(major)"))
    state = series_state(series, "2.0", reader(root))
    assert [patch.state for patch in state.patches] == [State.UPSTREAM, State.UPSTREAM]
    assert state.patches[0].details[0] == "Drop-When: engine>=2.0"
