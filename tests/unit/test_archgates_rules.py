"""Rules over arch gates: what they cover, what they rest on, and when they fail."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tooling.archgates.cuda_scan import scan_cuda
from tooling.archgates.judge import JUDGED_DIR, Review, judge, load_review, load_rules
from tooling.archgates.python_scan import scan_python
from tooling.archgates.records import Hit, JudgedHit, Judgements, Polarity, Rule
from tooling.errors import CheckError, InputError

TEXTS = {
    "engine/hopper.py": "def choose(major):\n    if major == 9:\n        return 'wgmma kernel'\n",
    "engine/other.py": "def choose(major):\n    return major == 9\n",
    "engine/own_sm120.py": "def check(major):\n    if major != 12:\n        raise ValueError\n",
    "engine/convert.cuh": (
        "#if __CUDA_ARCH__ >= 1000\n  cvt.e2m1x2\n#else\n  slow\n#endif\n"
        "#if __CUDA_ARCH__ >= 1000\n  fma\n#else\n  cvt.e2m1x2\n#endif\n"
    ),
}
EVIDENCE = [{"path": "engine/hopper.py", "contains": "return 'wgmma kernel'"}]


def _rule(**fields: Any) -> Rule:
    return Rule.model_validate(
        {
            "id": "hopper",
            "paths": ["engine/*"],
            "polarity": "hardware",
            "note": "a note of more than twenty letters",
            "evidence": EVIDENCE,
            **fields,
        }
    )


def _scan(path: str, data: bytes) -> list[Hit]:
    return scan_python(path, data) if path.endswith(".py") else scan_cuda(path, data)[0]


def _judge(*rules: Rule, **counts: int) -> list[JudgedHit]:
    hits = [hit for path, text in TEXTS.items() for hit in _scan(path, text.encode())]
    wanted = {name.replace("_", "-"): count for name, count in counts.items()}
    judgements = Judgements(package="engine", version="1.0", rules=wanted)
    return judge(hits, Review(judgements=judgements, rules=rules), TEXTS.get)


def _covered(found: list[JudgedHit]) -> list[str]:
    return [f"{one.hit.path}:{one.hit.line}" for one in found if one.polarity is not Polarity.UNJUDGED]


@pytest.mark.parametrize(
    ("fields", "covered"),
    [
        ({"paths": ["engine/h*.py"]}, ["engine/hopper.py:2"]),
        ({"paths": ["*.py"], "not_paths": ["*sm120*", "*hopper*"]}, ["engine/other.py:2"]),
        ({"patterns": ["cuda-arch-at-least"]}, ["engine/convert.cuh:1", "engine/convert.cuh:6"]),
        ({"patterns": ["capability-equality"], "code": "== 9"}, ["engine/hopper.py:2", "engine/other.py:2"]),
        ({"code": "== 9", "not_code": "^if"}, ["engine/other.py:2"]),
        ({"symbol": "^check$"}, ["engine/own_sm120.py:2"]),
        ({"file_holds": "wgmma"}, ["engine/hopper.py:2"]),
        ({"guarded_holds": "e2m1x2"}, ["engine/convert.cuh:1"]),
        ({"guarded_holds": "raise"}, ["engine/own_sm120.py:2"]),
        ({"on_sm120": "true"}, ["engine/convert.cuh:1", "engine/convert.cuh:6"]),
    ],
)
def test_every_condition_of_a_rule_must_be_met(fields: dict[str, Any], covered: list[str]):
    found = _judge(_rule(**fields), hopper=len(covered))
    assert _covered(found) == covered
    assert {one.id for one in found} == {"", "hopper"}


def test_the_first_rule_of_the_review_judges():
    own = _rule(id="own", paths=["*sm120*"], polarity="right")
    found = _judge(own, _rule(paths=["*.py"]), own=1, hopper=2)
    assert [one.polarity for one in found if one.hit.path == "engine/own_sm120.py"] == [Polarity.RIGHT]


@pytest.mark.parametrize("count", [1, 3])
def test_a_rule_that_covers_more_or_less_than_was_reviewed_is_a_failure(count: int):
    with pytest.raises(CheckError, match="do not match its code") as caught:
        _judge(_rule(code="== 9"), hopper=count)
    assert caught.value.details == [f"rule hopper covers 2 gates, reviewed were {count}"]


def test_a_rule_that_covers_nothing_is_a_failure():
    with pytest.raises(CheckError) as caught:
        _judge(_rule(paths=["gone/*"]), hopper=1)
    assert "rule hopper covers 0 gates" in caught.value.details[0]


def test_a_rule_whose_evidence_is_gone_is_a_failure():
    gone = [
        *EVIDENCE,
        {"path": "engine/hopper.py", "contains": "tcgen05"},
        {"path": "engine/no.py", "contains": "def"},
    ]
    with pytest.raises(CheckError) as caught:
        _judge(_rule(code="== 9", evidence=gone), hopper=2)
    assert caught.value.details == [
        "rule hopper rests on 'tcgen05', which is not in engine/hopper.py",
        "rule hopper rests on 'def', which is not in engine/no.py",
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"polarity": "unjudged"}, "a rule judges"),
        ({"code": "("}, "no regular expression"),
        ({"evidence": []}, "at least 1"),
        ({"note": "short"}, "at least 20"),
        ({"patterns": ["no-such-form"]}, "arch-list"),
        ({"paths": []}, "at least 1"),
    ],
)
def test_a_rule_without_reason_or_sense_is_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        _rule(**fields)


def _write(folder: Path, review: dict[str, Any], *rules: dict[str, Any]) -> Path:
    (folder / "rules").mkdir(parents=True)
    (folder / "engine-1.0.yaml").write_text(
        yaml.safe_dump({"package": "engine", "version": "1.0", **review}, sort_keys=False)
    )
    if rules:
        document = {"package": "engine", "rules": list(rules)}
        (folder / "rules" / "engine.yaml").write_text(yaml.safe_dump(document))
    return folder


def _plain(**fields: Any) -> dict[str, Any]:
    return {**_rule().model_dump(mode="json", exclude_none=True), **fields}


def test_a_review_names_the_rules_that_hold_in_its_order(tmp_path: Path):
    review = {
        "files": {"engine/a.py": [{"id": "A", "polarity": "right", "note": "why"}]},
        "rules": {"two": 1, "one": 3},
    }
    found = load_review("engine", "1.0", _write(tmp_path, review, _plain(id="one"), _plain(id="two")))
    assert found is not None
    assert [rule.id for rule in found.rules] == ["two", "one"]
    assert [(one.path, one.id) for one in found.judgements.judged] == [("engine/a.py", "A")]
    assert load_review("engine", "2.0", tmp_path) is None


@pytest.mark.parametrize(
    ("review", "rules", "message"),
    [
        ({"rules": {"three": 1}}, [_plain()], "names rules that do not exist"),
        ({"rules": {"hopper": 1}}, [], "no rules over engine"),
        ({"rules": {"hopper": 1}}, [_plain(), _plain()], "rules of the same name"),
        ({"rules": {"hopper": 0}}, [_plain()], "cannot be read"),
        ({"rules": {}}, [_plain()], "cannot be read"),
        ({"files": {"engine/a.py": {"id": "A"}}}, [], "cannot be read"),
        ({"files": {"engine/a.py": ["A"]}}, [], "cannot be read"),
        ({"version": "2.0", "rules": {"hopper": 1}}, [_plain()], r"the file is for engine 2\.0"),
    ],
)
def test_a_review_that_cannot_be_used_says_why(
    tmp_path: Path, review: dict[str, Any], rules: list[dict[str, Any]], message: str
):
    with pytest.raises(InputError, match=message):
        load_review("engine", "1.0", _write(tmp_path, review, *rules))


RULED = sorted(path.stem for path in (JUDGED_DIR / "rules").glob("*.yaml"))


def test_there_are_rules():
    assert {"flashinfer-python", "sglang"} <= set(RULED)


@pytest.mark.parametrize("package", RULED)
def test_every_rule_of_this_project_holds_for_a_reviewed_version(package: str):
    versions = [path.stem.rpartition("-")[2] for path in JUDGED_DIR.glob(f"{package}-*.yaml")]
    reviews = [load_review(package, version) for version in versions]
    used = {rule.id for review in reviews if review for rule in review.rules}
    assert {rule.id for rule in load_rules(package)} == used


def test_no_rule_calls_right_what_holds_tensor_memory():
    """A rule may close over tcgen05 and wgmma as hardware; it never calls such a file right."""
    for package in RULED:
        for rule in load_rules(package):
            if "tcgen05" in rule.file_holds or "wgmma" in rule.file_holds:
                assert rule.polarity is Polarity.HARDWARE
