"""The state of a host on disk: whole or not at all, refused when damaged, and independent of the clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.unit.host_examples import IMAGE_ID, request
from tooling.errors import BusyError, InputError
from tooling.host import files, state
from tooling.host.files import StateError
from tooling.host.state import RUNNING, STOPPED, Group, Pending, groups


@pytest.fixture
def group(tmp_path) -> Group:
    made = Group(tmp_path / "root", "default")
    made.make()
    return made


def test_a_line_of_generations(group):
    assert (group.current(), group.pending(), group.numbers()) == (None, None, ())
    first = group.record(request(), IMAGE_ID, "op-1")
    assert (first.number, first.previous, first.image) == (1, 0, IMAGE_ID)
    assert group.generation(1).request == request()
    group.commit(1, "deploy", engine="28.2")
    second = group.record(request(release="r2"), IMAGE_ID, "op-2")
    assert (second.number, second.previous) == (2, 1)
    group.commit(2, "deploy")
    back = group.commit(1, "rollback")
    assert (back.generation, back.served, back.replaced, back.engine) == (1, (2, 1), 2, "28.2")
    assert group.record(request(), IMAGE_ID, "op-3").previous == 1
    group.want(STOPPED)
    assert group.current().wanted == STOPPED
    assert group.commit(2, "deploy").wanted == RUNNING
    assert list(groups(group.root)) == ["default"]


def test_a_generation_is_never_written_again(group):
    group.record(request(), IMAGE_ID, "op")
    path = group.directory / "generations" / "0001.json"
    assert path.stat().st_mode & 0o222 == 0
    with pytest.raises(FileExistsError):
        files.write_once(path, b"{}")
    assert [item.name for item in path.parent.iterdir()] == ["0001.json"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: "",
        lambda text: text[: len(text) // 2],
        lambda _: "null",
        lambda text: text.replace('"generation": 1', '"generation": 2'),
        lambda _: files.sealed([1]).decode(),
        lambda _: files.sealed({"generation": -1}).decode(),
    ],
)
def test_a_damaged_commit_point_is_refused_with_what_to_do(group, damage):
    group.record(request(), IMAGE_ID, "op")
    group.commit(1, "deploy")
    path = group.directory / "current"
    path.write_text(damage(path.read_text()))
    with pytest.raises(StateError, match="state file current") as caught:
        group.current()
    assert "repair GENERATION" in caught.value.fix
    assert caught.value.exit_code == 5
    path.unlink()
    repaired = group.repair(1)
    assert (repaired.generation, repaired.served, repaired.by) == (1, (1,), "repair")
    assert group.current() == repaired


def test_a_repaired_line_knows_its_forebears_and_no_failures(group):
    for number in (1, 2, 3):
        group.record(request(release=f"r{number}"), IMAGE_ID, "op")
        if number != 2:  # the second failed
            group.commit(number, "deploy")
    (group.directory / "current").unlink()
    assert group.repair(3).served == (1, 3)


def test_a_damaged_generation_is_refused_and_the_others_are_read(group):
    for _ in range(2):
        group.record(request(), IMAGE_ID, "op")
    path = group.directory / "generations" / "0001.json"
    path.chmod(0o644)
    path.write_text(path.read_text().replace("cu130", "cu999"))
    with pytest.raises(StateError, match="was changed after it was written"):
        group.generation(1)
    assert group.generation(2).number == 2


def test_an_unreadable_intent_counts_as_an_unknown_swap(group):
    group.intend(Pending("deploy", 2, 1, "op"))
    assert group.pending() == Pending("deploy", 2, 1, "op")
    (group.directory / "pending").write_text("{")
    assert group.pending().kind == "unreadable"
    group.settle()
    group.settle()
    assert group.pending() is None


def test_a_generation_that_is_not_there_is_an_error_of_the_caller(group):
    with pytest.raises(InputError, match="no generation 7"):
        group.generation(7)
    with pytest.raises(InputError, match="nothing was ever deployed"):
        group.want(STOPPED)


def test_a_torn_line_of_the_history_costs_that_line_alone(group):
    group.write_history("deploy", "a", generation=1)
    with (group.directory / "history.jsonl").open("ab") as file:
        file.write(b'{"action": "dep')
    group.write_history("rollback", "b", generation=1)
    lines, unreadable = group.history()
    assert [line["action"] for line in lines] == ["deploy", "rollback"]
    assert unreadable == 1


def test_the_clock_decides_nothing(group, monkeypatch):
    monkeypatch.setattr(state, "moment", lambda: "2031-01-01T00:00:00.000+00:00")
    group.record(request(), IMAGE_ID, "op")
    group.commit(1, "deploy")
    monkeypatch.setattr(state, "moment", lambda: "1970-01-01T00:00:00.000+00:00")
    second = group.record(request(), IMAGE_ID, "op")
    assert (second.number, second.previous) == (2, 1)
    os.utime(group.directory / "generations" / "0001.json", (4e9, 4e9))
    assert group.commit(2, "deploy").replaced == 1
    assert group.numbers() == (1, 2)


def test_tries_are_counted_per_generation(group):
    assert [group.count_try(1), group.count_try(1), group.tries(1), group.tries(2)] == [1, 2, 2, 0]
    assert group.count_try(2) == 1
    group.forget_tries()
    assert group.tries(2) == 0


def test_the_lock_dies_with_its_process(group):
    code = "import sys, time; from pathlib import Path; from tooling.host.files import locked\n"
    code += f"with locked(Path({str(group.lock_path)!r}), 'operation x (deploy)'):\n"
    code += "    print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert group.is_locked()
        with pytest.raises(BusyError, match=r"operation x \(deploy\)"), group.lock("me"):
            pytest.fail("two at once")
        other.kill()
    assert not group.is_locked()
    with group.lock("me"):
        assert group.is_locked()


def test_a_root_that_cannot_be_made_is_said_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="state directory cannot be made"):
        Group(tmp_path / "file" / "root", "default").make()


def test_a_write_leaves_the_old_file_when_the_disk_is_full(tmp_path, monkeypatch):
    path = tmp_path / "current"
    files.write(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["current"]


def test_what_is_sealed_is_plain_json(tmp_path):
    path = tmp_path / "x"
    files.write(path, files.sealed({"ä": [1]}))
    assert json.loads(path.read_text())["body"] == {"ä": [1]}
    assert files.unsealed(path) == {"ä": [1]}
