from pathlib import Path

import pytest

from tooling.census.architecture import parse_architecture
from tooling.census.compare import compare, identity
from tooling.census.reader.scan import matches
from tooling.census.records import CensusRecord, Library, Service, Target, Unread
from tooling.census.rules import CensusRules, Expectation, Rule, judge, load_rules
from tooling.errors import InputError
from tooling.gates.records import Check, Verdict

ROOT = Path(__file__).parents[2]
SITE = "opt/stack/lib/python3.11/site-packages"


def library(path: str, *targets: str, kind: str = "elf") -> Library:
    """`12.0a*35` is 35 SASS entries, `ptx9.0@8.7` PTX of ISA 8.7, a leading `r:` or `e:` another place."""
    found = []
    for text in targets:
        place = {"r:": "relocatable", "e:": "embedded"}.get(text[:2], "loadable")
        name, _, count = text.removeprefix("r:").removeprefix("e:").partition("*")
        arch, _, isa = name.removeprefix("ptx").partition("@")
        found.append(
            Target.model_validate(
                {
                    "kind": "ptx" if name.startswith("ptx") else "sass",
                    "arch": arch,
                    "ptx_isa": isa,
                    "place": place,
                    "entries": int(count or 1),
                    "stored_bytes": 100,
                }
            )
        )
    return Library.model_validate(
        {"path": path, "kind": kind, "size": 1, "containers": len(found), "targets": tuple(found)}
    )


def record(*libraries: Library, unread: tuple[Unread, ...] = ()) -> CensusRecord:
    return CensusRecord(
        source="test",
        files_seen=len(libraries),
        libraries=libraries,
        unread=unread,
        taken="2026-01-01T00:00:00Z",
    )


def rules(*given: Rule, **more: object) -> CensusRules:
    return CensusRules.model_validate({"rules": given, **more})


def rule(expect: str, *files: str, **more: object) -> Rule:
    reason = "known" if expect == "absent" else ""
    return Rule.model_validate({"name": "R", "files": files, "expect": expect, "reason": reason, **more})


def verdict_of(checks: tuple[Check, ...], start: str) -> Verdict:
    [check] = [check for check in checks if check.name.startswith(start)]
    return check.verdict


SGL = library(f"{SITE}/sgl_kernel/sm100/common_ops.abi3.so", "8.0", "9.0a", "10.0f", "12.0a*35")
FA3 = library(f"{SITE}/sgl_kernel/flash_ops.abi3.so", "8.0", "8.6", "9.0a")


@pytest.mark.parametrize(
    ("expect", "targets", "verdict"),
    [
        ("sass", ["12.0a"], Verdict.PASS),
        ("sass", ["12.1a"], Verdict.FAIL),
        ("sass", ["ptx12.0@8.7"], Verdict.FAIL),
        ("sass", ["r:12.0"], Verdict.FAIL),
        ("sass", ["e:12.0"], Verdict.PASS),
        ("code", ["ptx9.0@8.7"], Verdict.PASS),
        ("code", ["ptx9.0a@8.7"], Verdict.FAIL),
        ("code", ["10.0", "9.0"], Verdict.FAIL),
        ("absent", ["9.0a"], Verdict.PASS),
        ("absent", ["12.0"], Verdict.FAIL),
    ],
)
def test_each_expectation(expect: str, targets: list[str], verdict: Verdict):
    checks = judge(record(library("a/x.so", *targets)), rules(rule(expect, "x.so")), ["12.0"])
    assert verdict_of(checks, "R on 12.0") is verdict


def test_one_bad_file_of_several_fails_and_is_named():
    found = record(library("a/x1.so", "12.0"), library("a/x2.so", "9.0"))
    [check] = [
        check for check in judge(found, rules(rule("sass", "x*.so")), ["12.0"]) if check.name.startswith("R")
    ]
    assert check.verdict is Verdict.FAIL
    assert check.details == ("a/x2.so: only 9.0",)


@pytest.mark.parametrize(
    ("driver", "isa", "verdict"),
    [
        ("580.65.06", "9.0", Verdict.PASS),
        ("570.124.06", "9.0", Verdict.FAIL),
        ("580.65.06", "42.0", Verdict.INCONCLUSIVE),
        ("", "42.0", Verdict.PASS),
    ],
)
def test_ptx_is_held_against_the_least_driver(driver: str, isa: str, verdict: Verdict):
    found = record(library("x.so", f"ptx9.0@{isa}"))
    assert verdict_of(judge(found, rules(rule("code", "x.so"), driver=driver), ["12.0"]), "R on") is verdict


def test_a_missing_library_and_a_rule_that_matches_nothing_fail():
    checks = judge(record(SGL), rules(rule("sass", "gone.so"), rule("absent", "gone2.so")), ["12.0"])
    assert [check.verdict for check in checks if check.name.startswith("R on")] == [Verdict.FAIL, Verdict.FAIL]
    checks = judge(record(SGL), rules(rule("sass", "common_ops*", at_least=2)), ["12.0"])
    assert verdict_of(checks, "R on") is Verdict.FAIL


def test_no_library_at_all_fails():
    for nothing in (record(), record(library("x.so"))):
        checks = judge(nothing, rules(rule("absent", "*")), ["12.0"])
        assert verdict_of(checks, "libraries-with-device-code") is Verdict.FAIL


def test_a_file_that_could_not_be_read_fails_unless_it_is_known():
    found = record(SGL, unread=(Unread(path="a/broken.so", reason="cut off"),))
    given = rule("sass", "common_ops*")
    assert verdict_of(judge(found, rules(given), ["12.0"]), "files-read") is Verdict.FAIL
    known = rules(given, unreadable={"a/broken.so": "a test file of the package"})
    assert verdict_of(judge(found, known, ["12.0"]), "files-read") is Verdict.PASS


def test_a_library_without_code_for_the_target_that_no_rule_explains_fails():
    given = rule("sass", "common_ops*")
    [check] = [
        c for c in judge(record(SGL, FA3), rules(given), ["12.0"]) if c.name.startswith("no unexplained")
    ]
    assert check.verdict is Verdict.FAIL
    assert check.details == (f"{FA3.path}: only 8.0 8.6 9.0a",)
    explained = rules(given, rule("absent", "flash_ops*"))
    assert verdict_of(judge(record(SGL, FA3), explained, ["12.0"]), "no unexplained") is Verdict.PASS


def test_every_target_of_the_stack_is_judged():
    checks = judge(record(SGL), rules(rule("sass", "common_ops*")), ["12.0", "12.1"])
    assert verdict_of(checks, "R on 12.0") is Verdict.PASS
    assert verdict_of(checks, "R on 12.1") is Verdict.FAIL
    with pytest.raises(InputError, match="no target"):
        judge(record(SGL), rules(rule("sass", "*")), [])


def test_a_rule_can_be_about_some_devices_only():
    given = rules(
        rule("sass", "common_ops*", devices=("12.0",)), rule("absent", "common_ops*", devices=("12.1",))
    )
    assert {check.verdict for check in judge(record(SGL), given, ["12.0", "12.1"])} == {Verdict.PASS}


def test_an_archive_counts_what_the_device_linker_will_take():
    assert library("x.a", "r:12.0", kind="archive").coverage(parse_architecture("12.0")).service is Service.SASS


def test_patterns_match_the_end_of_a_path_from_a_folder_on():
    assert matches(f"{SITE}/sgl_kernel/flash_ops.abi3.so", ["sgl_kernel/flash_ops*"])
    assert not matches(f"{SITE}/my_sgl_kernel/flash_ops.abi3.so", ["sgl_kernel/flash_ops*"])


def test_absence_needs_a_reason():
    with pytest.raises(ValueError, match="not why"):
        Rule(name="x", files=("x",), expect=Expectation.ABSENT)


@pytest.mark.parametrize(
    "text",
    ["rules: []", "rules: [{name: x}]", "{", "rules: [{name: x, files: [a], expect: maybe}]", "driver: new"],
)
def test_rules_that_cannot_be_rules_are_refused(tmp_path: Path, text: str):
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match="census rules"):
        load_rules(path)


@pytest.mark.parametrize("path", sorted((ROOT / "stacks/census").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_committed_rules_are_valid(path: Path):
    assert load_rules(path).rules


@pytest.mark.parametrize(
    ("before", "after", "loss"),
    [
        (["12.0a*4"], ["9.0"], "only 9.0"),
        (["12.0"], ["ptx12.0@9.0"], "1 PTX entries"),
        (["12.0a*74"], ["12.0a*35"], "fewer entries of machine code"),
        (["ptx12.0@8.7"], ["ptx12.0@9.0"], "newer driver"),
        (["ptx12.0@8.7*2"], ["ptx12.0@8.7"], "fewer entries of PTX"),
        (["12.0"], ["r:12.0"], "no device code that can be loaded"),
    ],
)
def test_a_library_that_got_worse_is_a_failure(before: list[str], after: list[str], loss: str):
    [check] = compare(record(library("a/x.so", *before)), record(library("a/x.so", *after)), ["12.0"])
    assert check.verdict is Verdict.FAIL
    assert loss in check.details[0]


def test_a_library_that_is_gone_is_a_failure_also_when_another_came():
    [check] = compare(record(SGL), record(library("a/new.so", "12.0")), ["12.0"])
    assert check.verdict is Verdict.FAIL
    assert "are gone" in check.details[0]


def test_better_or_equal_passes_also_under_the_name_of_a_new_build():
    before = record(
        library("a/libnvjpeg-1a359ba7.so.13.0.1", "9.0"), library("b/x.cpython-311-x86_64-linux-gnu.so", "12.0")
    )
    after = record(library("a/libnvjpeg-99999999.so.13.0.2", "12.0"), library("b/x.abi3.so", "12.0a", "12.0"))
    assert [check.verdict for check in compare(before, after, ["12.0"])] == [Verdict.PASS]
    assert identity("a/libnvjpeg.4a0b5c81.so.13") == "a/libnvjpeg.so"


def test_a_comparison_with_nothing_is_refused():
    with pytest.raises(InputError, match="no device code to compare"):
        compare(record(library("x.so")), record(SGL), ["12.0"])
    with pytest.raises(InputError, match="no target"):
        compare(record(SGL), record(SGL), [])
