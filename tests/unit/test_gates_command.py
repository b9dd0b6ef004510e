"""The command `gates` on small made-up packages; no package index is asked."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tooling import console
from tooling.archgates.kept import cache_folder
from tooling.archgates.scan import rules
from tooling.archgates.wheels import unpacked_with_parts
from tooling.cli import app
from tooling.errors import CheckError, InputError

OLD = "def admits(major):\n    return major in (9, 10)\n"
NEW = "def admits(major):\n    return major in (9, 10, 12)\n\n\ndef other(major):\n    return major >= 10\n"
STACK = """\
name: mine
description: a stack for these tests
platform: {glibc: "2.36", python: "3.11"}
engine: {name: sglang, package: sglang, version: 9.9.9}
base: {bootstrap: {suite: bookworm, packages: [python3.11]}}
lock:
  requirements: [torch==2.9.1+cu130, "flashinfer-python>=0.6"]
  indexes: [{name: torch-cu130, holds: builds of torch for CUDA 13.0}]
layers: [{name: all}]
serve: {command: [python], port: 8000}
budget: {build_disk_gb: 1}
"""


def _install(root: Path, package: str, version: str, files: dict[str, str], requires: str = "") -> Path:
    info = root / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n{requires}")
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds sglang 9.9.8 and 9.9.9, and a checkout with a stack that has no lock."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("BLACKWELL_STACKS_ROOT", str(tmp_path / "checkout"))
    monkeypatch.delenv("BLACKWELL_STACKS_INDEX_TORCH_CU130", raising=False)
    (tmp_path / "checkout" / "images").mkdir(parents=True)
    (tmp_path / "checkout" / "stacks").mkdir()
    (tmp_path / "checkout" / "stacks" / "mine.yaml").write_text(STACK)
    folder = tmp_path / "cache" / "blackwell-stacks" / "wheels"
    _install(folder / "sglang-9.9.8", "sglang", "9.9.8", {"sglang/a.py": OLD})
    _install(folder / "sglang-9.9.9", "sglang", "9.9.9", {"sglang/a.py": NEW})
    return folder


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.out, "width", 220)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["gates", *arguments])


def _data(*arguments: str) -> Any:
    done = _run(*arguments, "--json")
    assert done.exit_code == 0, done.exception
    return json.loads(done.stdout)


def test_a_folder_gives_a_table_with_counts_by_polarity(tmp_path: Path):
    root = _install(tmp_path, "sglang", "9.9.9", {"sglang/a.py": NEW, "sglang/test/b.py": NEW})
    done = _run(str(root))
    assert done.exit_code == 0
    for words in ("capability-equality", "sglang/a.py:2", "unjudged", "tests do not run in an engine"):
        assert words in done.stdout
    assert "source-qualified: read in the packages, nothing was run" in done.stdout


def test_json_holds_every_gate_and_the_counts(tmp_path: Path):
    (scan,) = _data(str(_install(tmp_path, "sglang", "9.9.9", {"sglang/a.py": NEW})))
    assert (scan["package"], scan["version"], scan["files"]) == ("sglang", "9.9.9", 1)
    assert scan["status"] == "source-qualified"
    assert scan["polarities"] == {
        "closed": 0, "open": 0, "hardware": 0, "mishandled": 0, "right": 0, "unjudged": 2,
    }  # fmt: skip
    assert [(gate["hit"]["line"], gate["hit"]["sm120"]) for gate in scan["gates"]] == [(2, True), (6, True)]


def test_summary_lists_no_gate(tmp_path: Path):
    root = str(_install(tmp_path, "sglang", "9.9.9", {"sglang/a.py": NEW}))
    assert "return major" not in _run(root, "--summary").stdout
    assert "return major" in _run(root, "--unjudged").stdout


@pytest.mark.usefixtures("wheels")
def test_a_stack_without_a_lock_is_read_by_its_own_pins():
    done = _run("mine", "--summary")
    assert done.exit_code == 0, done.exception
    assert "sglang 9.9.9" in done.stdout
    assert "mine has no lock" in done.stderr
    assert "not read: torch 2.9.1+cu130" in done.stderr
    assert "BLACKWELL_STACKS_INDEX_TORCH_CU130=<address of a simple index with builds of torch" in done.stderr
    assert [scan["package"] for scan in _data("mine")] == ["sglang"]


def test_a_scan_is_kept_until_the_package_or_its_review_changes(wheels: Path):
    assert len(_data("sglang==9.9.9")[0]["gates"]) == 2
    (place,) = cache_folder().glob("sglang-9.9.9-*.json")
    (wheels / "sglang-9.9.9" / "sglang" / "a.py").unlink()
    assert len(_data("sglang==9.9.9")[0]["gates"]) == 2
    place.write_text("{}")
    with pytest.raises(CheckError, match="no source file of it was scanned"):
        CliRunner().invoke(app, ["gates", "sglang==9.9.9"], catch_exceptions=False)


def test_against_an_earlier_version_shows_what_is_new(wheels: Path):
    (found,) = _data("sglang==9.9.9", "--against", "sglang==9.9.8")
    assert (found["old"], found["new"]) == ("9.9.8", "9.9.9")
    assert [hit["code"] for hit in found["added"]] == ["return major in (9, 10, 12)", "return major >= 10"]
    assert [hit["code"] for hit in found["removed"]] == ["return major in (9, 10)"]
    text = _run("sglang==9.9.9", "--against", "sglang==9.9.8").stdout
    assert "2 new gates in 9.9.9 (since 9.9.8)" in text
    assert "1 gone gates" in text
    assert _data("mine", "--against", str(wheels / "sglang-9.9.8"))[0]["added"] == found["added"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no stack, no folder, and no package==version"),
        (["torch==2.9.1"], "has no package with scan rules"),
        (["mine", "--package", "torch"], "no scan rules for these packages"),
        (["mine", "--package", "triton"], "has no package with scan rules"),
        (["."], "no package with arch gates is installed there"),
    ],
)
def test_bad_input_is_one_message(
    wheels: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
):
    monkeypatch.chdir(wheels)
    done = _run(*arguments)
    assert isinstance(done.exception, InputError)
    assert message in done.exception.what
    assert done.exception.fix


def test_two_sides_without_a_common_package_are_refused(wheels: Path, tmp_path: Path):
    other = _install(tmp_path / "other", "tilelang", "1.0", {"tilelang/a.py": OLD})
    done = _run(str(other), "--against", str(wheels / "sglang-9.9.8"))
    assert isinstance(done.exception, InputError)


def test_parts_of_a_package_are_read_from_the_wheels_that_its_metadata_pins(tmp_path: Path):
    rule = next(rule for rule in rules().packages if rule.name == "nvidia-cutlass-dsl")
    base, core = rule.parts
    again = f"Requires-Dist: {core}==9.0\nRequires-Dist: {base}==9.0\n"
    pins = f"Requires-Dist: {base}==9.0\nRequires-Dist: other==1.0\nRequires-Dist: {core}==8.0; extra == 'x'\n"
    _install(tmp_path / "nvidia-cutlass-dsl-9.0", rule.name, "9.0", {}, pins)
    _install(tmp_path / f"{base}-9.0", base, "9.0", {}, again)
    _install(tmp_path / f"{core}-9.0", core, "9.0", {})
    found = unpacked_with_parts(rule, "9.0", tmp_path)
    assert [path.name for path in found] == ["nvidia-cutlass-dsl-9.0", f"{base}-9.0", f"{core}-9.0"]
