from pathlib import Path

import pytest

from tests.unit.patch_trees import OPEN, TILE, install, patch, write_series
from tooling.errors import CheckError, InputError
from tooling.patches.errors import PatchError
from tooling.patches.overlay import reader
from tooling.patches.record import record_series, write_record
from tooling.patches.series import (
    SERIES_DIR,
    Selection,
    Series,
    load_series,
    parse_header,
    plan_for,
    switched,
)
from tooling.patches.wheels import check_as_shipped


@pytest.fixture
def series_dir(tmp_path: Path) -> Path:
    return write_series(
        tmp_path / "series",
        p0001_open=patch("opens", OPEN),
        p0002_tile=patch("small tile", TILE, Default="off"),
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return install(tmp_path / "tree")


def _recorded(series_dir: Path, tree: Path) -> Series:
    record = record_series(load_series("engine-1.0", series_dir), reader(tree))
    write_record(record, series_dir / "engine-1.0" / "series.yaml")
    return load_series("engine-1.0", series_dir)


def test_a_header_is_read_field_by_field():
    header = parse_header("0001-x", patch("opens", OPEN, Bug="issue 1", Default="Off"))
    assert (header.title, header.bug, header.default) == ("opens", "issue 1", "off")
    assert header.last_update.isoformat() == "2026-11-29"


def test_a_field_may_go_on_in_further_lines():
    text = patch("opens", OPEN).replace("Origin: vendor\n", "Origin: vendor,\n after reading\n .\n the code\n")
    assert parse_header("0001-x", text).origin == "vendor,\nafter reading\n.\nthe code"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Evidence: read in the wheel\n", "", "Evidence: Field required"),
        ("Evidence:", "Evidense:", "Evidense: Extra inputs"),
        ("Last-Update: 2026-11-29", "Last-Update: yesterday", "Last-Update"),
        ("Origin: vendor\n", "Origin: vendor\nOrigin: upstream\n", "Origin: given twice"),
        ("Origin: vendor\n", "Origin: vendor\nDefault: maybe\n", "Default"),
        ("Gate: engine/gate.py opens\n", "Gate:\n", "Gate: String should have at least 1"),
    ],
)
def test_a_header_that_is_not_as_it_must_be_is_refused(old: str, new: str, said: str):
    text = patch("opens", OPEN)
    assert old in text
    with pytest.raises(InputError, match="header of patch 0001-x") as caught:
        parse_header("0001-x", text.replace(old, new))
    assert any(said in line for line in caught.value.details)


def test_a_patch_follows_its_header_unless_the_stack_switches_it(series_dir: Path):
    series = load_series("engine-1.0", series_dir)
    assert switched(series) == {"0001-open": "on", "0002-tile": "off"}
    chosen = Selection(series="engine-1.0", enable=("0002",), disable=("0001-open",))
    assert switched(series, chosen) == {"0001-open": "off", "0002-tile": "on"}


@pytest.mark.parametrize(
    ("enable", "disable", "said"),
    [
        (("0009",), (), "no such patch"),
        (("0001",), ("0001-open",), "both enabled and disabled"),
        ((), ("0001",), "no patch of series engine-1.0 is on"),
    ],
)
def test_switches_that_say_nothing_sensible_are_refused(
    series_dir: Path, enable: tuple[str, ...], disable: tuple[str, ...], said: str
):
    series = load_series("engine-1.0", series_dir)
    with pytest.raises(InputError, match=said):
        switched(series, Selection(series="engine-1.0", enable=enable, disable=disable))


def test_every_selection_of_the_patches_of_a_file_is_recorded(series_dir: Path, tree: Path):
    series = _recorded(series_dir, tree)
    assert series.recorded is not None
    file = series.recorded.files["engine/gate.py"]
    assert set(file.patched) == {"0001", "0002", "0001+0002"}
    assert len({file.upstream, *file.patched.values()}) == 4
    plans = [
        plan_for(series),
        plan_for(series, Selection(series="engine-1.0", enable=("0002",))),
        plan_for(series, Selection(series="engine-1.0", enable=("0002",), disable=("0001",))),
    ]
    assert [len(plan.patches) for plan in plans] == [1, 2, 1]
    assert len({plan.tree for plan in plans}) == 3
    assert plans[0].tree == series.recorded.tree


def test_a_record_is_written_once_and_keeps_its_notes(series_dir: Path, tree: Path):
    series = _recorded(series_dir, tree)
    path = series_dir / "engine-1.0" / "series.yaml"
    path.write_text(path.read_text().replace("notes: []", "notes:\n- S7 is left out"))
    again = load_series("engine-1.0", series_dir)
    record = record_series(again, reader(tree))
    assert record.notes == ("S7 is left out",)
    write_record(record, path)
    assert not write_record(record, path)
    assert series.recorded is not None
    assert record.files == series.recorded.files


def test_nothing_is_planned_without_a_record(series_dir: Path):
    with pytest.raises(InputError, match="no recorded hashes"):
        plan_for(load_series("engine-1.0", series_dir))


def test_a_patch_that_fits_in_no_selection_cannot_be_recorded(series_dir: Path, tree: Path):
    wrong = TILE.replace("@@ -9,5 +9,7 @@", "@@ -5,5 +5,7 @@")
    write_series(series_dir, p0002_tile=patch("small tile", wrong, Default="off"))
    with pytest.raises(PatchError, match="stand at line 9"):
        record_series(load_series("engine-1.0", series_dir), reader(tree))


def test_hashes_are_recorded_from_files_as_they_were_shipped(tree: Path):
    check_as_shipped(tree, "engine", ["engine/gate.py"])
    (tree / "engine/gate.py").write_text("edited")
    with pytest.raises(CheckError, match="not as the package ships them"):
        check_as_shipped(tree, "engine", ["engine/gate.py"])


@pytest.mark.parametrize(
    ("name", "said"), [("engine-9", "no patch series"), ("../engine-1.0", "no patch series"), ("x", "no patch")]
)
def test_a_series_that_is_not_there_is_said_so(series_dir: Path, name: str, said: str):
    with pytest.raises(InputError, match=said):
        load_series(name, series_dir)


def test_a_stray_file_in_a_series_is_not_skipped(series_dir: Path):
    (series_dir / "engine-1.0" / "0003-late.patch.orig").write_text("x")
    with pytest.raises(InputError, match="not a patch name"):
        load_series("engine-1.0", series_dir)


def test_a_series_without_patches_is_refused(tmp_path: Path):
    (tmp_path / "engine-1.0").mkdir()
    with pytest.raises(InputError, match="holds no patch"):
        load_series("engine-1.0", tmp_path)


OURS = sorted(path.name for path in SERIES_DIR.glob("*") if path.is_dir())


def test_the_project_has_series():
    assert OURS


@pytest.mark.parametrize("name", OURS)
def test_our_own_series_are_readable_recorded_and_planned(name: str):
    series = load_series(name)
    plan = plan_for(series)
    assert series.recorded is not None
    assert plan.tree == series.recorded.tree
    everything = Selection(series=name, enable=tuple(patch.name for patch in series.patches))
    assert len(plan_for(series, everything).patches) == len(series.patches)
