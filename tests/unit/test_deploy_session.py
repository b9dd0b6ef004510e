"""An operation is heard to its end over lines that break; hosts are chosen; what serves is judged."""

import io
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.unit.deploy_examples import GROUP, HOST, WORKLOAD, seen, wanted
from tooling.deploy.channel import Channel
from tooling.deploy.choose import Overrides, choose, host_of, release_image
from tooling.deploy.faults import HostFault
from tooling.deploy.installing import HostProgram, current_program, install_command
from tooling.deploy.inventory import GpuGroup, Host
from tooling.deploy.request import build_request
from tooling.deploy.rollout import swap_problems
from tooling.deploy.session import Event, HostSession, Outcome, WatchEndedError, operation_failed, read_event
from tooling.deploy.view import HostAnswer, history_table, is_well, status_table
from tooling.errors import InputError

REQUEST = build_request(wanted(), HOST, GROUP, WORKLOAD, seen())


def _event(step: str, state: str = "done", **data: object) -> str:
    return json.dumps(
        {"time": "2026-11-29T21:00:00.000", "operation": "op1", "step": step, "state": state, "message": step,
         "data": data}
    )  # fmt: skip


EVENTS = [_event("pull"), _event("start", "start"), _event("result", exit_code=0)]
FAILED = _event("result", "failed", exit_code=4, error={"what": "nothing serves", "where": "x", "fix": "look"})


class Line(Channel):
    """A channel whose connections are scripts, so that each breaks where the test says."""

    def __init__(self, *scripts: str) -> None:
        super().__init__(Host(name="box"))
        self.scripts = list(scripts)
        self.asked: list[list[str]] = []

    def run(self, argv, stdin=b"", *, on_line=None, forward=None, limit_s=None):
        del forward, limit_s
        self.asked.append(list(argv))
        script = self.scripts.pop(0)
        if script == "leave":
            raise KeyboardInterrupt
        # A real child over the local transport; its exit code 255 is what ssh says when a line breaks.
        done = Channel(Host(name="box", transport="local")).run(["sh", "-c", script], stdin, on_line=on_line)
        if done.code == 255:
            raise HostFault("the connection to the host broke off", "box")
        return done


def _say(*lines: str, code: int = 0) -> str:
    return "".join(f"echo {shlex.quote(line)};" for line in lines) + f"exit {code}"


def _operate(line: Line) -> tuple[list[str], Outcome]:
    heard: list[str] = []
    session = HostSession(line, HostProgram(content=b"x"), sleep=lambda _: None)
    outcome = session.operate("numa0", ["deploy"], lambda event: heard.append(event.step))
    return heard, outcome


def test_events_are_heard_once_and_in_order():
    heard, outcome = _operate(Line(_say("Welcome!", *EVENTS)))
    assert heard == ["pull", "start", "result"]
    assert outcome.exit_code == 0
    assert outcome.operation == "op1"


def test_a_line_that_breaks_is_followed_again_without_hearing_anything_twice():
    line = Line(_say(*EVENTS[:1], code=255), _say(code=255), _say(*EVENTS[:2], code=255), _say(*EVENTS))
    heard, outcome = _operate(line)
    assert heard == ["pull", "start", "result"]
    assert outcome.exit_code == 0
    assert line.asked[-1][-2:] == ["follow", "op1"]
    assert line.asked[0][-1] == "deploy"


def test_a_line_that_breaks_before_anything_began_is_not_tried_again():
    line = Line(_say(code=255))
    with pytest.raises(HostFault, match="broke off"):
        _operate(line)
    assert len(line.asked) == 1


def test_an_end_that_nobody_hears_is_no_success():
    line = Line(_say(*EVENTS[:1], code=255), *[_say(code=255)] * 10)
    with pytest.raises(HostFault, match="nobody could hear how the operation ended"):
        _operate(line)
    assert line.scripts == []


def test_a_program_that_ends_without_a_result_is_no_success():
    with pytest.raises(HostFault, match="nobody could hear"):
        _operate(Line(_say(*EVENTS[:1])))


def test_a_program_that_fails_at_once_is_told_with_its_words():
    with pytest.raises(HostFault) as caught:
        _operate(Line("echo 'bash: line 1: python3: command not found' >&2; exit 127"))
    assert caught.value.fault == "no-python"


def test_who_leaves_is_told_that_the_host_goes_on():
    with pytest.raises(WatchEndedError, match="goes on by itself") as caught:
        _operate(Line("leave"))
    assert caught.value.exit_code == 130


def test_the_hosts_exit_code_and_words_are_handed_on():
    _, outcome = _operate(Line(_say(EVENTS[0], FAILED, code=4)))
    assert outcome.exit_code == 4
    error = operation_failed(outcome)
    assert (error.what, error.where, error.exit_code) == ("nothing serves", "box/numa0: x", 4)
    assert any("op1" in line for line in error.details)


@pytest.mark.parametrize("line", ["", "Last login: today", "{", '{"time": 1}', "{}"])
def test_what_is_no_event_is_passed_over(line):
    assert read_event(line) is None
    assert isinstance(read_event(EVENTS[0]), Event)


# --- the host program ---------------------------------------------------------------------------------------


def test_the_program_is_the_same_bytes_and_is_named_by_them():
    program = current_program()
    assert program.sha256 == current_program().sha256
    assert program.path(HOST).endswith(f"/bin/blackwell-host-{program.sha256[:12]}.pyz")


@pytest.fixture
def host(tmp_path) -> Host:
    return Host(name="here", transport="local", root=str(tmp_path / "state"), python=sys.executable)


def test_it_is_installed_whole_or_not_at_all(host, tmp_path):
    program = current_program()
    channel = Channel(host)
    with pytest.raises(HostFault) as caught:
        channel.check(install_command(host, program), program.content[:-1])
    assert "damaged on its way" in caught.value.details[0]
    folder = tmp_path / "state" / "bin"
    assert list(folder.iterdir()) == []
    channel.check(install_command(host, program), program.content)
    assert (folder / "blackwell-host.pyz").read_bytes() == program.content
    assert len(list(folder.iterdir())) == 2
    newer = HostProgram(content=program.content + b"\n")
    channel.check(install_command(host, newer), newer.content)
    assert str((folder / "blackwell-host.pyz").readlink()) == Path(newer.path(host)).name
    assert len(list(folder.iterdir())) == 3  # the older one stays, something may run of it


def test_the_installed_program_runs(host):
    session = HostSession(Channel(host), current_program())
    seen_ = session.look()
    assert session.install(seen_)
    assert not session.install(session.look())
    assert session.ask("numa0", "version")["sha256"] == session.program.sha256
    with pytest.raises(HostFault):
        session.ask("numa0", "no-such-command")


# --- what serves --------------------------------------------------------------------------------------------


def _status(**changes: Any) -> dict[str, Any]:
    current = {"release": REQUEST.release, "digest": REQUEST.digest, "image": REQUEST.image_id, "generation": 2}
    group = {
        "group": "numa0", "wanted": "running", "current": {**current, **changes.pop("current", {})},
        "serving": True, "ready": True, "faults": [], "busy": False,
        "earlier": [{"generation": 1, "served": True, "image_present": True},
                    {"generation": 3, "served": False, "image_present": True}],
        **changes,
    }  # fmt: skip
    return {"groups": [group]}


def test_what_serves_is_what_was_asked_for():
    assert swap_problems(_status(), REQUEST) == []
    # The newer image store of the engine names an image by its manifest.
    assert swap_problems(_status(current={"image": REQUEST.digest}), REQUEST) == []


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (_status(current={"image": "sha256:" + "d" * 64}), "kept or reused an older one"),
        (_status(current={"image": ""}), "cannot be said"),
        (_status(current={"digest": "sha256:" + "d" * 64}), "is committed"),
        (_status(serving=False), "nothing serves"),
        (_status(faults=["mounts: recorded 4, there is 1"]), "mounts: recorded 4"),
        ({"groups": []}, "nothing was deployed to group numa0"),
        ("nonsense", "nothing was deployed"),
    ],
)
def test_an_exit_code_of_0_proves_nothing(status, words):
    assert any(words in problem for problem in swap_problems(status, REQUEST))


def test_one_table_for_all_hosts():
    rows = [
        HostAnswer(host="box", group="numa0", answer=_status()),
        HostAnswer(host="box", group="numa1", answer={"groups": [{"group": "numa1", "current": None}]}),
        HostAnswer(host="gone", group="", error="the host cannot be reached by ssh\n  where: gone"),
    ]
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(status_table(rows))
    text = console.export_text()
    assert "answers" in text
    assert "nothing was deployed" in text
    assert "the host cannot be reached by ssh" in text
    assert [is_well(row) for row in rows] == [True, True, False]
    assert not is_well(rows[0].model_copy(update={"answer": _status(faults=["x"])}))
    assert not is_well(rows[0].model_copy(update={"answer": _status(ready=False)}))
    assert not is_well(rows[0].model_copy(update={"answer": None}))
    console.print(history_table(HostAnswer(host="b", group="g", answer={"history": [{"action": "rollback"}]})))
    assert "rollback" in console.export_text()


# --- choosing -----------------------------------------------------------------------------------------------


def test_a_host_outside_of_an_inventory():
    chosen = choose(None, ["admin@box.example"], (), Overrides(gpus="0,1", port=8080, bind="10.0.0.1"))
    (host,) = chosen.hosts
    assert (host.name, host.destination, host.bind) == ("box.example", "admin@box.example", "10.0.0.1")
    assert chosen.groups_of(host) == (GpuGroup(gpus=("0", "1"), port=8080),)
    assert host_of("local").transport == "local"


@pytest.mark.parametrize(
    ("names", "given", "words"),
    [
        ([], {}, "no host is named"),
        (["-oProxyCommand=x"], {}, "is no host"),
        (["box"], {"gpus": "0,0"}, "makes no sense"),
        (["box"], {"gpus": "all"}, "makes no sense"),
        (["box"], {"model": "org/m"}, "names no revision"),
        (["box"], {"model": "org/m@main"}, "makes no sense"),
        (["box"], {"model_path": "/srv/m"}, "needs --model"),
        (["box"], {"bind": "example.org"}, "makes no sense"),
    ],
)
def test_what_makes_no_sense_is_one_message(names, given, words):
    with pytest.raises(InputError) as caught:
        choose(None, names, (), Overrides(**given))
    assert words in caught.value.what


def test_an_unknown_group_is_named():
    with pytest.raises(InputError, match="no host has a group 'numa9'"):
        choose(None, ["box"], ["numa9"])


def test_where_a_release_is():
    assert release_image("r:5000/a/b:name", "") == "r:5000/a/b:name"
    assert release_image("oci:dir", "") == "oci:dir"
    assert release_image("name", "r:5000/a/b") == "r:5000/a/b:name"
    with pytest.raises(InputError, match="does not say where it is"):
        release_image("name", "")
