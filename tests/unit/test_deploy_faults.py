"""What hosts say, and what it means: every wording in the data, the field cases, rules on Docker facts."""

from pathlib import Path

import pytest
import yaml

from tooling.deploy.faults import (
    Exit,
    diagnose,
    fault_kinds,
    host_fault,
    image_advice,
    restart_advice,
)
from tooling.deploy.recorded import judge_host
from tooling.gates.records import Verdict

CASES = Path(__file__).resolve().parents[1] / "cases"
KINDS = fault_kinds()


def _case(name: str) -> str:
    return str(yaml.safe_load((CASES / f"{name}.yaml").read_text())["input"]["text"])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.id)
def test_every_wording_names_its_own_cause_first(kind):
    for words in kind.says:
        found = diagnose(words)
        assert found, words
        assert found[0].id == kind.id, words
        assert "{" not in found[0].what
    for words in kind.not_:
        assert kind.id not in {each.id for each in diagnose(words)}, words


def test_ids_are_unique():
    assert len({kind.id for kind in KINDS}) == len(KINDS)


def test_words_of_nobody_are_shown_and_not_guessed_at():
    error = host_fault("box", 3, "the flux capacitor is empty\n")
    assert error.fault == "unknown"
    assert error.details == ["the flux capacitor is empty"]
    assert "exit code 3" in error.what


def test_docker_29_refuses_an_old_client():
    (found,) = diagnose(_case("host-docker-29-refuses-old-clients"))
    assert (found.id, found.verdict) == ("engine-refuses-client", "refuse")
    assert "1.43" in found.what
    assert "1.44" in found.what
    assert "untouched" in found.what


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("client version 1.40 is too old. Minimum supported API version is 1.44", ("1.40", "1.44")),
        (
            "client version 1.22 is too old. Minimum supported API version is 1.24, please upgrade",
            ("1.22", "1.24"),
        ),
    ],
)
def test_other_versions_are_told_as_they_are(words, numbers):
    (found,) = diagnose(words)
    assert found.id == "engine-refuses-client"
    assert all(number in found.what for number in numbers)


def test_a_zombie_is_not_a_stop():
    found = diagnose(_case("deploy-pid1-zombie-on-restart"))
    assert found[0].id == "pid1-zombie"
    assert found[0].verdict == "fail"
    assert "do not start the new one" in found[0].fix


def test_a_docker_socket_that_refuses_is_no_ssh_login_that_is_refused():
    words = "Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"
    assert [each.id for each in diagnose(words)] == ["docker-permission"]
    assert [each.id for each in diagnose("root@box: Permission denied (publickey).")] == ["ssh-login-refused"]


def test_a_host_without_a_banner_is_not_merely_unreachable():
    assert diagnose("Connection timed out during banner exchange")[0].id == "ssh-no-banner"
    assert diagnose("ssh: connect to host x port 22: Connection timed out")[0].id == "ssh-unreachable"


def test_a_restart_loop_stops_at_its_first_failure():
    exits = [Exit(code=1)] * 35
    found = restart_advice(exits, policy="unless-stopped", unified_memory=True)
    assert found is not None
    assert found.id == "restart-loop"
    assert "35 times" in found.what
    assert "MemAvailable" in found.fix
    once = restart_advice(exits[:1], policy="no", unified_memory=False)
    assert once is not None
    assert once.id == "failed-start"
    assert "MemAvailable" not in once.fix


@pytest.mark.parametrize("exits", [[], [Exit(code=0)], [Exit(code=137, serving=True)]])
def test_an_engine_that_served_or_ended_well_did_not_fail_to_start(exits):
    assert restart_advice(exits, policy="unless-stopped", unified_memory=True) is None


@pytest.mark.parametrize(
    ("name", "cause", "words"),
    [
        ("deploy-pid1-zombie-on-restart", "pid1-zombie", "do not start the new one"),
        ("deploy-restart-loop-damages-host", "restart-loop", "stop after the first such end"),
        ("deploy-same-tag-older-image", "other-image-runs", "deploy by digest"),
        ("host-docker-29-refuses-old-clients", "engine-refuses-client", "negotiates"),
        ("boot-cannot-execute-binary-same-arch", "command-repeats-entry-point", "drop the leading shell"),
        ("boot-exec-format-error-loop", "wrong-architecture", "restart only repeats it"),
    ],
)
def test_the_cases_of_the_field(name, cause, words):
    checks = judge_host(_case(name))
    assert cause in [check.name for check in checks]
    (mine,) = (check for check in checks if check.name == cause)
    assert mine.verdict is Verdict.FAIL
    assert words in " ".join(mine.details)


@pytest.mark.parametrize(
    "text",
    [
        "10:00:00 container die abc (exitCode=1, image=x)\ncontainer start\ncontainer die (exitCode=1)",
        "CONTAINER  STATUS\nengine  Restarting (137) 2 seconds ago, restart: always",
    ],
)
def test_loops_in_other_words(text):
    assert [check.name for check in judge_host(text)] == ["restart-loop"]


def test_the_same_digest_everywhere_is_no_finding():
    same = "registry :1 -> sha256:aa\nrunning container -> sha256:aa"
    (check,) = judge_host(same)
    assert check.verdict is Verdict.INCONCLUSIVE
    (other,) = judge_host("the release wants sha256:bb\nimage in use: sha256:aa")
    assert other.name == "other-image-runs"


@pytest.mark.parametrize("text", ["", "all is well", "container die exitCode=0"])
def test_words_that_say_nothing_prove_nothing(text):
    assert [check.verdict for check in judge_host(text)] == [Verdict.INCONCLUSIVE]


OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def test_the_tag_is_right_and_the_image_is_the_old_one():
    found = image_advice(running=OLD, wanted=NEW, registry=NEW, name="app:testing")
    assert found is not None
    assert found.verdict == "fail"
    assert "app:testing names" in found.line
    assert "deploy by digest" in found.fix


def test_a_tag_that_moved_after_the_deploy_is_no_fault_of_the_deploy():
    assert image_advice(running=OLD, wanted=OLD, registry=NEW) is None


@pytest.mark.parametrize(("running", "wanted"), [("", NEW), (OLD, "")])
def test_an_unknown_digest_is_never_taken_for_right(running, wanted):
    found = image_advice(running=running, wanted=wanted)
    assert found is not None
    assert found.id == "image-unknown"
