"""Command lines of doctor, probe and fit."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tooling.cli import app
from tooling.errors import InputError
from tooling.probe.collect import probe_command, run_probe, ssh_command, with_host_facts

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


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A client that grants no locked memory, says a line, and goes on only when somebody has read it."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    heard = tmp_path / "heard"
    program.write_text(f"""#!/bin/sh
echo "$@" >> {tmp_path}/asked
case "$*" in *memlock*) echo "docker: error setting rlimit type 8: operation not permitted" >&2; exit 126;; esac
echo "memory: none handles" >&2
while [ ! -e {heard} ]; do sleep 0.02; done
echo '{{"rungs": []}}'
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return tmp_path


def test_progress_comes_while_the_probe_runs_and_a_limit_that_cannot_be_lifted_is_said(docker: Path):
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("memory"):
            (docker / "heard").touch()

    assert json.loads(run_probe("image@sha256:0", [], say)) == {"rungs": []}
    assert any("cannot lift the limit of locked memory" in line for line in said)
    first, second = (docker / "asked").read_text().splitlines()
    assert first.replace("--ulimit memlock=-1 ", "") == second
    assert "--ulimit stack=67108864" in second


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
    outside["system"]["container"] = "lxc"
    merged = json.loads(with_host_facts(json.dumps(inside), json.dumps(outside)))
    assert merged["host"]["kernel_log"]["readable"]
    assert merged["host"]["engine"]["docker"]["Version"] == "29.1.0"
    assert merged["host"]["system"]["outer_container"] == "lxc"


def test_the_table_of_a_simulation_says_so(tmp_path: Path):
    document = json.loads((DATA / "h200.json").read_text())
    file = tmp_path / "simulated.json"
    file.write_text(json.dumps({**document, "simulated": True}))
    done = CliRunner().invoke(app, ["probe", "--from", str(file)])
    assert "SIMULATION" in done.stdout
    assert "simulation: true" in done.stdout
    assert "SIMULATION" not in CliRunner().invoke(app, ["probe", "--from", str(DATA / "h200.json")]).stdout
