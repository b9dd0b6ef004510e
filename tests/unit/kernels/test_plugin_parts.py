"""The plugin's parts that need no engine: switches, seams by their text."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from blackwell_kernels.sglang_plugin import seams
from blackwell_kernels.sglang_plugin.engines import Communicator, LayerBoundary, fused_path
from blackwell_kernels.sglang_plugin.seams import (
    Reviewed,
    Seam,
    check_feature,
    check_seam,
    fingerprint,
    load_seams,
    seams_of,
    source_of,
)
from blackwell_kernels.sglang_plugin.settings import Feature, SettingsError, read_settings

from tooling.stack import load_stack
from tooling.triage.features import load_features
from tooling.triage.signatures import load_signatures

ROOT = Path(__file__).resolve().parents[3]
ENGINE = '''"""A module."""
import functools


def _plain(value):
    return value


class Group:
    @functools.cache
    def reduce(self, x):
        """Adds."""
        return x + 1
'''


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("def start():\n    return 1\n")
    (tmp_path / "engine" / "comm.py").write_text(ENGINE)
    return tmp_path


def _seam(name: str, root: Path | None = None, *versions: str) -> Seam:
    module, _, rest = name.partition(":")
    seam = Seam(f"{module}.{rest}", module, hooked=True, features=frozenset(), reviewed=())
    if root is None:
        return seam
    reviewed = (Reviewed(versions or ("1.0",), fingerprint(source_of(root, seam)), "as shipped"),)
    return Seam(seam.target, module, hooked=True, features=frozenset(), reviewed=reviewed)


def test_a_function_is_taken_with_its_decorators_and_nothing_else(engine):
    assert source_of(engine, _seam("engine.comm:Group.reduce")).splitlines()[0] == "@functools.cache"
    assert source_of(engine, _seam("engine.comm:Group.reduce")).endswith("return x + 1")
    assert source_of(engine, _seam("engine:start")) == "def start():\n    return 1"


def test_a_seam_as_it_was_read_is_right_wherever_it_moved_in_the_file(engine):
    seam = _seam("engine.comm:Group.reduce", engine)
    path = engine / "engine" / "comm.py"
    path.write_text("X = 1\n" + ENGINE.replace("return value", "return 2"))
    assert check_seam(seam, engine, "1.0") == ""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("x + 1", "x + 2", "is not the function that was read"),
        ("self, x", "self, x, y=0", "is not the function that was read"),
        ("@functools.cache", "@functools.lru_cache", "is not the function that was read"),
        ("def reduce", "def all_reduce", "has no Group.reduce"),
        ("    def reduce(self, x):", "    async def reduce(self, x):", "is no function"),
        ("class Group:", "class Group", "cannot be read"),
    ],
)
def test_a_changed_upstream_is_seen(engine, before, after, said):
    seam = _seam("engine.comm:Group.reduce", engine)
    path = engine / "engine" / "comm.py"
    path.write_text(ENGINE.replace(before, after))
    assert said in check_seam(seam, engine, "1.0")


def test_a_missing_module_and_an_unread_version_are_seen(engine):
    seam = _seam("engine.comm:Group.reduce", engine)
    (engine / "engine" / "comm.py").unlink()
    assert "there is no module engine.comm" in check_seam(seam, engine, "1.0")
    assert "was read in SGLang 1.0, this is 1.1" in check_seam(seam, engine, "1.1")
    assert "this is no release" in check_seam(seam, engine, None)


def test_every_feature_has_seams_and_all_were_read_in_the_stacks_engine():
    version = load_stack("cu130", ROOT).stack.engine.version
    for feature in Feature:
        assert any(seam.hooked for seam in seams_of(version, [feature]))
    for seam in seams_of(version):
        assert seam.features
        assert any(version in reviewed.versions for reviewed in seam.reviewed), seam.target
    for seam in load_seams():
        assert seam.reviewed
        assert all(len(reviewed.sha256) == 64 and reviewed.note for reviewed in seam.reviewed)
        assert {one for reviewed in seam.reviewed for one in reviewed.versions} >= set(seam.engines)


def test_a_seam_that_was_moved_counts_in_its_own_versions():
    gates = {
        version: [seam.target for seam in seams_of(version, [Feature.ALLREDUCE_RMSNORM]) if seam.hooked]
        for version in ("0.5.16", "0.5.23")
    }
    assert "sglang.srt.layers.communicator.apply_flashinfer_allreduce_fusion" in gates["0.5.16"]
    assert [type(fused_path(gates[version])) for version in gates] == [Communicator, LayerBoundary]
    with pytest.raises(LookupError, match="0 gates"):
        fused_path(["sglang.srt.plugins.load_plugins"])
    with pytest.raises(LookupError, match="2 gates"):
        fused_path([target for targets in gates.values() for target in targets])


@pytest.mark.parametrize("feature", list(Feature))
@pytest.mark.parametrize("version", ["0.5.24", "0.5.17", None])
def test_no_feature_is_had_in_a_version_that_nobody_read(tmp_path, feature, version):
    problems = check_feature(feature, tmp_path, version)
    assert any("was read in SGLang" in problem for problem in problems)


def test_a_feature_without_seams_is_no_feature(monkeypatch, engine):
    monkeypatch.setattr(seams, "load_seams", lambda: ())
    with pytest.raises(LookupError, match="no seam is listed"):
        check_feature(Feature.TOPK, engine, "0.5.23")


def test_switches():
    settings = read_settings({"BLACKWELL_KERNELS_TOPK": "1", "BLACKWELL_KERNELS_STRICT": "off", "PATH": "/bin"})
    assert settings.requested == {Feature.TOPK}
    assert (settings.strict, settings.counters) == (False, None)
    assert read_settings({}).requested == frozenset()
    assert read_settings({"BLACKWELL_KERNELS_DISABLE": "yes"}).disabled
    assert (
        read_settings({"BLACKWELL_KERNELS_LIBRARY": "/x", "BLACKWELL_KERNELS_CACHE": "/y"}).requested == set()
    )


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"BLACKWELL_KERNELS_TOPKK": "1"}, "unknown variable BLACKWELL_KERNELS_TOPKK"),
        ({"BLACKWELL_KERNELS_TOPK": "maybe"}, "neither on"),
    ],
)
def test_what_is_not_understood_is_refused(environment, said):
    with pytest.raises(SettingsError, match=said):
        read_settings(environment)


def test_triage_knows_every_feature_and_the_variable_that_asks_for_it():
    features = {feature.id: feature for feature in load_features()}
    signatures = {signature.id for signature in load_signatures()}
    for feature in Feature:
        assert "1" in features[f"blackwell-{feature}"].environment[feature.variable]
        for state in ("active", "prepared", "disabled"):
            assert f"blackwell-{feature}-{state}" in signatures


def test_the_entry_point_is_sglangs_group_and_a_function_that_is_there():
    project = tomllib.loads((ROOT / "images/kernels/pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {
        "sglang.srt.plugins": {"blackwell-kernels": "blackwell_kernels.sglang_plugin:register"}
    }
    assert json.loads((ROOT / "images/kernels/blackwell_kernels/sglang_plugin/seams.json").read_text())
