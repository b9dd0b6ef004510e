"""Pruning a tree: what is done, skipped, refused and reported, by the command and the build's script."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from tests.unit.prune_samples import CONTAINERS, Code, build_library, container
from tooling.census.architecture import parse_architecture, runs_on
from tooling.census.records import Service
from tooling.census.take import census
from tooling.cli import app
from tooling.errors import CheckError, InputError
from tooling.prune.inplace import main
from tooling.prune.records import PruneReport, PruneRules, load_prune_rules
from tooling.prune.run import build_input, check_whole, package_files, prune_tree
from tooling.records import sha256_of_file

DATA = Path(__file__).parents[1] / "data" / "census"
SCRIPT = Path(__file__).parents[2] / "images" / "prune" / "prune.py"
NO_RULES = PruneRules()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A shared library with code for others, one with nothing else, and what must not be touched."""
    root = tmp_path / "tree"
    (root / "lib").mkdir(parents=True)
    build_library(root / "lib")
    build_library(root, ((Code(90, 100_000),),), name="hopper.so")
    for name in ("static.a", "embedded.so", "host_only.so", "several.fatbin", "adds_120f.cubin"):
        shutil.copy(DATA / name, root / "lib" / name)
    (root / "lib" / "damaged.so").write_bytes(b"\x7fELF and no more")
    (root / "link.so").symlink_to("lib/libsample.so")
    return root


def contents(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): sha256_of_file(path)
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def test_report_says_of_every_file_what_became_of_it(tree: Path):
    before = contents(tree)
    told: list[str] = []
    report = prune_tree(tree, ["sm_120"], NO_RULES, progress=told.append)
    after = contents(tree)
    status = {file.path: (file.status, file.how) for file in report.files}
    assert status == {
        "hopper.so": ("pruned", "shrunk"),
        "lib/adds_120f.cubin": ("unchanged", ""),
        "lib/embedded.so": ("unchanged", ""),
        "lib/libsample.so": ("pruned", "shrunk"),
        "lib/several.fatbin": ("skipped", ""),
        "lib/static.a": ("skipped", ""),
    }
    changed = {path for path in before if before[path] != after[path]}
    assert changed == {"hopper.so", "lib/libsample.so"}
    assert (tree / "link.so").is_symlink()
    for file in report.with_status("pruned"):
        assert (file.sha256_before, file.sha256_after) == (before[file.path], after[file.path])
        assert file.bytes_after == (tree / file.path).stat().st_size < file.bytes_before
    sample = next(file for file in report.files if file.path == "lib/libsample.so")
    assert sample.targets_removed == ("ptx 12.1", "sass 10.0", "sass 7.5", "sass 8.0", "sass 9.0", "sass 9.0a")
    assert (sample.entries_removed, sample.containers_emptied, sample.bytes_kept) == (7, 1, 78_000)
    assert sample.bytes_foreign_left == 0
    assert "archive" in next(file.reason for file in report.files if file.path == "lib/static.a")
    assert [file.path for file in report.unread] == ["lib/damaged.so"]
    assert report.totals["pruned"] == 2
    assert report.totals["bytes_after"] == sum(file.bytes_after for file in report.files)
    assert len(told) == 2


def test_census_for_the_target_is_the_same_and_others_are_gone(tree: Path):
    def served(device: str) -> dict[str, tuple[Service, int, int]]:
        coverages = {
            library.path: library.coverage(parse_architecture(device)) for library in census(tree).libraries
        }
        return {path: (c.service, c.sass_entries, c.ptx_entries) for path, c in coverages.items()}

    before = served("12.0")
    prune_tree(tree, ["12.0"], NO_RULES)
    assert served("12.0") == before
    assert before["lib/libsample.so"] == (Service.SASS, 2, 1)
    assert served("8.0")["lib/libsample.so"] == (Service.NONE, 0, 0)
    assert served("9.0")["hopper.so"] == (Service.NONE, 0, 0)


def test_second_run_changes_nothing_and_says_so(tree: Path, tmp_path: Path):
    place = tmp_path / "pruned.json"
    prune_tree(tree, ["12.0"], NO_RULES, place)
    before, report = contents(tree), place.read_bytes()
    with pytest.raises(CheckError, match=r"nothing was pruned \(2 of 6 .* earlier run\): 2 were skipped"):
        prune_tree(tree, ["12.0"], NO_RULES, place)
    for name in ("static.a", "several.fatbin"):
        (tree / "lib" / name).unlink()
    with pytest.raises(CheckError, match=r"earlier run\): .* none any more, that none of 12\.0 can run"):
        prune_tree(tree, ["12.0"], NO_RULES, place)
    left = contents(tree)
    assert left == {path: before[path] for path in left}
    assert place.read_bytes() == report


def test_the_report_goes_on_from_what_the_wheel_had(tree: Path, tmp_path: Path):
    place, wheel = tmp_path / "pruned.json", contents(tree)
    prune_tree(tree, ["12.0", "9.0"], NO_RULES, place)
    report = prune_tree(tree, ["12.0"], NO_RULES, place)
    now = contents(tree)
    assert all(report.accepts(path, wheel[path], now[path]) for path in wheel)
    sample = next(file for file in report.files if file.path == "lib/libsample.so")
    assert sample.entries_removed == 7
    assert not report.accepts("hopper.so", wheel["hopper.so"], "0" * 64)
    assert not report.accepts("hopper.so", "0" * 64, now["hopper.so"])
    assert not report.accepts("lib/static.a", wheel["lib/static.a"], "0" * 64)


def test_rules_delete_skip_and_zero_embedded_code(tree: Path):
    before = (tree / "lib" / "embedded.so").read_bytes()
    rules = PruneRules(
        delete={"hopper.so": "wgmma code"},
        skip={"lib/several.fatbin": "loaded by its size"},
        embedded={"lib/embedded.so": "its table was tried without"},
    )
    report = prune_tree(tree, ["10.0"], rules)
    status = {file.path: file.status for file in report.files}
    assert status["hopper.so"] == "deleted"
    assert not (tree / "hopper.so").exists()
    assert status["lib/several.fatbin"] == "skipped"
    embedded = next(file for file in report.files if file.path == "lib/embedded.so")
    after = (tree / "lib" / "embedded.so").read_bytes()
    assert (embedded.status, embedded.how, embedded.bytes_foreign_left) == ("pruned", "zeroed", 0)
    assert embedded.bytes_zeroed == embedded.bytes_removed > 0
    assert len(after) == len(before)
    assert all(new in (old, 0) for old, new in zip(before, after, strict=True))
    assert b"a table of its own" in after


def test_embedded_code_is_left_and_counted(tree: Path):
    report = prune_tree(tree, ["10.0"], NO_RULES)
    embedded = next(file for file in report.files if file.path == "lib/embedded.so")
    assert (embedded.status, embedded.bytes_removed) == ("unchanged", 0)
    assert embedded.bytes_foreign_left > 0


def test_ptx_goes_only_where_a_rule_says_so_and_machine_code_serves(tree: Path):
    rules = PruneRules(drop_ptx={"lib/libsample.so": "the stack has no other target"})
    report = prune_tree(tree, ["12.0"], rules)
    sample = next(file for file in report.files if file.path == "lib/libsample.so")
    assert "ptx 9.0" in sample.targets_removed
    coverage = next(
        library.coverage(parse_architecture("12.0"))
        for library in census(tree).libraries
        if library.path == sample.path
    )
    assert (coverage.sass_entries, coverage.ptx_entries) == (2, 0)


def test_ptx_stays_where_a_second_target_needs_it(tree: Path):
    rules = PruneRules(drop_ptx={"lib/libsample.so": "wrong here"})
    report = prune_tree(tree, ["12.0", "11.0"], rules)
    sample = next(file for file in report.files if file.path == "lib/libsample.so")
    assert "ptx 9.0" not in sample.targets_removed


def test_a_library_that_the_target_needs_is_never_deleted(tree: Path):
    before = contents(tree)
    with pytest.raises(CheckError, match=r"lib/embedded\.so is to be deleted, but has code"):
        prune_tree(tree, ["12.0"], PruneRules(delete={"*.so": "all of them"}))
    assert contents(tree) == before


@pytest.mark.parametrize("field", ["delete", "skip", "embedded", "drop_ptx"])
def test_a_rule_without_a_file_is_an_error(tree: Path, field: str):
    before = contents(tree)
    with pytest.raises(CheckError, match=rf"{field} 'gone\.so' matches no file"):
        prune_tree(tree, ["12.0"], PruneRules.model_validate({field: {"gone.so": "was there once"}}))
    assert contents(tree) == before


def test_a_tree_without_device_code_is_a_failure(tmp_path: Path):
    (tmp_path / "readme.txt").write_text("nothing")
    with pytest.raises(CheckError, match="no file with device code was found"):
        prune_tree(tmp_path, ["12.0"], NO_RULES)


@pytest.mark.parametrize(("targets", "message"), [([], "no target"), (["blackwell"], "is not a GPU arch")])
def test_targets_are_checked(tree: Path, targets: list[str], message: str):
    with pytest.raises(InputError, match=message):
        prune_tree(tree, targets, NO_RULES)


def test_the_build_script_needs_nothing_but_python_and_repeats_itself(tree: Path, tmp_path: Path):
    place = tmp_path / "run" / "build"
    for path, content in {**package_files(), "prune.py": SCRIPT.read_bytes()}.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)
    (place / "policy.json").write_bytes(build_input(["sm_120"], NO_RULES))
    copy = tmp_path / "copy"
    shutil.copytree(tree, copy, symlinks=True)

    def build(root: Path, report: Path) -> Any:
        command = [sys.executable, "-I", "-S", "-B", "-W", "error", str(place / "prune.py")]
        command += [str(place / "policy.json"), str(root), str(report)]
        subprocess.run(command, check=True, env={"EPOCH": "1700000000"}, capture_output=True)
        assert report.stat().st_mtime == 1700000000
        return json.loads(report.read_bytes())

    first = build(tree, tmp_path / "share" / "pruned.json")
    assert PruneReport.model_validate(first).totals["pruned"] == 2
    second = build(copy, tmp_path / "share" / "second.json")
    assert contents(copy) == contents(tree)
    assert {**second, "root": first["root"]} == first
    # The next layer brings nothing to prune; what the layers before did stays in the report.
    (tree / "next.txt").write_text("a layer of text")
    third = PruneReport.model_validate(build(tree, tmp_path / "share" / "pruned.json"))
    assert [file.sha256_after for file in third.files] == [file["sha256_after"] for file in first["files"]]
    assert all(file.earlier for file in third.with_status("pruned"))
    check_whole(third, NO_RULES)


def test_an_image_in_which_nothing_was_pruned_is_a_failure(tree: Path, capsys: pytest.CaptureFixture[str]):
    shutil.rmtree(tree / "lib")
    place = tree / "pruned.json"
    assert main(["--keep", "9.0", "--partial", "--report", str(place), str(tree)]) == 0
    report = PruneReport.model_validate_json(place.read_bytes())
    with pytest.raises(CheckError, match="nothing was pruned in the whole image"):
        check_whole(report, NO_RULES)
    assert main(["--keep", "9.0", str(tree)]) == 1
    assert "nothing was pruned" in capsys.readouterr().err


def test_a_rule_of_an_image_without_a_file_is_a_failure(tree: Path):
    report = prune_tree(tree, ["12.0"], NO_RULES)
    check_whole(report, PruneRules(skip={"several.fatbin": "there"}))
    with pytest.raises(CheckError, match=r"skip 'gone\.so' matches no file"):
        check_whole(report, PruneRules(skip={"gone.so": "not there"}))


def test_single_files_and_bad_arguments_of_the_module(tree: Path, capsys: pytest.CaptureFixture[str]):
    library = tree / "hopper.so"
    report = tree / "report.json"
    assert main(["--keep", "sm_120", "--report", str(report), str(library)]) == 0
    assert json.loads(report.read_text())["files"][0]["path"] == "hopper.so"
    assert main(["--keep", "sm_120", str(tree / "missing")]) == 1
    assert "missing does not exist" in capsys.readouterr().err
    assert main(["--keep", "blackwell", str(tree)]) == 1
    assert "'blackwell' is not a GPU architecture" in capsys.readouterr().err
    report.write_text("{}")
    assert main(["--keep", "sm_120", "--report", str(report), str(tree)]) == 1
    assert "not an earlier report" in capsys.readouterr().err


def test_command_prints_a_table_or_json_and_warns(tree: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(tree, copy, symlinks=True)
    runner = CliRunner()
    shown = runner.invoke(app, ["prune", str(copy), "--keep", "sm_120"])
    assert shown.exit_code == 0
    assert "6 files" in shown.stdout
    assert "shrunk" in shown.stdout
    assert "edited in place" in shown.stderr
    place = tmp_path / "pruned.json"
    answer = runner.invoke(app, ["prune", str(tree), "--keep", "sm_120", "--report", str(place), "--json"])
    assert answer.exit_code == 0
    assert PruneReport.model_validate_json(answer.stdout) == PruneReport.model_validate_json(place.read_bytes())
    again = runner.invoke(app, ["prune", str(tree), "--keep", "sm_120"])
    assert isinstance(again.exception, CheckError)


def test_rules_of_a_stack_need_reasons(tmp_path: Path):
    place = tmp_path / "rules.yaml"
    place.write_text('delete: {"a.so": "no code for the target"}\n')
    assert load_prune_rules(place).delete == {"a.so": "no code for the target"}
    for text in ('delete: {"a.so": ""}', 'skip: {"*": "all"}', "remove: {}", "delete: [", "- a"):
        place.write_text(text)
        with pytest.raises(InputError, match="prune rules"):
            load_prune_rules(place)
    with pytest.raises(InputError, match="cannot be read"):
        load_prune_rules(tmp_path / "missing.yaml")


def test_a_report_that_contradicts_itself_is_refused(tree: Path):
    document = prune_tree(tree, ["12.0"], NO_RULES).model_dump(mode="json")
    document["files"][0]["sha256_after"] = ""
    with pytest.raises(ValidationError, match="hashes do not fit"):
        PruneReport.model_validate(document)


def test_what_stays_is_what_the_one_table_says(tmp_path: Path):
    """Every kind of code for every pair of target and architecture, held against the census's own rule."""
    made = tuple(
        Code(arch, 8, kind, flags)
        for arch in (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
        for kind in (1, 2)
        for flags in (0, 1 << 20, 1 << 21)
    )
    original = build_library(tmp_path, (made,))
    for target in ("8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"):
        folder = tmp_path / target
        folder.mkdir()
        library = folder / shutil.copy(original, folder)
        (before,) = census(folder).libraries
        prune_tree(folder, [target], NO_RULES)
        (after,) = census(folder).libraries
        device = parse_architecture(target)
        expected = {
            (item.kind, item.arch)
            for item in before.targets
            if runs_on(item.kind, parse_architecture(item.arch), device)
        }
        assert {(item.kind, item.arch) for item in after.targets} == expected
        assert 0 < len(expected) < len(before.targets)
        assert container((made[0],)) not in library.read_bytes() or ("ptx", "7.5") in expected


def test_default_sample_has_something_to_keep_and_to_remove():
    kept = [code for codes in CONTAINERS for code in codes if code.arch == 120]
    assert 0 < len(kept) < sum(len(codes) for codes in CONTAINERS)
