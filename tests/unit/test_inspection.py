"""Each row of the inspection has a case in which it fails."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.patch_trees import GATE, OPEN, TILE, install, patch, write_series
from tooling.archgates.records import Hit, JudgedHit, PackageScan, Pattern, Polarity
from tooling.build.record import KernelReceipt, PatchReceipt
from tooling.errors import CheckError
from tooling.gates.records import Verdict
from tooling.inspection.inspect import (
    contents_checks,
    gate_check,
    patch_check,
    pruning_check,
    torch_checks,
    wrong_architecture,
)
from tooling.inspection.sources import take_back, unpack_files
from tooling.patches.overlay import Plan, reader, run, write_files
from tooling.patches.record import record_series, write_record
from tooling.patches.series import Selection, load_series, plan_for
from tooling.prune.inplace import totals
from tooling.prune.records import PruneReport, PruneRules
from tooling.stack.model import Kernels

CONTENTS = {
    "findings": [],
    "stale": [],
    "allowed": ["known"],
    "hashed_files": 3,
    "packages": [{"name": "torch", "version": "1"}],
    "torch": {"version": "1", "targets": ["sm_90", "sm_120"]},
}


@pytest.fixture
def tree(tmp_path):
    return install(tmp_path / "tree")


@pytest.fixture
def plan(tmp_path, tree):
    root = write_series(tmp_path / "series", p0001_open=patch("opens", OPEN), p0002_tile=patch("tile", TILE))
    record = record_series(load_series("engine-1.0", root), reader(tree))
    write_record(record, root / "engine-1.0" / "series.yaml")
    return lambda **switches: plan_for(
        load_series("engine-1.0", root), Selection(series="engine-1.0", **switches)
    )


def _receipt(plan: Plan, tree: Path, tmp_path: Path) -> PatchReceipt:
    return PatchReceipt.model_validate(run(plan, tree, tmp_path / "out"))


def _gates(*gates: JudgedHit) -> PackageScan:
    return PackageScan(package="engine", version="1.0", files=1, gates=gates, markers={}, skipped=())


def _gate(polarity=Polarity.UNJUDGED, handled_by="") -> JudgedHit:
    hit = Hit(path="engine/gate.py", line=7, pattern=Pattern.ARCH_LIST, symbol="admits", code="x")
    return JudgedHit(hit=hit, polarity=polarity, id="E1", patch=handled_by)


def test_contents_as_they_were_verified_pass():
    assert [check.verdict for check in contents_checks(CONTENTS, {"torch": "1"})] == [Verdict.PASS] * 2


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"findings": ["a.so needs GLIBC_2.99"]}, "1 wrong: a.so needs GLIBC_2.99"),
        ({"stale": ["old"]}, "1 wrong: stale: old"),
        ({"hashed_files": 0}, "1 wrong: no file was looked at"),
    ],
)
def test_contents_with_a_finding_fail(change, seen):
    check = next(iter(contents_checks({**CONTENTS, **change}, {"torch": "1"})))
    assert (check.verdict, check.seen) == (Verdict.FAIL, seen)


def test_packages_other_than_the_locked_ones_fail():
    check = list(contents_checks(CONTENTS, {"torch": "2", "numpy": "1"}))[1]
    assert check.verdict is Verdict.FAIL
    assert check.details == ("numpy: locked 1, in the image no", "torch: locked 2, in the image 1")


def test_torch_without_the_target_fails():
    assert [check.verdict for check in torch_checks(CONTENTS, ["sm_120"])] == [Verdict.PASS]
    assert [check.seen for check in torch_checks(CONTENTS, ["sm_121"])] == ["1 wrong: no sm_121"]
    silent = list(torch_checks({**CONTENTS, "torch": None}, ["sm_120"]))
    assert [check.verdict for check in silent] == [Verdict.FAIL]


def test_patches_as_the_stack_switches_them_pass(plan, tree, tmp_path):
    receipt = _receipt(plan(), tree, tmp_path)
    check = patch_check(plan(), receipt, receipt.files)
    assert (check.verdict, check.seen) == (Verdict.PASS, "2 patches in 1 files as recorded, 0 off")


def test_a_patch_that_is_missing_or_too_much_fails(plan, tree, tmp_path):
    receipt = _receipt(plan(), tree, tmp_path)
    one = plan(disable=["0002"])
    check = patch_check(one, receipt, receipt.files)
    assert check.details == (
        "0002-tile is applied and off in the stack",
        "engine/gate.py is not the patched file",
    )
    less = receipt.model_copy(update={"applied": ("0001-open",)})
    assert patch_check(plan(), less, receipt.files).seen == "1 wrong: 0002-tile is not applied"
    assert patch_check(plan(), receipt, {}).seen == "1 wrong: engine/gate.py is not the patched file"
    assert patch_check(plan(), None, {}).verdict is Verdict.FAIL


def test_gates_are_counted_and_a_patch_that_is_missing_fails(plan):
    check = gate_check(_gates(_gate(), _gate(Polarity.CLOSED, "engine-1.0/0001")), [plan()])
    assert (check.verdict, check.seen) == (Verdict.PASS, "2 gates in 1 files: 1 closed, 1 unjudged")
    off = gate_check(_gates(_gate(Polarity.CLOSED, "engine-1.0/0002")), [plan(disable=["0002"])])
    assert off.verdict is Verdict.PASS, "off is a decision of the stack"
    missing = gate_check(_gates(_gate(Polarity.CLOSED, "engine-1.0/0009")), [plan()])
    assert missing.seen == "1 wrong: E1 (engine/gate.py:7), closed: engine-1.0/0009 is not in the stack"
    unread = _gates().model_copy(update={"unreadable": ("engine/x.py: bad",)})
    assert gate_check(unread, []).verdict is Verdict.FAIL


def test_applied_patches_are_taken_back_to_the_file_of_the_wheel(plan, tree):
    patched = plan()
    out = run(patched, tree, tree.parent / "out")
    write_files(tree, tree, {path: (tree.parent / "out" / path).read_bytes() for path in out["files"]})
    assert (tree / "engine/gate.py").read_text() != GATE
    take_back(patched, tree)
    assert (tree / "engine/gate.py").read_text() == GATE


def test_a_file_that_is_not_the_patched_one_cannot_be_taken_back(plan, tree):
    (tree / "engine/gate.py").write_text("something else\n")
    with pytest.raises(CheckError, match="cannot be traced to the file of the wheel"):
        take_back(plan(), tree)


@pytest.mark.parametrize(
    ("module", "architecture", "wanted"),
    [("comm", "12.0a", ""), ("comm", "12.0f", "12.0a"), ("ours", "12.0f", ""), ("ours", "12.0a", "12.0f")],
)
def test_every_module_is_held_against_its_own_architecture(module, architecture, wanted):
    kernels = Kernels(architecture="12.0a", modules=("comm",), native={"ours": "12.0f"})
    receipt = KernelReceipt(
        module=module, path="/a.so", sha256="0", architecture=architecture, needed=(), functions=()
    )
    said = [f"compiled for {architecture}, the stack says {wanted}"] if wanted else []
    assert wrong_architecture(receipt, kernels) == said


RULES = PruneRules(drop={"alpha/tests/*": "tests"}, strip={"*.so*": "no loader maps symbols"})


def _pruning(**change) -> PruneReport:
    """A report of one dropped and one stripped file."""
    dropped = [{"path": "alpha/tests/a.py", "rule": "alpha/tests/*", "bytes": 2_000_000, "sha256": "1" * 64}]
    stripped = [
        {
            "path": "a.so",
            "status": "stripped",
            "rule": "*.so*",
            "bytes_before": 9_000_000,
            "bytes_after": 1_000_000,
            "sha256_before": "1" * 64,
            "sha256_after": "2" * 64,
        }
    ]
    document: dict[str, Any] = {"root": "/site", "keep": ["12.0"], "files": [], "unread": []}
    document |= {"dropped": dropped, "stripped": stripped, "totals": totals([], dropped, stripped)}
    return PruneReport.model_validate(document | change)


def test_a_pruning_as_the_stack_says_passes_with_its_sums():
    report = _pruning()
    check = pruning_check(report, {"pruned": report.totals}, RULES)
    assert check.verdict is Verdict.PASS
    assert "1 without symbols (8 MB), 1 files dropped (2 MB)" in check.seen


@pytest.mark.parametrize(
    ("report", "contents", "rules", "seen"),
    [
        (None, {}, RULES, "no report of its pruning"),
        (_pruning(), {"pruned": {"dropped": 2}}, RULES, "another pruning"),
        (
            _pruning(),
            None,
            PruneRules(strip=RULES.strip),
            "by drop 'alpha/tests/*', which the stack does not say",
        ),
        (_pruning(), None, PruneRules(drop=RULES.drop), "by strip '*.so*', which the stack does not say"),
        (
            _pruning(),
            None,
            RULES.model_copy(update={"drop": {**RULES.drop, "b/*": "x"}}),
            "drop 'b/*' matches no",
        ),
        (_pruning(dropped=[], stripped=[]), None, PruneRules(), "nothing was pruned"),
    ],
)
def test_a_pruning_that_is_not_what_the_stack_says_fails(report, contents, rules, seen):
    check = pruning_check(report, contents or {"pruned": report and report.totals}, rules)
    assert check.verdict is Verdict.FAIL
    assert seen in check.seen


def _archive(*members: tuple[str, bytes | None, str]) -> tarfile.TarFile:
    """An archive of files (name, content, ``) and links (name, None, name of the first one)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content, linked in members:
            member = tarfile.TarInfo(name)
            member.size = len(content or b"")
            member.type, member.linkname = (tarfile.LNKTYPE if linked else tarfile.REGTYPE), linked
            tar.addfile(member, io.BytesIO(content or b""))
    stream.seek(0)
    return tarfile.open(fileobj=stream)


def test_sources_out_of_an_image_are_written_with_those_that_are_linked(tmp_path: Path):
    with _archive(("a/one.py", b"x = 1", ""), ("b/two.py", None, "a/one.py")) as tar:
        unpack_files(tar, tmp_path)
    assert [(tmp_path / name).read_bytes() for name in ("a/one.py", "b/two.py")] == [b"x = 1", b"x = 1"]


@pytest.mark.parametrize("name", ["../out.py", "a/../../out.py", "{outside}/out.py"])
def test_an_image_cannot_write_elsewhere(tmp_path: Path, name: str):
    target = tmp_path / "target"
    target.mkdir()
    with (
        _archive((name.format(outside=tmp_path), b"x", "")) as tar,
        pytest.raises(CheckError, match="outside of its folder"),
    ):
        unpack_files(tar, target)
    assert [path.name for path in tmp_path.rglob("*")] == ["target"]
