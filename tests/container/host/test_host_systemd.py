"""Real boots: systemd starts the engine, the unit the program, and the committed release serves again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.container.host.booted_box import BoxLine, booted_box
from tests.container.host.deck import Deck
from tests.container.release.registry_server import install_registry, serve

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.container, pytest.mark.long]
UNIT = "blackwell-stacks.service"


def test_reboot_loss_of_power_in_a_swap_and_restart_of_the_engine(tmp_path: Path):
    install_registry()
    with serve(tmp_path / "registry") as registry, booted_box(tmp_path, f"bx{os.getpid()}") as box:
        deck = Deck(box, registry, box.shared / "deck")  # type: ignore[arg-type]
        v1, v2 = deck.image("v1"), deck.image("v2")
        line = BoxLine(deck, "g0", 0)
        line.box = box
        first = line.deploy(v1)
        assert first.code == 0, first.said + first.stderr
        line.assert_right("v1")
        assert line.read_code("install-unit") == 0
        assert box.systemctl("is-enabled", UNIT) == "enabled"

        box.reboot()
        line.await_right("v1")
        assert box.systemctl("is-active", UNIT) == "active"

        # The old one has been stopped, the new one is not committed.
        assert line.deploy(v2, fault="old-stopped").code == 1
        box.lose_power()
        box.boot()
        line.await_right("v1")

        assert line.deploy(v2, fault="committed").code == 1
        box.lose_power()
        box.boot()
        line.await_right("v2")

        box.systemctl("restart", "docker")
        line.await_right("v2")
        stopped = line.run("stop")
        assert stopped.code == 0, stopped.said
        box.reboot()
        # What was stopped by an operator stays stopped.
        assert box.systemctl("is-active", UNIT) == "active"
        assert line.version() == ""
        assert line.running() == []
