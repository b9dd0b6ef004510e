"""The host program on the engines that newer distributions have: the whole way, there and back, once each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.container.host.deck import RUNTIME, Deck, Line
from tests.container.host.private_engine import private_engine
from tests.container.release.registry_server import install_registry, serve
from tests.debian_suite import unpacked

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.container
#: Everything of an engine but runc, which is this machine's own.
PACKAGES = ("docker.io", "docker-cli", "containerd")


@pytest.mark.parametrize(
    ("suite", "major"),
    [("trixie", 26), pytest.param("forky", 28, marks=pytest.mark.long)],
)
def test_deploy_failure_rollback_and_loss_of_power(
    suite: str, major: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    install_registry()
    programs = unpacked(suite, PACKAGES)
    path = [f"{programs}/usr/bin", f"{programs}/usr/sbin", os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    with serve(tmp_path / "registry") as registry, private_engine(*RUNTIME) as engine:
        versions = engine.docker("version", "--format", "{{.Client.Version}} {{.Server.Version}}").split()
        assert [int(version.partition(".")[0]) >= major for version in versions] == [True, True], versions
        deck = Deck(engine, registry, tmp_path / "deck")
        v1, v2 = deck.image("v1"), deck.image("v2")
        line = Line(deck, "g0", 0)

        assert line.deploy(v1).code == 0
        line.assert_right("v1")
        bad = line.deploy(v2, contract__environment={"STAND_IN_FAULT": "crash"})
        assert bad.code == 1, bad.said
        line.assert_right("v1")
        good = line.deploy(v2)
        assert good.code == 0, good.said
        line.assert_right("v2")
        engine.docker("system", "prune", "--all", "--force")
        back = line.run("rollback")
        assert back.code == 0, back.said
        line.assert_right("v1")
        engine.lose_power()
        engine.start()
        settled = line.run("reconcile")
        assert settled.code == 0, settled.said
        line.assert_right("v1")
        code, found = line.read("doctor")
        assert code == 0, found
        line.clear()
