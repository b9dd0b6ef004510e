from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.models.damage import DAMAGES, damage_gguf, damage_safetensors
from tooling.errors import InputError
from tooling.gates.correctness import Baseline, Tier, load_baselines, load_profile
from tooling.gates.correctness.baseline import Launch, compare_with_baseline
from tooling.gates.correctness.profile import Profile, parse_profile
from tooling.gates.records import Verdict
from tooling.records import sha256_of_file

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "stacks" / "models"
TINY = MODELS / "tiny"


@pytest.fixture
def raw() -> dict[str, Any]:
    data = yaml.safe_load((TINY / "profile.yaml").read_text())
    assert isinstance(data, dict)
    return data


@pytest.mark.parametrize("path", sorted(MODELS.glob("*/profile.yaml")), ids=lambda path: path.parent.name)
def test_every_committed_profile_is_valid_and_named_like_its_folder(path: Path):
    assert load_profile(str(path)).name == path.parent.name


def test_the_tiny_models_files_are_those_of_its_manifest():
    files = yaml.safe_load((TINY / "manifest.yaml").read_text())
    assert {"model.safetensors", "tiny.gguf", "tokenizer.json", "config.json"} <= set(files)
    for name, digest in files.items():
        assert sha256_of_file(TINY / name) == digest, name


def test_the_damaged_copies_are_the_recorded_ones(tmp_path: Path):
    recorded = yaml.safe_load((ROOT / "tests" / "models" / "damaged.yaml").read_text())
    made: dict[str, str] = {}
    for kind in DAMAGES:
        damage_gguf(TINY / "tiny.gguf", kind, tmp_path / f"{kind}.gguf")
        damage_safetensors(TINY / "model.safetensors", kind, tmp_path / f"{kind}.safetensors")
        made |= {path.name: sha256_of_file(path) for path in tmp_path.glob(f"{kind}.*")}
    assert made == recorded
    whole = {sha256_of_file(TINY / "tiny.gguf"), sha256_of_file(TINY / "model.safetensors")}
    assert len(set(made.values()) | whole) == 2 * len(DAMAGES) + 2


def test_the_tiny_profile_knows_the_questions_that_it_must(raw: dict[str, Any]):
    profile = parse_profile(raw, "here")
    assert len(profile.questions) == 96
    assert profile.question("mul-17-23").answer == "391"
    assert sum(question.group == "arithmetic" for question in profile.questions) == 24
    assert len(profile.asked_in(Tier.T0)) < len(profile.asked_in(Tier.T1)) == 96


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"questoins": []}, "Extra inputs"),
        ({"questions": []}, "at least 8"),
        ({"required": {"arithmetic": {}}}, "differ in"),
        ({"ladder": {"questions": ["nope"]}}, "unknown questions: nope"),
        ({"ladder": None}, "ladder must be either configured or named"),
        ({"unsupported": {}}, "must be either configured or named"),
        ({"echo": {"ask": "Say it."}}, "must contain {nonce}"),
        ({"context_tokens": "many"}, "valid integer"),
    ],
)
def test_a_profile_that_is_not_whole_is_refused(raw: dict[str, Any], change: dict[str, Any], message: str):
    with pytest.raises(InputError) as caught:
        parse_profile({**deepcopy(raw), **change}, "here.yaml")
    assert message in str(caught.value)
    assert "here.yaml" in str(caught.value)


def test_a_reference_for_speculation_that_cannot_catch_anything_is_refused(raw: dict[str, Any]):
    unsupported = {check: reason for check, reason in raw["unsupported"].items() if check != "acceptance"}
    with pytest.raises(InputError, match=r"greater than or equal to 1\.2"):
        parse_profile({**raw, "unsupported": unsupported, "acceptance": {"reference": 1.01}}, "here")


def test_a_profile_that_is_not_there_names_those_that_are(tmp_path: Path):
    with pytest.raises(InputError, match="tiny"):
        load_profile("tinny", MODELS)
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(InputError, match="YAML"):
        load_profile(str(tmp_path / "bad.yaml"))


def launches(*rights: int) -> Baseline:
    each = tuple(
        Launch(boot=str(i), started="", right={f"q{n}": n < right for n in range(30)})
        for i, right in enumerate(rights)
    )
    return Baseline(profile="p", profile_sha256="c", launches=each)


def right(n: int) -> dict[str, bool]:
    return launches(n).launches[0].right


def test_no_baseline_is_no_check_and_one_of_other_questions_is_none():
    assert compare_with_baseline(None, "c", right(30)) is None
    check = compare_with_baseline(launches(30), "other", right(30))
    assert check is not None
    assert check.verdict is Verdict.NO_BASELINE


def test_a_launch_inside_the_spread_of_the_baselines_launches_is_no_loss():
    alone = compare_with_baseline(launches(30), "c", right(24))
    among = compare_with_baseline(launches(30, 30, 24), "c", right(24))
    below = compare_with_baseline(launches(30, 30, 28), "c", right(24))
    assert alone is not None
    assert among is not None
    assert below is not None
    assert [check.verdict for check in (alone, among, below)] == [
        Verdict.INCONCLUSIVE,
        Verdict.PASS,
        Verdict.INCONCLUSIVE,
    ]


def test_baseline_files_are_put_together_if_they_belong_together(tmp_path: Path):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        path.write_text(launches(30).model_dump_json())
    merged = load_baselines(paths)
    assert merged is not None
    assert len(merged.launches) == 2
    paths[1].write_text(launches(30).model_copy(update={"profile_sha256": "d"}).model_dump_json())
    with pytest.raises(InputError, match="different questions"):
        load_baselines(paths)
    paths[1].write_text("{}")
    with pytest.raises(InputError, match="no correctness baseline"):
        load_baselines(paths)
    with pytest.raises(InputError, match="cannot be read"):
        load_baselines([tmp_path / "c.json"])


def test_a_profile_is_frozen():
    profile = load_profile("tiny", MODELS)
    assert isinstance(profile, Profile)
    with pytest.raises(ValueError, match="frozen"):
        profile.name = "other"  # type: ignore[misc]
