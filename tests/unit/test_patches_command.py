"""The command `patches` on a small made-up package and series; no package index is asked."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.unit.patch_trees import GATE, OPEN, TILE, install, patch, write_series
from tooling.cli import app
from tooling.errors import CheckError, InputError
from tooling.patches.overlay import reader
from tooling.patches.record import record_series, write_record
from tooling.patches.series import load_series

STACK = """\
name: mine
description: a stack for these tests
platform: {glibc: "2.36", python: "3.11"}
engine: {name: none, package: engine, version: "1.0"}
base: {bootstrap: {suite: bookworm, packages: [python3.11]}}
layers: [{name: all}]
serve: {command: [python], port: 8000}
budget: {build_disk_gb: 1}
"""
APPLIED = GATE.replace("(9, 10)", "(9, 10, 12)")
CONFLICT = GATE.replace("return major in (9, 10)", "return major == 11")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with the package in two versions, a checkout with two stacks, and a series."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("BLACKWELL_STACKS_ROOT", str(tmp_path / "checkout"))
    stacks = tmp_path / "checkout" / "stacks"
    stacks.mkdir(parents=True)
    (tmp_path / "checkout" / "images").mkdir()
    (stacks / "mine.yaml").write_text(STACK + "patches: [{series: engine-1.0, enable: ['0002']}]\n")
    (stacks / "bare.yaml").write_text(STACK.replace("name: mine", "name: bare"))
    wheels = tmp_path / "cache" / "blackwell-stacks" / "wheels"
    install(wheels / "engine-1.0")
    install(wheels / "engine-2.0", "2.0", APPLIED)
    folder = write_series(
        tmp_path / "series",
        p0001_open=patch("opens", OPEN),
        p0002_tile=patch("tile", TILE, Default="off"),
    )
    record = record_series(load_series("engine-1.0", folder), reader(wheels / "engine-1.0"))
    write_record(record, folder / "engine-1.0" / "series.yaml")
    return tmp_path


def _run(place: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["patches", *arguments, "--series-dir", str(place / "series")])


def _data(place: Path, *arguments: str) -> Any:
    done = _run(place, *arguments, "--json")
    assert done.exit_code == 0, done.exception
    return json.loads(done.stdout)


def _states(found: Any) -> list[tuple[str, str, str]]:
    (series,) = found
    return [(one["patch"][:4], one["switch"], one["state"]) for one in series["patches"]]


def test_a_stack_gives_a_table_with_its_own_switches(place: Path):
    done = _run(place, "mine")
    assert done.exit_code == 0, done.exception
    assert "engine-1.0 against engine 1.0" in done.stdout
    assert "0001-open" in done.stdout
    assert "source-qualified: read in the package's own files, nothing was run" in done.stdout.replace(
        "\n", " "
    )
    assert _states(_data(place, "mine")) == [("0001", "on", "applies"), ("0002", "on", "applies")]


def test_a_series_by_its_own_name_has_the_default_switches(place: Path):
    found = _data(place, "engine-1.0")
    assert _states(found) == [("0001", "on", "applies"), ("0002", "off", "applies")]
    assert found[0]["status"] == "source-qualified"


@pytest.mark.parametrize("against", ["2.0", "engine==2.0"])
def test_against_another_version_says_what_to_drop(place: Path, against: str):
    found = _data(place, "mine", "--against", against)
    assert found[0]["against"] == "engine 2.0"
    assert _states(found)[0] == ("0001", "on", "already upstream")
    assert found[0]["patches"][0]["advice"] == "drop"
    assert found[0]["status"] == "untested"
    assert "drop" in _run(place, "mine", "--against", against).stdout


def test_an_installed_tree_that_fits_is_no_failure(place: Path):
    root = install(place / "tree", gate=APPLIED)
    assert _states(_data(place, "engine-1.0", "--root", str(root)))[0] == ("0001", "on", "applied")


def test_an_installed_tree_that_does_not_fit_is_a_failure_after_its_table(place: Path):
    done = _run(place, "mine", "--root", str(install(place / "tree", gate=CONFLICT)))
    assert isinstance(done.exception, CheckError)
    assert "neither apply nor are applied" in done.exception.what
    assert "conflicts" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "there is no patch series 'nothing'"),
        (["bare"], "stack bare uses no patch series"),
        (["mine", "--root", ".", "--against", "2.0"], "exclude each other"),
        (["mine", "--root", "."], "package engine is not installed"),
    ],
)
def test_bad_input_is_one_message(
    place: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
):
    monkeypatch.chdir(place)
    done = _run(place, *arguments)
    assert isinstance(done.exception, InputError)
    assert message in done.exception.what
    assert done.exception.fix


def test_a_version_alone_is_not_enough_for_two_packages(place: Path):
    stack = place / "checkout" / "stacks" / "mine.yaml"
    stack.write_text(STACK + "patches: [{series: engine-1.0}, {series: engine-1.0}]\n")
    done = _run(place, "mine", "--against", "2.0")
    assert isinstance(done.exception, InputError)
    assert "--against PACKAGE==VERSION" in done.exception.fix


def test_a_stack_that_cannot_be_read_names_the_field(place: Path):
    (place / "checkout" / "stacks" / "mine.yaml").write_text(STACK + "patches: [{serie: engine-1.0}]\n")
    done = _run(place, "mine")
    assert isinstance(done.exception, InputError)
    assert "serie" in done.exception.what
