"""A stack without a lock, since its wheels are on indexes unknown to this machine: all commands say so."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tooling.archgates.judge import load_review
from tooling.cli import app
from tooling.errors import InputError
from tooling.lock.resolve import compile_argv, read_lock, write_inputs
from tooling.patches.series import load_series
from tooling.release.names import parse_release_name, release_name
from tooling.stack import load_stack, stack_names

ROOT = Path(__file__).resolve().parents[2]
UNLOCKED = [name for name in stack_names(ROOT) if not load_stack(name, ROOT).lock_path.is_file()]
NAME = "cu130-0.5.9"
VARIABLES = ("BLACKWELL_STACKS_INDEX_TORCH_CU130", "BLACKWELL_STACKS_INDEX_SGL_KERNEL_CU130")


@pytest.fixture(autouse=True)
def _no_index_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLACKWELL_STACKS_ROOT", str(ROOT))
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_only_a_stack_with_indexes_of_its_own_may_be_without_a_lock():
    assert NAME in UNLOCKED
    for name in UNLOCKED:
        file = load_stack(name, ROOT)
        assert file.stack.lock.indexes
        assert "source-qualified" in file.stack.description
        with pytest.raises(InputError, match="has no lock"):
            read_lock(file, ROOT)


@pytest.mark.parametrize("command", [["lock"], ["build"], ["inspect"], ["verify-stack"]])
def test_every_command_that_needs_the_wheels_names_the_variables_and_what_they_must_serve(
    command: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tooling.commands.inspect.ensure_engine", lambda _: None)
    done = CliRunner().invoke(app, [*command, NAME])
    assert isinstance(done.exception, InputError), done.exception
    assert [line.partition("=")[0] for line in done.exception.details] == list(VARIABLES)
    text = str(done.exception)
    assert "CUDA 13.0 builds of torch 2.9.1" in text
    assert "CUDA 13.0 build of sgl-kernel 0.3.21" in text
    assert "export" in done.exception.fix


def test_one_unknown_index_of_two_is_named_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLES[0], "https://torch.example/whl")
    done = CliRunner().invoke(app, ["lock", NAME])
    assert isinstance(done.exception, InputError)
    assert [line.partition("=")[0] for line in done.exception.details] == [VARIABLES[1]]
    assert "torch.example" not in str(done.exception)


def test_the_resolver_is_told_to_take_the_overridden_versions(tmp_path: Path):
    stack = load_stack(NAME, ROOT).stack
    write_inputs(stack, tmp_path)
    overrides = (tmp_path / "overrides.txt").read_text().splitlines()
    assert "flashinfer-python==0.6.4" in overrides
    assert "flashinfer-cubin ; sys_platform == 'never'" in overrides
    assert "torch==2.9.1+cu130" in (tmp_path / "requirements.in").read_text().splitlines()
    assert "--overrides" in compile_argv(stack, tmp_path, "uv")


def test_its_series_and_reviews_are_those_of_the_versions_that_it_pins():
    stack = load_stack(NAME, ROOT).stack
    assert stack.pins["flashinfer-python"] == "0.6.4"
    for one in stack.patches:
        series = load_series(one.series)
        assert stack.pins[series.package] == series.version
        assert load_review(series.package, series.version) is not None


def test_its_name_survives_the_name_of_a_release():
    parsed = parse_release_name(release_name(NAME, "0.5.9", datetime(2026, 11, 30, tzinfo=UTC), "a" * 64))
    assert parsed is not None
    assert (parsed.stack, parsed.engine_version) == (NAME, "0.5.9")


def test_the_front_door_lists_its_sessions():
    listed = subprocess.run(
        [sys.executable, "-m", "nox", "--list", "-f", str(ROOT / "noxfile.py")],
        check=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    for verb in ("lock", "build", "inspect", "verify", "release", "patches", "probe"):
        assert f"{verb}-{NAME} ->" in listed.stdout
