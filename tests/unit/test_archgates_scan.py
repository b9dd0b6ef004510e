from pathlib import Path

import pytest

from tooling.archgates.compare import diff
from tooling.archgates.judge import JUDGED_DIR, Review, judge, load_review
from tooling.archgates.records import Judgement, Judgements, Polarity
from tooling.archgates.scan import PackageRule, Rules, SkipRule, rules, scan_tree
from tooling.errors import CheckError, InputError
from tooling.patches.series import load_series

RULES = Rules(
    packages=(PackageRule(name="engine", roots=("engine",)),),
    skip=(SkipRule(glob="*/vendored", reason="not ours"),),
    skip_files=(SkipRule(glob="*_generated_*", reason="generated"),),
)
GATES = "def admits(major):\n    return major in (9, 10)\n\n\ndef other(major):\n    return major >= 10\n"


def _tree(root: Path, files: dict[str, str], version: str = "1.0") -> Path:
    (root / f"engine-{version}.dist-info").mkdir(parents=True)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_gates_are_listed_and_nobody_guesses_what_they_mean(tmp_path: Path):
    (scan,) = scan_tree(
        _tree(tmp_path, {"engine/a.py": GATES, "engine/k.cu": "#if __CUDA_ARCH__ < 1200\n"}), (), RULES
    )
    assert (scan.package, scan.version, scan.files) == ("engine", "1.0", 2)
    assert [gate.hit.line for gate in scan.gates] == [2, 6, 1]
    assert {gate.polarity for gate in scan.gates} == {Polarity.UNJUDGED}


def test_what_is_skipped_is_listed_with_its_reason(tmp_path: Path):
    files = {
        "engine/a.py": GATES,
        "engine/vendored/b.py": GATES,
        "engine/k_generated_1.cu": "#if __CUDA_ARCH__ < 1200",
    }
    (scan,) = scan_tree(_tree(tmp_path, files), (), RULES)
    assert [(one.path, one.files, one.reason) for one in scan.skipped] == [
        ("engine/vendored", 1, "not ours"),
        ("engine/*", 1, "generated"),
    ]
    assert scan.files == 1


def test_no_file_and_no_gate_are_failures(tmp_path: Path):
    with pytest.raises(CheckError, match="no source file"):
        scan_tree(_tree(tmp_path / "empty", {"engine/data.bin": ""}), (), RULES)
    with pytest.raises(CheckError, match="no arch gate was found in 1 files"):
        scan_tree(_tree(tmp_path / "none", {"engine/a.py": "x = 1\n"}), (), RULES)
    with pytest.raises(InputError, match="no package with arch gates"):
        scan_tree(tmp_path / "none" / "engine", (), RULES)


def test_a_file_that_cannot_be_parsed_is_listed(tmp_path: Path):
    files = {"engine/a.py": GATES, "engine/template.py": "def {{ name }}(:\n    major >= 10\n"}
    (scan,) = scan_tree(_tree(tmp_path, files), (), RULES)
    assert scan.unreadable[0].startswith("engine/template.py: ")


def _judgements(**changes: object) -> Review:
    fields = {
        "id": "F1",
        "path": "engine/a.py",
        "symbol": "admits",
        "polarity": "closed",
        "note": "why",
        **changes,
    }
    judged = (Judgement.model_validate(fields),)
    return Review(judgements=Judgements(package="engine", version="1.0", judged=judged))


def test_a_judgement_covers_the_gate_it_names(tmp_path: Path):
    (scan,) = scan_tree(_tree(tmp_path, {"engine/a.py": GATES}), (), RULES)
    hits = [gate.hit for gate in scan.gates]
    judged = judge(hits, _judgements())
    assert [(gate.polarity, gate.id) for gate in judged] == [(Polarity.CLOSED, "F1"), (Polarity.UNJUDGED, "")]


@pytest.mark.parametrize("changes", [{"symbol": "gone"}, {"hits": 2}, {"symbol": ""}])
def test_a_judgement_of_other_code_is_a_failure(tmp_path: Path, changes: dict[str, object]):
    (scan,) = scan_tree(_tree(tmp_path, {"engine/a.py": GATES}), (), RULES)
    with pytest.raises(CheckError, match="do not match its code"):
        judge([gate.hit for gate in scan.gates], _judgements(**changes))


def test_two_versions_differ_in_what_is_new_and_not_in_what_moved(tmp_path: Path):
    new = "import os\n" + GATES.replace("(9, 10)", "(9, 10, 12)")
    (old_scan,) = scan_tree(_tree(tmp_path / "old", {"engine/a.py": GATES}), (), RULES)
    (new_scan,) = scan_tree(_tree(tmp_path / "new", {"engine/a.py": new}, "1.1"), (), RULES)
    found = diff(old_scan, new_scan)
    assert [hit.code for hit in found.added] == ["return major in (9, 10, 12)"]
    assert [hit.code for hit in found.removed] == ["return major in (9, 10)"]
    assert (found.old, found.new, found.moved) == ("1.0", "1.1", 1)


REVIEWED = sorted(path.stem for path in JUDGED_DIR.glob("*.yaml"))


def test_gates_were_reviewed():
    assert len(REVIEWED) >= 5


@pytest.mark.parametrize("name", REVIEWED)
def test_reviews_are_readable_and_name_patches_that_exist(name: str):
    package, _, version = name.rpartition("-")
    found = load_review(package, version)
    assert found is not None
    assert package in {rule.name for rule in rules().packages}
    for one in found.judgements.judged:
        if one.patch:
            series, _, number = one.patch.rpartition("/")
            assert number in {patch.name[:4] for patch in load_series(series).patches}
        # A patch may close a gate that is wrongly open; it may never open one that the hardware cannot pass.
        assert not (one.patch and one.polarity is Polarity.HARDWARE and "multimem" not in one.note)
