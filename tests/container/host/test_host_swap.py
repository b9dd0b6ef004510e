"""Swaps on a real engine: good and bad releases, what is in flight, who is in the way, and the way back."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest

if TYPE_CHECKING:
    from tests.container.host.deck import Deck, Image, Line

pytestmark = pytest.mark.container


def fault(name: str) -> dict[str, Any]:
    """Changes that make a stand-in faulty."""
    return {"contract__environment": {"STAND_IN_FAULT": name}}


def test_a_good_release_and_back_and_not_a_toggle(served: Line, v2: Image):
    run = served.deploy(v2)
    assert run.code == 0, run.said
    assert run.result["result"]["serving"] == 2
    served.assert_right("v2")
    # The same again is nothing to do.
    again = served.deploy(v2)
    assert (again.code, again.result["result"]["changed"]) == (0, False)
    before = served.inspect()
    back = served.run("rollback")
    assert (back.code, back.result["result"]["serving"]) == (0, 1)
    served.assert_right("v1")
    twice = served.run("rollback")
    assert (twice.code, twice.result["result"]["changed"]) == (0, False)
    served.assert_right("v1")
    forth = served.run("rollback", "2")
    assert forth.code == 0, forth.said
    served.assert_right("v2")
    after = served.inspect()
    for part in ("Image", "Config", "HostConfig", "Mounts"):
        assert after[part] == before[part], part
    assert served.actions() == ["deploy", "deploy", "rollback", "rollback"]
    code, found = served.read("doctor")
    target = next(one for one in found["checks"] if one["check"] == "rollback-target")
    assert (code, target["ok"], target["warning"]) == (0, True, False)
    assert "generation 1, is present and pinned" in target["seen"]


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("crash", "exit code 3"),
        pytest.param(
            "unhealthy", "no answer within 3 s; last seen: /v1/models answers HTTP 503", marks=pytest.mark.long
        ),
        pytest.param("slow", "no answer within 3 s", marks=pytest.mark.long),
        ("wrong-answers", "'391' was expected, '319' came"),
        ("nan", "log-probabilities are not finite (nan)"),
        pytest.param("null-logprobs", "log-probabilities are not finite (None)", marks=pytest.mark.long),
        pytest.param("empty", "completions in a row had no text", marks=pytest.mark.long),
    ],
)
def test_a_bad_release_gives_way_to_the_old_one(failing: Line, v2: Image, name: str, seen: str):
    # The crash is seen at once, or this would outlast the test's own limit.
    limit = 3 if name in ("unhealthy", "slow") else 10_000
    run = failing.deploy(v2, **fault(name), health__ready_timeout_seconds=limit, release=f"stand-in-{name}")
    assert run.code == 1, run.said
    assert seen in run.said
    assert run.result["error"]["serving"] == 1
    failing.assert_right("v1")
    log = run.result["result"]["log"]
    with open(log, encoding="utf-8") as file:  # noqa: PTH123
        assert "loading version v2" in file.read()
    # The failed container stays as evidence, and cannot come back by itself.
    failed = json.loads(
        failing.deck.engine.docker("inspect", f"blackwell-{failing.group}-g{failing.newest():04d}")
    )[0]
    assert not failed["State"]["Running"]
    assert failed["HostConfig"]["RestartPolicy"]["Name"] == "no"
    assert failing.actions()[-1] == "reverted"
    refused = failing.run("rollback", str(failing.newest()))
    assert refused.code == 2
    assert "never served" in refused.said


@pytest.fixture(scope="module")
def failing(new_line, v1: Image):
    """A group that sees one failure after the other."""
    line = new_line()
    run = line.deploy(v1)
    assert run.code == 0, run.said
    yield line
    line.clear()


@pytest.mark.long
def test_a_first_release_that_fails_leaves_nothing_running(line: Line, v1: Image, v2: Image):
    run = line.deploy(v1, **fault("crash"))
    assert run.code == 1, run.said
    assert line.running() == []
    assert line.current() == 0
    assert line.deploy(v2).code == 0
    line.assert_right("v2")
    # The failed first one is no generation to go back to.
    assert line.run("rollback").code == 2


def test_streams_end_with_their_end_mark(served: Line, v2: Image):
    text: list[str] = []
    stream = threading.Thread(target=lambda: text.append(read_stream(served, 6)))
    stream.start()
    time.sleep(0.5)
    run = served.deploy(v2, contract__stop_grace_seconds=1)
    assert run.code == 0, run.said
    stream.join()
    assert text[0].endswith("data: [DONE]\n\n")
    assert not served.await_step("stop", "done")["data"]["cut"]
    # A grace that is too short cuts, and the host says so: a client that looks at its exit code would not.
    stream = threading.Thread(target=lambda: text.append(read_stream(served, 120)))
    stream.start()
    time.sleep(0.5)
    back = served.run("rollback")
    assert back.code == 0, back.said
    stream.join()
    assert "[DONE]" not in text[1]
    assert served.await_step("stop", "done")["data"]["cut"]
    assert "streams were cut" in back.said


def read_stream(line: Line, seconds: float) -> str:
    """What a client gets of a stream, to whatever end."""
    body = json.dumps({"stream": True, "seconds": seconds}).encode()
    url = f"http://127.0.0.1:{line.port}/v1/chat/completions"
    try:
        with urlopen(Request(url, body), timeout=200) as response:
            return str(response.read().decode())
    except OSError as error:
        return str(error)


def test_a_stranger_on_the_gpu_is_named_and_left_alone(served: Line, v2: Image):
    path = served.deck.gpus / f"gpu{served.gpu}"
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'r+'); print('waits', flush=True)\n"
    code += "fcntl.flock(f, fcntl.LOCK_EX); print('has', flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    ) as stranger:
        try:
            # It gets the GPU in the very moment in which the old stack lets go of it.
            run = served.deploy(v2, contract__gpu_release_seconds=1)
            assert run.code == 4, run.said
            assert f"by process {stranger.pid}" in run.said
            assert "NOTHING SERVES" in run.said
            assert stranger.poll() is None
            # With the stranger there from the start, nothing is stopped at all.
            refused = served.deploy(v2)
            assert refused.code == 1, refused.said
            assert f"process {stranger.pid}, which is not ours" in refused.said
        finally:
            stranger.kill()
    assert served.run("reconcile").code == 0
    served.assert_right("v1")


def test_what_the_host_lacks_is_said_before_the_outage(served: Line):
    never = served.deck.image("never")
    started = served.inspect()["State"]["StartedAt"]
    for changes, seen in (
        ({"requirements": {"driver_minimum": "999.1", "target": "sm_120"}}, "older than 999.1"),
        ({"requirements": {"target": "sm_100"}}, "compute capability 12.0"),
        ({"requirements": {"platform": "linux/arm64"}}, "the image is for linux/arm64"),
        ({"sizes": {"compressed": 10**15, "unpacked": 10**15}}, "of free disk"),
        ({"contract__gpus": ["99"]}, "GPU 99 is not on this host"),
        ({"model": {"id": "org/m", "revision": "abc", "path": "/nowhere/abc"}}, "is not on this host"),
        ({"contract__ports": [{"address": "127.0.0.1", "host": registry_port(served.deck), "container": 8000}]},
         "cannot be published"),
        ({"image_id": "sha256:" + "0" * 64}, "the image here is"),
        ({"pull": "present", **no_such_image(never)}, "without a registry"),
        (no_such_image(never), "no such image"),
    ):  # fmt: skip
        run = served.deploy(never, **changes)
        assert run.code in (1, 2), run.said
        assert seen in run.said
        assert served.actions()[-1] == "refused"
    assert served.inspect()["State"]["StartedAt"] == started
    served.assert_right("v1")


def registry_port(deck: Deck) -> int:
    return int(deck.registry.host.rpartition(":")[2])


def no_such_image(like: Image) -> dict[str, Any]:
    digest = "sha256:" + "0" * 64
    return {"reference": like.reference.replace(like.digest, digest), "digest": digest, "image_id": digest}


@pytest.mark.long
def test_an_older_driver_keeps_the_rollback_from_its_outage(served: Line, v2: Image):
    needs: dict[str, Any] = {"requirements": {"driver_minimum": "570.1", "target": "sm_120"}}
    assert served.deploy(v2, **needs).code == 0
    driver = served.deck.gpus / "driver"
    before = driver.read_text()
    driver.write_text("575.51\n")  # v1 needs 580.65.06
    try:
        run = served.run("rollback")
    finally:
        driver.write_text(before)
    assert run.code == 1
    assert "driver 575.51 is older than 580.65.06" in run.said
    served.assert_right("v2")


def test_the_operator_vanishes_and_the_swap_goes_on(served: Line, v2: Image):
    with served.deploy_in_background(v2) as operator:
        served.await_step("stop")
        operator.send_signal(signal.SIGKILL)
    # Another one finds it running, looks on, and is told the end.
    busy = served.deploy(v2)
    assert busy.code == 3, busy.said
    assert "another operation is running" in busy.said
    # The refused one is the latest; the swap's own events are followed by its id.
    swaps = [
        path.name
        for path in served.state.glob("operations/*")
        if '"stop"' in (path / "events.jsonl").read_text()
    ]
    followed = served.run("follow", swaps[0])
    assert followed.code == 0, followed.said
    served.assert_right("v2")


@pytest.mark.long
def test_a_swap_waits_for_its_confirmation(served: Line, v2: Image):
    for answer, code, serves in ((["--reject"], 1, "v1"), ([], 0, "v2")):
        with served.deploy_in_background(v2, confirm_seconds=250) as operator:
            waiting = served.await_step("confirm")
            assert served.current() == 1
            assert served.read_code("confirm", waiting["operation"], *answer) == 0
            assert operator.wait() == code
        served.assert_right(serves)
    timed_out = served.deploy(v2, confirm_seconds=0.1, release="unconfirmed")
    assert timed_out.code == 1
    assert "nobody confirmed" in timed_out.said
    served.assert_right("v2")


@pytest.mark.long
def test_a_stopped_stack_stays_stopped_until_it_is_wanted(served: Line, v2: Image):
    assert served.run("stop").code == 0
    assert served.running() == []
    assert served.run("reconcile").code == 0
    assert served.running() == []
    assert served.run("stop").result["result"]["changed"] is False
    # A release that fails leaves it stopped, as it was.
    assert served.deploy(v2, **fault("crash")).code == 1
    assert served.running() == []
    assert served.run("start").code == 0
    served.assert_right("v1")


@pytest.mark.long
def test_another_container_of_the_same_name_is_no_rollback(served: Line, v2: Image):
    assert served.deploy(v2).code == 0
    engine, name = served.deck.engine, f"blackwell-{served.group}-g0001"
    image = json.loads(engine.docker("inspect", name))[0]["Image"]
    engine.docker("rm", name)
    engine.docker("create", "--name", name, "--user", "0", image)  # the image is right, all else is missing
    assert served.run("rollback").code == 0
    served.assert_right("v1")
    assert served.inspect()["HostConfig"]["Mounts"]


def test_a_damaged_state_stops_the_program_and_not_the_stack(served: Line, v2: Image):
    path = served.state / "current"
    good = path.read_bytes()
    path.write_bytes(good[:-40])
    for command in (["rollback"], ["reconcile"], ["status"], ["stop"]):
        run = served.run(*command)
        assert run.code == 5, run.said
        assert "repair GENERATION" in run.stderr + run.said
    assert served.deploy(v2).code == 5
    assert served.version() == "v1"
    path.unlink()
    repaired = served.run("repair", "1")
    assert repaired.code == 0, repaired.said
    served.assert_right("v1")


@pytest.mark.long
def test_a_committed_stack_that_no_longer_comes_up_gives_way(served: Line, v2: Image):
    line, broken = served, served.deck.gpus / f"break{served.gpu}"
    environment = {"STAND_IN_FAULT": "breaks", "STAND_IN_BREAK": f"/gpus/{broken.name}"}
    assert line.deploy(v2, contract__environment=environment).code == 0
    broken.touch()
    line.deck.engine.docker("kill", f"blackwell-{line.group}-g0002")
    run = line.run("reconcile")
    assert run.code == 0, run.said
    assert run.result["result"]["fallback_from"] == 2
    assert run.said.count("exit code 4") >= 3  # so often it was tried
    line.assert_right("v1")
    assert line.actions()[-1] == "fallback"
    assert line.run("rollback").result["result"]["changed"] is False  # back is where it is
    # When that one is broken too, it is said loudly.
    environment["STAND_IN_BREAK"] = f"/gpus/{broken.name}"
    line.deck.engine.docker("kill", f"blackwell-{line.group}-g0001")
    with (line.deck.gpus / f"gpu{line.gpu}").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        dark = line.run("reconcile")
        assert dark.code == 4, dark.said
        assert str(os.getpid()) in dark.said
    assert line.run("reconcile").code == 0
    line.assert_right("v1")


@pytest.mark.long
def test_two_groups_keep_apart(served: Line, v1: Image, new_line):
    other = new_line()
    try:
        for name, value, seen in (
            ("contract__gpus", [str(served.gpu)], "belongs to group"),
            ("contract__ports", [{"address": "", "host": served.port, "container": 8000}], "belongs to group"),
        ):
            run = other.deploy(v1, **{name: value})
            assert run.code == 2, run.said
            assert seen in run.said
        assert other.deploy(v1).code == 0
        # One group goes down and comes back, the other serves on.
        started = served.inspect()["State"]["StartedAt"]
        assert other.run("stop").code == 0
        assert other.run("start").code == 0
        assert served.inspect()["State"]["StartedAt"] == started
        # What runs at boot takes all groups at once.
        boot = subprocess.run(
            [sys.executable, str(served.deck.program), "--root", str(served.root), "reconcile"],
            env=served.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert boot.returncode == 0, boot.stdout + boot.stderr
        other.assert_right("v1")
        served.assert_right("v1")
    finally:
        other.clear()
