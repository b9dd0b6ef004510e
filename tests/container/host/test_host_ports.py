"""A port that the engine has given away: to a container, or to one that died with the engine in its start."""

from __future__ import annotations

import subprocess
import time
from subprocess import DEVNULL
from typing import TYPE_CHECKING

import pytest

from tests.container.host.private_engine import private_engine
from tests.container.tiny_image import PYTHON, python_layer
from tests.programs import free_port
from tooling.errors import EngineError
from tooling.host.docker import Docker

if TYPE_CHECKING:
    from tests.container.host.private_engine import PrivateEngine

pytestmark = pytest.mark.container
IMAGE = "bare:1"
#: Losses of power until one falls into the start; most of them do.
TRIES = 8


def create(engine: PrivateEngine, name: str, port: int) -> None:
    """A container that publishes a port of the host."""
    publish = ["--publish", f"127.0.0.1:{port}:80"]
    engine.docker("create", "--name", name, *publish, IMAGE, PYTHON, "-c", "import time; time.sleep(1e6)")


def lose_power_in_a_start(engine: PrivateEngine, name: str) -> None:
    """Kill the engine somewhere in the start of a container, and start it again."""
    with subprocess.Popen(["docker", "start", name], stdout=DEVNULL, stderr=DEVNULL, env=engine.environment):
        time.sleep(0.15)
        engine.lose_power()
    engine.start()


def refusal(name: str) -> EngineError | None:
    """What the program says of a start; None when it comes up."""
    try:
        Docker().start(name)
    except EngineError as error:
        return error
    return None


def test_it_says_who_has_it_and_what_frees_it(monkeypatch: pytest.MonkeyPatch):
    with private_engine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        engine.docker("import", "-", IMAGE, stdin=python_layer())
        port = free_port()
        for number in range(TRIES):
            create(engine, f"cut-{number}", port)
            lose_power_in_a_start(engine, f"cut-{number}")
            error = refusal(f"cut-{number}")
            engine.docker("rm", "--force", f"cut-{number}")
            if error is not None:
                break
        assert error is not None
        assert error.what.startswith(f"the engine keeps port {port} for a container that no longer runs")
        assert "restart the engine once" in error.fix
        # Nothing less than that.
        create(engine, "first", port)
        assert refusal("first") is not None
        engine.restart_daemon(lambda: True)
        assert refusal("first") is None
        create(engine, "second", port)
        error = refusal("second")
        assert error is not None
        assert error.what == f"port {port} is published by the container first"
        assert "docker stop first" in error.fix
