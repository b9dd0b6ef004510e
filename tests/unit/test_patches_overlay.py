import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import unidiff

from tests.unit.patch_trees import GATE, OPEN, TILE, install, patch, write_series
from tooling.errors import CheckError, InputError
from tooling.patches import importing, overlay
from tooling.patches.errors import Fault, PatchError
from tooling.patches.overlay import Plan, changed_files, reader, run, run_all, tree_sha256, verify_receipt
from tooling.patches.record import record_series, write_record
from tooling.patches.series import SERIES_DIR, Selection, load_series, plan_for

ROOT = SERIES_DIR.parents[1]


def _plan(folder: Path, tree: Path, diff: str = OPEN, selection: Selection | None = None) -> Plan:
    series_dir = write_series(
        folder, p0001_open=patch("opens", diff), p0002_tile=patch("tile", TILE, Default="off")
    )
    record = record_series(load_series("engine-1.0", series_dir), reader(tree))
    write_record(record, series_dir / "engine-1.0" / "series.yaml")
    return plan_for(load_series("engine-1.0", series_dir), selection)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return install(tmp_path / "tree")


@pytest.fixture
def plan(tmp_path: Path, tree: Path) -> Plan:
    return _plan(tmp_path / "series", tree)


def _refused(plan: Plan, tree: Path, out: Path) -> PatchError:
    with pytest.raises(PatchError) as caught:
        run(plan, tree, out)
    assert not out.exists()
    return caught.value


def test_only_the_changed_file_is_written_and_the_tree_stays(plan: Plan, tree: Path, tmp_path: Path):
    receipt = run(plan, tree, tmp_path / "out")
    assert [str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*")] == [
        "engine/gate.py"
    ]
    assert (tmp_path / "out/engine/gate.py").read_text() == GATE.replace("(9, 10)", "(9, 10, 12)")
    assert (tree / "engine/gate.py").read_text() == GATE
    assert (receipt["applied"], receipt["off"]) == (["0001-open"], ["0002-tile"])
    assert receipt["tree"] == tree_sha256(receipt["files"])


def test_a_plan_survives_its_json(plan: Plan):
    assert Plan.from_json(plan.to_json()) == plan
    with pytest.raises(InputError, match="not a plan"):
        Plan.from_json("{}")


def test_the_case_of_an_applier_that_says_applied_and_changes_no_byte(plan: Plan, tree: Path, tmp_path: Path):
    """Upstream reworded the anchor; a text replacement finds nothing and still reports success."""
    install(tree, gate=GATE.replace("in (9, 10)", "in SUPPORTED"))
    error = _refused(plan, tree, tmp_path / "out")
    assert (error.fault, error.patch, error.file, error.hunk) == (
        Fault.CONFLICT,
        "0001-open",
        "engine/gate.py",
        1,
    )


def test_an_already_patched_tree_is_refused(plan: Plan, tree: Path, tmp_path: Path):
    install(tree, gate=GATE.replace("(9, 10)", "(9, 10, 12)"))
    assert _refused(plan, tree, tmp_path / "out").fault is Fault.ALREADY_APPLIED


def test_a_file_that_changed_far_from_the_hunk_is_refused(plan: Plan, tree: Path, tmp_path: Path):
    install(tree, gate=GATE.replace("return 64", "return 32"))
    assert _refused(plan, tree, tmp_path / "out").fault is Fault.UNEXPECTED_ORIGINAL


def test_a_patch_that_was_edited_after_it_was_recorded_is_refused(plan: Plan, tree: Path, tmp_path: Path):
    edited = replace(plan.patches[0], text=plan.patches[0].text.replace("10, 12)", "10, 11, 12)"))
    error = _refused(replace(plan, patches=(edited,)), tree, tmp_path / "out")
    assert (error.fault, error.patch, error.file) == (Fault.UNEXPECTED_RESULT, "0001-open", "engine/gate.py")


def test_a_tree_hash_other_than_the_recorded_one_is_refused(plan: Plan, tree: Path, tmp_path: Path):
    error = _refused(replace(plan, tree="0" * 64), tree, tmp_path / "out")
    assert error.fault is Fault.UNEXPECTED_RESULT


def test_a_plan_without_patches_is_no_success(plan: Plan, tree: Path):
    with pytest.raises(PatchError, match="holds no patch"):
        changed_files(replace(plan, patches=()), reader(tree))


def test_another_version_of_the_package_is_refused(plan: Plan, tree: Path, tmp_path: Path):
    (tree / "engine-1.0.dist-info").rename(tree / "engine-1.1.dist-info")
    error = _refused(plan, tree, tmp_path / "out")
    assert error.fault is Fault.OWNER
    assert error.details == ["found: engine-1.1"]


def test_a_file_that_a_second_package_claims_is_refused(plan: Plan, tree: Path, tmp_path: Path):
    info = tree / "engine_extra-3.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("engine/gate.py,sha256=x,1\n")
    error = _refused(plan, tree, tmp_path / "out")
    assert error.fault is Fault.OWNER
    assert error.details == ["engine/gate.py: engine-1.0, engine_extra-3"]


def test_a_link_that_leads_out_of_the_tree_is_not_read(plan: Plan, tree: Path, tmp_path: Path):
    outside = tmp_path / "outside.py"
    (tree / "engine/gate.py").rename(outside)
    (tree / "engine/gate.py").symlink_to(outside)
    assert _refused(plan, tree, tmp_path / "out").fault is Fault.FILE_MISSING


def test_a_result_that_does_not_compile_is_refused(tree: Path, tmp_path: Path):
    plan = _plan(tmp_path / "series", tree, OPEN.replace("(9, 10, 12)", "(9, 10, 12"))
    with pytest.raises(PatchError) as caught:
        run(plan, tree, tmp_path / "out")
    assert (caught.value.fault, caught.value.file) == (Fault.UNUSABLE_RESULT, "engine/gate.py")


def test_a_result_that_can_no_longer_be_imported_is_refused(tree: Path, tmp_path: Path):
    broken = OPEN.replace("return major in (9, 10, 12)", "return major in (9, 10, 12)\nmissing_name")
    plan = _plan(
        tmp_path / "series", tree, broken.replace("-5,4 +5,4", "-5,4 +5,5").replace("\nmissing", "\n+missing")
    )
    with pytest.raises(PatchError, match=r"no longer after the patch"):
        run(plan, tree, tmp_path / "out", import_check=True)


def test_a_module_that_this_machine_cannot_import_anyway_is_a_limitation(
    plan: Plan, tree: Path, tmp_path: Path
):
    receipt = run(plan, tree, tmp_path / "out", import_check=True)
    assert receipt["not_importable"] == []
    (tree / "engine/__init__.py").write_text("import no_such_driver")
    receipt = run(plan, tree, tmp_path / "out2", import_check=True)
    assert receipt["not_importable"] == ["engine.gate"]


def test_imports_that_do_not_end_in_time_say_nothing_of_the_patch(
    plan: Plan, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(importing, "TIMEOUT_S", 0.5)
    (tree / "engine/__init__.py").write_text("import time\ntime.sleep(60)\n")
    with pytest.raises(CheckError, match=r"did not end within 0\.5 s") as caught:
        run(plan, tree, tmp_path / "out", import_check=True)
    assert not isinstance(caught.value, PatchError)


def test_an_importing_process_that_dies_is_named_with_its_code(plan: Plan, tree: Path, tmp_path: Path):
    (tree / "engine/__init__.py").write_text(
        "import os, sys\nprint('bad allocation', file=sys.stderr)\nos._exit(7)\n"
    )
    receipt = run(plan, tree, tmp_path / "out", import_check=True)
    assert receipt["not_importable"] == ["engine.gate"], "it dies without the patch as well"
    found = importing._failures(tree, {}, ["engine.gate"])
    assert found == {"engine.gate": "the importing process ended with code 7 and no answer: bad allocation"}


def test_a_stale_compiled_file_of_equal_size_and_time_does_not_win(tree: Path, tmp_path: Path):
    """Image builds set all times to one moment; the interpreter compares only time and size."""
    same_size = OPEN.replace("(9, 10, 12)", "(9, 12)")
    plan = _plan(tmp_path / "series", tree, same_size)
    gate = tree / "engine/gate.py"
    os.utime(gate, (1_000_000_000, 1_000_000_000))
    probe = [sys.executable, "-c", "import engine.gate as g; print(g.admits(12))"]
    environment = {"PYTHONPATH": str(tree), "PATH": os.environ["PATH"]}
    subprocess.run(probe, check=True, env=environment, capture_output=True)
    run(plan, tree, tmp_path / "out")
    shutil.copytree(tmp_path / "out", tree, dirs_exist_ok=True)
    os.utime(gate, (1_000_000_000, 1_000_000_000))
    done = subprocess.run(probe, check=True, env=environment, capture_output=True, text=True)
    assert done.stdout == "True\n"


def test_a_receipt_tells_an_installed_tree_from_a_changed_one(plan: Plan, tree: Path, tmp_path: Path):
    receipt = run(plan, tree, tmp_path / "out")
    assert verify_receipt(receipt, tmp_path / "out") == []
    assert verify_receipt(receipt, tree) == ["engine-1.0: engine/gate.py is not the patched file"]
    assert verify_receipt(receipt, tmp_path / "nowhere") == ["engine-1.0: engine/gate.py is missing"]
    assert verify_receipt({**receipt, "files": {}}, tree) != []


def test_two_series_over_one_file_are_refused(plan: Plan, tree: Path, tmp_path: Path):
    with pytest.raises(PatchError, match="change the same file"):
        run_all([plan, replace(plan, series="engine-too")], tree, tmp_path / "out")


def test_an_image_build_needs_only_the_named_files_and_unidiff(plan: Plan, tree: Path, tmp_path: Path):
    """What a build stage mounts, under an interpreter that sees no installed package."""
    mounted = tmp_path / "mounted"
    for name in overlay.RUNTIME_FILES:
        (mounted / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, mounted / name)
    shutil.copytree(Path(unidiff.__file__).parent, mounted / "unidiff")
    (tmp_path / "plan.json").write_text(plan.to_json())
    argv = [sys.executable, "-S", "-m", "tooling.patches.overlay", "--plan", str(tmp_path / "plan.json")]
    argv += [
        "--root",
        str(tree),
        "--out",
        str(tmp_path / "out"),
        "--receipt",
        str(tmp_path / "made/receipt.json"),
    ]
    argv += ["--import-check"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env={"PYTHONPATH": str(mounted)})
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json.loads((tmp_path / "made/receipt.json").read_text())
    install(tree, gate=GATE.replace("(9, 10)", "(9, 10, 12)"))
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env={"PYTHONPATH": str(mounted)})
    assert done.returncode == 1
    assert done.stderr.startswith("error: the hunk is already applied")
    assert "0001-open, engine/gate.py, hunk 1" in done.stderr
