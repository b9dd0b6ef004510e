import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import entrypoint
import link_toolkit
import pytest
import selftest

DATA = Path(__file__).parents[1] / "data" / "census"
SERVE = {
    "command": ["python", "-m", "engine"],
    "arguments": {"host": "::", "metrics": True, "quiet": False},
}


def test_serve_uses_the_stacks_arguments():
    assert entrypoint.serve_argv(SERVE, []) == ["python", "-m", "engine", "--host", "::", "--metrics"]


@pytest.mark.parametrize("given", [["--host", "::1"], ["--host=::1"]])
def test_an_argument_given_again_replaces_the_stacks(given):
    assert entrypoint.serve_argv(SERVE, given) == ["python", "-m", "engine", "--metrics", *given]


def test_the_version_contract():
    stack = {"python": "9.9", "engine": {"package": "pytest", "version": "0"}, "environment": {"ABSENT": "1"}}
    contents = {"packages": [], "hashed_files": 0, "findings": [], "stale": [], "libraries": 0, "allowed": []}
    for check in (
        selftest.check_python,
        selftest.check_packages,
        selftest.check_engine,
        selftest.check_contents,
        selftest.check_environment,
    ):
        assert not check(stack, contents).passed, check.__name__
    assert not selftest.check_engine({"engine": {"package": "no-such-thing", "version": "1"}}, {}).passed


NOTHING: dict[str, Any] = {"cuda": None, "patches": {}, "kernels": [], "census": [], "local_packages": []}


def test_a_stack_is_tested_for_what_it_has():
    assert selftest.check_nvcc in selftest.checks_for({**NOTHING, "cuda": "13.0"})
    assert selftest.check_nvcc not in selftest.checks_for(NOTHING)
    assert selftest.check_patches in selftest.checks_for({**NOTHING, "patches": {"a-1": ["0001-x"]}})
    assert selftest.check_kernels in selftest.checks_for({**NOTHING, "kernels": ["a"]})
    assert selftest.check_local_packages in selftest.checks_for({**NOTHING, "local_packages": ["a"]})
    assert selftest.check_census in selftest.checks_for({**NOTHING, "census": [{}]})


@pytest.fixture
def image(tmp_path, monkeypatch):
    """The folders that a selftest looks into."""
    for name, folder in (("SHARE", tmp_path / "share"), ("SITE", tmp_path / "site")):
        folder.mkdir()
        monkeypatch.setattr(selftest, name, folder)
    return tmp_path


def test_patched_files_are_held_against_their_receipt(image):
    stack = {"patches": {"a-1": ["0001-x"]}}
    assert not selftest.check_patches(stack, {}).passed, "no receipt"
    file = image / "site" / "a.py"
    file.write_text("patched\n")
    receipt = {"series": "a-1", "applied": ["0001-x"], "files": {"a.py": sha256(file.read_bytes()).hexdigest()}}
    (image / "share" / "patches.json").write_text(json.dumps([receipt]))
    assert selftest.check_patches(stack, {}) == ("patches", True, "1 patches, 1 files as patched")
    assert not selftest.check_patches({"patches": {"a-1": ["0001-x", "0002-y"]}}, {}).passed
    file.write_text("as shipped\n")
    assert selftest.check_patches(stack, {}).seen == "a-1: a.py is not the patched file"


def test_a_compiled_module_is_there_unchanged_and_for_its_target(image):
    stack = {"kernels": ["a"]}
    assert selftest.check_kernels(stack, {}).seen == "a has no receipt"
    library = image / "a.so"
    receipt = {"path": str(library), "sha256": "", "architecture": "12.0a"}
    (image / "share" / "kernels").mkdir()

    def seen(**change: str) -> str:
        (image / "share" / "kernels" / "a.json").write_text(json.dumps({**receipt, **change}))
        return selftest.check_kernels(stack, {}).seen

    assert seen() == "a is missing"
    shutil.copy2(DATA / "kernels_120a.cubin", library)
    assert seen() == "a is not the library that was compiled"
    digest = sha256(library.read_bytes()).hexdigest()
    assert seen(sha256=digest, architecture="9.0a") == "a has code for 12.0a"
    assert seen(sha256=digest) == "compiled in: a"


def test_required_libraries_have_code_for_the_target(image):
    rule = {
        "name": "r",
        "files": ["lib/k*.so"],
        "at_least": 1,
        "device": "12.0",
        "architectures": ["12.0a"],
    }
    assert selftest.check_census({"census": [rule]}, {}).seen == "r: 0 files, 1 expected"
    (image / "site" / "lib").mkdir()
    shutil.copy2(DATA / "kernels_120a.cubin", image / "site" / "lib" / "kernels.so")
    assert selftest.check_census({"census": [rule]}, {}) == ("census", True, "1 libraries")
    other = {**rule, "architectures": ["12.1"], "device": "12.1"}
    assert selftest.check_census({"census": [other]}, {}).seen == "lib/kernels.so has no code for 12.1"
    (image / "site" / "lib" / "kernels.so").write_bytes(b"text")
    assert "cannot be read" in selftest.check_census({"census": [rule]}, {}).seen


def test_development_names_of_the_toolkit(tmp_path):
    for name in ("libcudart.so.13", "libnvrtc-builtins.so.13.0", "libnvrtc.alt.so.13", "libcheckpoint.so"):
        (tmp_path / name).touch()
    assert link_toolkit.link_names(tmp_path) == {
        "libcudart.so": "libcudart.so.13",
        "libnvrtc-builtins.so": "libnvrtc-builtins.so.13.0",
        "libnvrtc.alt.so": "libnvrtc.alt.so.13",
    }
