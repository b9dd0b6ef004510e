"""The command line of triage."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tooling.cli import app
from tooling.errors import InputError


@pytest.mark.parametrize(
    ("log", "code", "outcome"),
    [
        ("CUDA out of memory\n", 1, "FAIL"),
        ("server_args=ServerArgs(x)\n", 3, "NOT_READY"),
        ("The server is fired up and ready to roll!\n", 0, "OK"),
        ("", 4, "INCONCLUSIVE"),
    ],
)
def test_exit_codes_and_json(log: str, code: int, outcome: str):
    done = CliRunner().invoke(app, ["triage", "-", "--json"], input=log)
    assert done.exit_code == code
    assert json.loads(done.stdout)["outcome"] == outcome


def test_people_get_the_root_cause_first(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text(
        "2026-06-01T12:29:58Z CUDA out of memory\n2026-06-01T12:30:01Z No space left on device [x]\n"
    )
    done = CliRunner().invoke(app, ["triage", str(log), "--since", "2026-06-01T12:30:00Z"])
    assert done.exit_code == 1
    assert done.stdout.startswith("FAIL A disk is full.")
    assert "line 2: 2026-06-01T12:30:01Z No space left on device [x]" in done.stdout
    assert "1 lines of earlier boots" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/none"], "cannot be read"),
        (["-", "--since", "yesterday"], "is no time"),
        (["-", "--device", "tpu"], "unknown device"),
    ],
)
def test_bad_input_is_one_message(arguments: list[str], message: str):
    done = CliRunner().invoke(app, ["triage", *arguments])
    assert isinstance(done.exception, InputError)
    assert message in done.exception.what
