from pathlib import Path
from typing import Any

import pytest

from tooling.errors import CheckError, InputError
from tooling.lock.coherence import KNOWN_FAULTS
from tooling.lock.indexes import (
    default_index,
    index_addresses,
    on_loopback,
    uv_index_variables,
    variable_of,
)
from tooling.lock.lockfile import render_lock
from tooling.lock.resolve import (
    check_lock,
    compile_argv,
    explain_failure,
    lock_of,
    read_lock,
    refuse_yanked,
    write_lock,
)
from tooling.lock.wheels import best_wheel
from tooling.stack.loading import load_stack, parse_stack
from tooling.stack.model import Index, Platform, StackFile

ROOT = Path(__file__).resolve().parents[2]
STACK = parse_stack(
    """\
name: tiny
description: a stack for these tests
platform: {glibc: "2.36", python: "3.11"}
engine: {name: none, package: hello, version: 1.0.0}
base: {bootstrap: {suite: bookworm, packages: [python3.11]}}
lock: {indexes: [{name: extra, holds: wheels of these tests}]}
layers: [{name: all}]
serve: {command: [python], port: 8000}
budget: {build_disk_gb: 1}
""",
    Path("stacks/tiny.yaml"),
)


def _document(*wheels: dict[str, Any], name: str = "hello", version: str = "1.0.0") -> dict[str, Any]:
    return {"packages": [{"name": name, "version": version, "wheels": list(wheels)}]}


def _wheel(file: str, host: str = "https://mirror.example/simple") -> dict[str, Any]:
    return {"url": f"{host}/{file}", "size": 7, "hashes": {"sha256": "a" * 64}}


def test_the_resolvers_command_line():
    argv = compile_argv(STACK, Path("/w"), "uv")
    assert argv == [
        "uv", "pip", "compile", "/w/requirements.in",
        "--constraints", "/w/constraints.txt",
        "--overrides", "/w/overrides.txt",
        "--python-version", "3.11",
        "--python-platform", "x86_64-manylinux_2_36",
        "--only-binary", ":all:",
        "--no-config",
        "--format", "pylock.toml",
        "--output-file", "/w/pylock.toml",
    ]  # fmt: skip


def test_the_wheel_that_fits_best_is_locked_with_the_name_of_its_index():
    document = _document(
        _wheel("hello-1.0.0-py3-none-any.whl"),
        _wheel("hello-1.0.0-cp311-cp311-manylinux_2_28_x86_64.whl", "https://extra.example/whl"),
        _wheel("hello-1.0.0-cp311-cp311-manylinux_2_39_x86_64.whl"),
    )
    lock = lock_of(STACK, document, {"extra": "https://extra.example/whl"})
    assert lock.wheels[0].wheel == "hello-1.0.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert lock.wheels[0].index == "extra"
    assert "example" not in render_lock(lock)


def test_a_package_without_a_fitting_wheel_is_named():
    with pytest.raises(InputError, match=r"hello==1\.0\.0 has no wheel that fits"):
        lock_of(STACK, _document(_wheel("hello-1.0.0-cp311-cp311-win_amd64.whl")), {})


def test_too_old_a_c_library_is_said_so():
    lines = [
        "error: No solution found when resolving dependencies",
        "cause: Because sglang==0.5.23 has no wheels with a matching platform tag (`manylinux_2_28_x86_64`)",
        "hint: Wheels are available on: `manylinux_2_34_aarch64`, `manylinux_2_34_x86_64`",
    ]
    error = explain_failure(STACK, lines)
    assert error.what == "no wheel for glibc 2.36, CPython 3.11, x86_64"
    assert "newer glibc" in error.fix
    assert "manylinux_2_34_x86_64" in str(error)


def test_other_conflicts_show_the_resolvers_words():
    error = explain_failure(STACK, ["Because a depends on b<2 and you require b>=2, unsatisfiable."])
    assert error.what == "the requirements cannot be satisfied together"
    assert "depends on b<2" in str(error)


def test_an_index_that_fails_is_not_a_conflict_of_requirements():
    error = explain_failure(
        STACK, ["error: Request failed after 3 retries", "cause: Failed to fetch: http://x"]
    )
    assert error.what == "the package index did not answer as it should"


def test_a_withdrawn_wheel_is_refused_unless_kept_on_purpose():
    warning = 'warning: `hello==1.0.0` is yanked (reason: "broken metadata")'
    with pytest.raises(InputError, match="yanked") as caught:
        refuse_yanked(warning, STACK)
    assert "hello==1.0.0: broken metadata" in caught.value.details
    kept = STACK.model_copy(update={"lock": STACK.lock.model_copy(update={"allow_yanked": ("hello==1.0.0",)})})
    refuse_yanked(warning, kept)


def test_a_lock_of_another_stack_or_of_an_earlier_state_is_refused():
    lock = lock_of(STACK, _document(_wheel("hello-1.0.0-py3-none-any.whl")), {})
    check_lock(lock, STACK, ROOT / KNOWN_FAULTS)
    with pytest.raises(InputError, match="the lock of stack 'other', not of 'tiny'"):
        check_lock(lock.model_copy(update={"stack": "other"}), STACK, ROOT / KNOWN_FAULTS)
    changed = STACK.model_copy(update={"platform": Platform(glibc="2.39", python="3.11")})
    with pytest.raises(InputError, match="changed since its lock"):
        check_lock(lock, changed, ROOT / KNOWN_FAULTS)


def test_a_lock_that_leaves_the_stacks_cuda_is_refused():
    document = {
        "packages": [
            *_document(_wheel("hello-1.0.0-py3-none-any.whl"))["packages"],
            *_document(
                _wheel("nvidia_nvvm-13.5.37-py3-none-manylinux_2_17_x86_64.whl"),
                name="nvidia-nvvm",
                version="13.5.37",
            )["packages"],
        ]
    }
    cuda = STACK.model_copy(update={"cuda": "13.0"})
    with pytest.raises(CheckError, match=r"nvidia-nvvm==13\.5\.37"):
        check_lock(lock_of(cuda, document, {}), cuda, ROOT / KNOWN_FAULTS)


def test_every_lock_of_the_checkout_is_current_and_coherent():
    files = [load_stack(path.stem, ROOT) for path in (ROOT / "stacks").glob("*.yaml")]
    locked = [file for file in files if file.lock_path.is_file()]
    assert len(locked) >= 2
    for file in locked:
        assert len(read_lock(file, ROOT).wheels) >= 1


def test_a_missing_lock_says_how_to_make_it(tmp_path):
    file = StackFile(stack=STACK, path=tmp_path / "tiny.yaml")
    with pytest.raises(InputError, match="nox -s lock-tiny"):
        read_lock(file, ROOT)
    lock = lock_of(STACK, _document(_wheel("hello-1.0.0-py3-none-any.whl")), {})
    write_lock(file, lock)
    assert read_lock(file, ROOT) == lock
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.lock.txt"]


def test_best_wheel_prefers_a_build_for_the_platform():
    platform = Platform(glibc="2.36", python="3.11")
    names = ["x-1-py3-none-any.whl", "x-1-cp310-abi3-manylinux2014_x86_64.whl"]
    assert best_wheel(names, platform) == names[1]
    assert best_wheel(["x-1-cp313-cp313-manylinux2014_x86_64.whl"], platform) is None


def test_the_index_is_read_from_the_machines_own_settings(tmp_path):
    pip = tmp_path / "pip.conf"
    pip.write_text("[global]\nindex-url = https://pip.example/simple\n")
    assert default_index({}, [pip]) == "https://pip.example/simple"
    assert default_index({"PIP_INDEX_URL": "https://env.example"}, [pip]) == "https://env.example"
    assert default_index({"UV_DEFAULT_INDEX": "https://uv.example"}, [pip]) == "https://uv.example"
    assert default_index({}, [tmp_path / "absent"]) is None


def test_a_named_index_without_an_address_says_which_variable_to_set():
    with pytest.raises(InputError, match="not known to this machine") as caught:
        index_addresses([Index(name="pytorch-cu130", holds="builds of torch")], {})
    assert caught.value.details == [
        "BLACKWELL_STACKS_INDEX_PYTORCH_CU130=<address of a simple index with builds of torch>"
    ]
    environment = {
        variable_of("pytorch-cu130"): "https://x.example/whl",
        "UV_DEFAULT_INDEX": "http://127.0.0.1:1/s",
    }
    addresses = index_addresses([Index(name="pytorch-cu130", holds="builds of torch")], environment)
    assert uv_index_variables(addresses) == {
        "UV_DEFAULT_INDEX": "http://127.0.0.1:1/s",
        "UV_INDEX": "pytorch-cu130=https://x.example/whl",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert on_loopback(addresses)
    assert not on_loopback({"default": "https://x.example"})
