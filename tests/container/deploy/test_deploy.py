"""From a release to a host and back, over a real sshd, from a real registry, on a real engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tooling.deploy.inventory import LOOPBACK

if TYPE_CHECKING:
    from pathlib import Path

    from tests.container.deploy.conftest import Box

pytestmark = pytest.mark.container
_LIMIT_S = 120


def shape(inspected: dict[str, Any]) -> dict[str, Any]:
    """What a run contract decides of a container."""
    host, config = inspected["HostConfig"], inspected["Config"]
    return {
        "image": inspected["Image"],
        "arguments": config["Cmd"],
        "environment": sorted(config["Env"]),
        "user": config["User"],
        "grace": config["StopTimeout"],
        "scraped": {key: value for key, value in config["Labels"].items() if key.startswith("prometheus")},
        "mounts": sorted((one["Source"], one["Destination"], one["RW"]) for one in inspected["Mounts"]),
        "ports": host["PortBindings"],
        "restart": host["RestartPolicy"]["Name"],
        "init": host["Init"],
        "log": host["LogConfig"],
        "shm": host["ShmSize"],
    }


def test_there_and_back_with_all_that_belongs_to_a_generation(box: Box):
    first, second = box.release("one"), box.release("two")
    box.host["workload"]["environment"] = {"COLOUR": "red"}
    done = box.deploy(first.name, "--argument=--level=1")
    assert done.code == 0, done.err
    assert done.json["steps"][0]["state"] == "done"
    assert done.json["digest"] == first.verification.digest
    assert "host program" in done.err
    assert box.served_version() == "one"
    before = shape(box.inspect())
    assert before["arguments"][-1] == "--level=1"
    assert before["environment"].count("COLOUR=red") == 1
    assert before["restart"] == "unless-stopped"
    assert before["ports"] == {"8000/tcp": [{"HostIp": LOOPBACK, "HostPort": str(box.port)}]}
    assert before["scraped"]["prometheus.io/port"] == "8000"

    box.host["workload"]["environment"] = {}
    assert box.deploy(second.name).code == 0
    assert box.served_version() == "two"
    assert shape(box.inspect()) != before
    status = box.status()
    assert (status["current"]["release"], status["faults"]) == (second.name, [])
    assert box.inspect()["Image"] == status["current"]["image"]

    assert box.run("rollback", "--json").code == 0
    assert box.served_version() == "one"
    assert shape(box.inspect()) == before
    again = box.run("rollback")  # is no toggle
    assert again.code == 0
    assert "serves already" in again.out
    (row,) = box.run("history", "--json").json
    assert [line["action"] for line in row["answer"]["history"]] == ["deploy", "deploy", "rollback"]
    assert "answers" in box.run("status").out
    assert "rollback" in box.run("history").out


def test_a_bad_release_ends_the_rollout_and_the_old_one_serves(box: Box):
    good, bad = box.release("good"), box.release("bad", fault="wrong-answers")
    assert box.deploy(good.name).code == 0
    box.host["groups"].append({"name": f"{box.group}-b", "port": box.port + 1})
    done = box.deploy(bad.name)
    assert done.code == 1
    states = [(step["group"], step["state"]) for step in done.json["steps"]]
    assert states == [(box.group, "failed"), (f"{box.group}-b", "not begun")]
    assert "answers are wrong" in done.json["steps"][0]["message"]
    assert box.served_version() == "good"
    assert "Traceback" not in done.err


def test_a_dry_run_looks_and_prints_and_changes_nothing(box: Box, hub_cache: Path):
    release = box.release("one")
    revision = "0123456789abcdef0123456789abcdef01234567"
    box.host["model_cache"] = str(hub_cache)
    box.host["workload"]["model"] = {"id": "org/stand-in", "revision": revision}
    done = box.deploy(release.name, "--dry-run")
    assert done.code == 0, str(done.error)
    install, operate, create = done.json
    assert install[:3] == ["ssh", "-F", str(box.ssh.config)]
    assert install[-2] == "here"
    assert "sha256sum --check" in install[-1]
    assert operate[-1].endswith(f"--group {box.group} --json deploy")
    home = f"{hub_cache}/hub/models--org--stand-in"
    assert f"type=bind,source={home},target=/models/models--org--stand-in,readonly" in create
    assert f"/models/models--org--stand-in/snapshots/{revision}" in create
    assert not (box.folder / "state").exists()
    box.host["workload"]["model"]["revision"] = "f" * 40
    refused = box.deploy(release.name)
    assert refused.code == 1
    assert "is not usable" in str(refused.error)
    assert f"there are revisions: {revision[:12]}" in str(refused.error)
    assert not (box.folder / "state").exists()


def test_every_host_is_looked_at_before_the_first_is_touched(box: Box):
    release = box.release("one")
    box.more.append({"name": "gone", "ssh": "nobody@127.0.0.1"})
    config = box.ssh.variant("with-gone", "Host here\n", "Host 127.0.0.1\n Port 1\nHost here\n")
    done = box.run("deploy", release.name, config=config)
    assert done.code == 1
    assert getattr(done.error, "fault", "") == "ssh-unreachable"
    assert not (box.folder / "state").exists()
    listed = box.run("status", config=config)
    assert listed.code == 1
    assert "nothing was deployed" in listed.out
    assert "cannot be reached" in listed.out


def _operator(box: Box, release: str) -> subprocess.Popen[str]:
    words = ["deploy", release, "--inventory", str(box.write()), "--trust", str(box.trust)]
    return subprocess.Popen(
        [sys.executable, "-m", "tooling", *words, "--ssh-config", str(box.ssh.config), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def _until(child: subprocess.Popen[str], words: str) -> str:
    assert child.stderr is not None
    heard = ""
    for line in child.stderr:
        heard += line
        if words in line:
            return heard
    raise AssertionError(heard)


def _ssh_of(parent: int) -> int:
    """The ssh client that an operator runs."""
    done = subprocess.run(
        ["ps", "--ppid", str(parent), "-o", "pid=,comm="], capture_output=True, text=True, check=True
    )
    (pid,) = (int(line.split()[0]) for line in done.stdout.splitlines() if line.split()[1] == "ssh")
    return pid


def test_a_line_that_is_cut_in_the_swap_and_an_operator_who_vanishes(box: Box):
    first, second = box.release("one", load_s=2), box.release("two", load_s=2)
    child = _operator(box, first.name)
    _until(child, " start ... ")
    os.kill(_ssh_of(child.pid), signal.SIGKILL)
    out, err = child.communicate(timeout=_LIMIT_S)
    assert child.returncode == 0, err
    assert '"state": "done"' in out
    assert err.count(" commit done ") == 1
    assert box.served_version() == "one"

    child = _operator(box, second.name)
    _until(child, " start ... ")
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    end = time.monotonic() + _LIMIT_S
    while box.status()["busy"]:
        assert time.monotonic() < end
        time.sleep(0.2)
    assert box.served_version() == "two"
    assert box.status()["current"]["release"] == second.name


def test_two_operators_at_once(box: Box):
    first = box.release("one", load_s=3)
    child = _operator(box, first.name)
    _until(child, " start ... ")
    other = box.run("rollback")
    assert other.code == 3
    assert "another" in str(other.error)
    assert child.wait(_LIMIT_S) == 0
    child.communicate()
