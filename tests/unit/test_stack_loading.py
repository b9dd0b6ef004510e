from pathlib import Path

import pytest
import yaml

from tooling.errors import InputError
from tooling.stack.loading import load_stack, parse_stack

ROOT = Path(__file__).resolve().parents[2]
TEXT = """\
name: tiny
description: a stack for these tests
platform: {glibc: "2.36", python: "3.11"}
engine: {name: none, package: hello, version: 1.0.0}
base:
  bootstrap: {suite: bookworm, packages: [python3.11]}
layers:
  - name: all
serve: {command: [python], port: 8000}
budget: {build_disk_gb: 1}
"""


def _error(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_stack(text, Path("stacks/tiny.yaml"))
    return caught.value


def test_a_good_stack_is_read():
    stack = parse_stack(TEXT, Path("stacks/tiny.yaml"))
    assert stack.requirements == ("hello==1.0.0",)
    assert stack.budget.layer_gb == 2.0


@pytest.mark.parametrize("path", sorted((ROOT / "stacks").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_stack_of_the_checkout_is_read(path):
    assert load_stack(path.stem, ROOT).stack.name == path.stem


def test_an_unknown_field_names_file_line_and_the_nearest_name():
    error = _error(TEXT.replace("layers:", "patchs: []\nlayers:"))
    assert error.what == "unknown field 'patchs'"
    assert error.where == "stacks/tiny.yaml:7"
    assert "did you mean 'patches'?" in error.fix
    assert "budget" in error.fix


def test_an_unknown_field_inside_a_list_is_held_against_the_record_of_the_list():
    error = _error(TEXT.replace("- name: all", "- name: all\n    pakages: [x]"))
    assert (error.what, error.where) == ("unknown field 'layers.0.pakages'", "stacks/tiny.yaml:9")
    assert "did you mean 'packages'?" in error.fix


def test_a_number_where_a_version_belongs_is_told_to_be_quoted():
    error = _error(TEXT.replace('"3.11"', "3.10"))
    assert error.fix == 'quote it: "3.1"'
    assert "platform.python" in error.what


def test_a_missing_field_is_named():
    error = _error(TEXT.replace("budget: {build_disk_gb: 1}\n", ""))
    assert error.what == "field 'budget' is missing"


def test_all_problems_are_told_at_once():
    error = _error(TEXT.replace("layers:", "patchs: []\nlayers:").replace("port: 8000", "port: 0"))
    assert "serve.port" in str(error)
    assert "patchs" in str(error)


def test_a_base_by_tag_is_refused():
    base = "base:\n  image: python:3.11"
    error = _error(TEXT.replace("base:\n  bootstrap: {suite: bookworm, packages: [python3.11]}", base))
    assert "a tag can be moved" in error.what
    assert error.where == "stacks/tiny.yaml:6"


def test_a_base_by_digest_is_taken():
    base = f"base:\n  image: python@sha256:{'a' * 64}"
    text = TEXT.replace("base:\n  bootstrap: {suite: bookworm, packages: [python3.11]}", base)
    assert parse_stack(text, Path("x")).base.image == f"python@sha256:{'a' * 64}"


def test_two_bases_are_refused():
    error = _error(TEXT.replace("layers:", f"  image: python@sha256:{'a' * 64}\nlayers:"))
    assert "exactly one of bootstrap and image" in error.what


def test_a_field_that_stands_twice_is_refused():
    error = _error(TEXT + "budget: {build_disk_gb: 2}\n")
    assert (error.what, error.where) == ("field 'budget' stands twice", "stacks/tiny.yaml:11")


def test_broken_yaml_names_its_line():
    error = _error(TEXT + "x: [1\n")
    assert error.what.startswith("not valid YAML")
    assert error.where.startswith("stacks/tiny.yaml:1")


def test_an_empty_file_is_refused():
    assert _error("").what == "the stack file is empty"


def test_a_secret_in_the_environment_is_refused():
    assert "looks like a secret" in _error(TEXT + "environment: {HF_TOKEN: abc}\n").what


def test_cuda_without_targets_is_refused():
    assert "belong together" in _error(TEXT + 'cuda: "13.0"\n').what


def test_only_the_last_layer_takes_the_rest():
    error = _error(TEXT.replace("- name: all", "- name: all\n  - name: more"))
    assert "only the last layer takes the rest" in error.what


def test_an_unknown_stack_names_the_nearest(tmp_path):
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "cu130.yaml").write_text(TEXT)
    with pytest.raises(InputError, match="did you mean cu130"):
        load_stack("cu13", tmp_path)


def test_a_stack_must_carry_the_name_of_its_file(tmp_path):
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "other.yaml").write_text(TEXT)
    with pytest.raises(InputError, match="calls itself 'tiny'"):
        load_stack("other", tmp_path)


def test_yaml_of_the_checkout_has_no_version_twice():
    text = yaml.safe_load((ROOT / "stacks" / "cu130.yaml").read_text())
    version = text["engine"]["version"]
    # The name of a patch series holds the version that it is for; a build refuses any other.
    lines = (ROOT / "stacks" / "cu130.yaml").read_text().splitlines()
    assert sum(version in line for line in lines if "series:" not in line) == 1
