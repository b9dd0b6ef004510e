"""From a release in a registry to a host and back, over a real sshd, on a real engine."""

from __future__ import annotations

import json

import pytest

from tests.container.deploy.conftest import COMMIT, Box

pytestmark = pytest.mark.container


def test_deploy_upgrade_rollback_status_history(box: Box):
    first, second = box.release("one"), box.release("two")
    done = box.deploy(first.name)
    assert done.code == 0, done.err + str(done.error)
    assert done.json["steps"][0]["state"] == "done"
    assert done.json["digest"] == first.verification.digest
    assert "host program" in done.err
    assert box.served_version() == "one"

    assert box.deploy(second.name).code == 0
    assert box.served_version() == "two"
    status = box.status()
    assert status["current"]["release"] == second.name
    assert status["faults"] == []
    assert box.inspect()["Image"] == status["current"]["image"]

    back = box.run("rollback", "--json")
    assert back.code == 0, back.err + str(back.error)
    assert box.served_version() == "one"
    again = box.run("rollback", "--json")
    assert again.code == 0
    assert box.served_version() == "one"
    (row,) = box.run("history", "--json").json
    assert [line["action"] for line in row["answer"]["history"]] == ["deploy", "deploy", "rollback"]
    assert "answers" in box.run("status").out
    assert "rollback" in box.run("history").out
