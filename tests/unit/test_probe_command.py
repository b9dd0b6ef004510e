"""Command lines of doctor, probe and fit."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tooling.cli import app
from tooling.errors import InputError
from tooling.probe.collect import probe_command, ssh_command, with_host_facts

DATA = Path(__file__).parents[1] / "data" / "probe"


def test_the_ssh_command_asks_nothing_and_runs_a_script_from_stdin():
    assert ssh_command("user@host", config=Path("c")) == [
        "ssh", "-F", "c", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-T", "--",
        "user@host", "python3", "-",
    ]  # fmt: skip


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "a;b", "$(x)"])
def test_what_is_no_host_is_refused(host: str):
    with pytest.raises(InputError):
        ssh_command(host)


def test_the_probe_runs_with_all_gpus_and_no_network():
    argv = probe_command("image@sha256:0", ["--workspace-mib", "9"])
    assert argv[:5] == ["docker", "run", "--rm", "--gpus", "all"]
    assert argv[-5:] == ["image@sha256:0", "probe", "--json", "--workspace-mib", "9"]
    assert "--network=none" in argv
    with pytest.raises(InputError):
        probe_command("--privileged")


def test_a_saved_document_is_judged_kept_and_compared(tmp_path: Path):
    kept = tmp_path / "report.json"
    first = CliRunner().invoke(
        app, ["probe", "--from", str(DATA / "h200.json"), "--record", str(kept), "--json"]
    )
    assert first.exit_code == 0
    assert json.loads(first.stdout)["result"]["verdict"] == "PASS"
    again = CliRunner().invoke(app, ["doctor", "--from", str(DATA / "h200.json"), "--last-good", str(kept)])
    assert again.exit_code == 0
    assert "memory: healthy" in again.stdout


def test_what_the_driver_only_grants_ends_with_4():
    done = CliRunner().invoke(app, ["doctor", "--from", str(DATA / "h200-x2-doctor.json")])
    assert done.exit_code == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["doctor", "--from", "/no/such/file"], "cannot be read"),
        (["probe"], "no image to probe with"),
        (["probe", "no-such-stack"], "no-such-stack"),
        (["doctor", "--from", str(DATA / "h200.json"), "--last-good", str(DATA / "h200.json")], "no report"),
        (["fit", "cu130", "--weights-gib", "0", "--from", str(DATA / "h200.json")], "more than 0"),
    ],
)
def test_bad_input_is_one_message(arguments: list[str], message: str):
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)


def test_fit_says_not_with_exit_code_1():
    done = CliRunner().invoke(
        app, ["fit", "cu130", "--weights-gib", "60", "--from", str(DATA / "h200.json"), "--json"]
    )
    assert done.exit_code == 1
    assert json.loads(done.stdout)["verdict"] == "not"


def test_the_host_s_kernel_log_and_engine_complete_the_container_s_view():
    inside = json.loads((DATA / "h200.json").read_text())
    outside = json.loads((DATA / "h200-x2-doctor.json").read_text())
    inside["host"]["kernel_log"] = {"readable": False, "lines": []}
    outside["engine"]["docker"] = {"Version": "29.1.0"}
    merged = json.loads(with_host_facts(json.dumps(inside), json.dumps(outside)))
    assert merged["host"]["kernel_log"]["readable"]
    assert merged["host"]["engine"]["docker"]["Version"] == "29.1.0"


def test_the_table_of_a_simulation_says_so(tmp_path: Path):
    document = json.loads((DATA / "h200.json").read_text())
    file = tmp_path / "simulated.json"
    file.write_text(json.dumps({**document, "simulated": True}))
    done = CliRunner().invoke(app, ["probe", "--from", str(file)])
    assert "SIMULATION" in done.stdout
    assert "simulation: true" in done.stdout
    assert "SIMULATION" not in CliRunner().invoke(app, ["probe", "--from", str(DATA / "h200.json")]).stdout
