"""What is exported starts what `deploy` starts: forms are started on a real engine, compared field by field."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.container.deploy.test_deploy import shape
from tests.programs import require_program

if TYPE_CHECKING:
    from tests.container.deploy.conftest import Box

pytestmark = pytest.mark.container


def _inspect(box: Box, name: str) -> dict[str, Any]:
    return json.loads(box.engine.docker("inspect", name))[0]


@pytest.fixture
def deployed(box: Box) -> tuple[dict[str, Any], dict[str, Any]]:
    """What deploy starts, taken away again; and the exports of the same release."""
    release = box.release("one")
    box.host["workload"]["environment"] = {"PRICE": "5 $ or 100%"}
    done = box.deploy(release.name, "--argument=--text=a b")
    assert done.code == 0, done.err
    wanted = shape(box.inspect())
    name = box.inspect()["Name"].lstrip("/")
    forms = box.run("export", release.name, "--json", "--argument=--text=a b").json[box.group]
    box.engine.docker("rm", "-f", name)
    return wanted, forms


def test_docker_run_and_compose_start_the_same(box: Box, deployed: tuple[dict[str, Any], dict[str, Any]]):
    wanted, forms = deployed
    name = f"standin-{box.group}"
    subprocess.run(
        ["sh", "-euc", forms["docker_run"]], check=True, env=box.engine.environment, stdout=subprocess.DEVNULL
    )
    assert shape(_inspect(box, name)) == wanted
    box.engine.docker("rm", "-f", name)

    compose = require_program("docker-compose", "docker-compose")
    (box.folder / "compose.yaml").write_text(forms["compose"])
    project = [compose, "--project-name", name, "--file", str(box.folder / "compose.yaml")]
    subprocess.run([*project, "up", "-d"], check=True, env=box.engine.environment, capture_output=True)
    try:
        assert _normal(shape(_inspect(box, name))) == _normal(wanted)
    finally:
        subprocess.run([*project, "down"], check=True, env=box.engine.environment, capture_output=True)


def _normal(fields: dict[str, Any]) -> dict[str, Any]:
    """Compose adds the image's own variables once more; else nothing may differ."""
    return {**fields, "environment": sorted(set(fields["environment"]))}


def test_systemd_takes_the_unit(box: Box, deployed: tuple[dict[str, Any], dict[str, Any]]):
    analyze = require_program("systemd-analyze", "systemd")
    unit = box.folder / "standin.service"
    # Units that it needs are not on every machine; the syntax of this one is what is looked at.
    text = deployed[1]["systemd"].replace("Requires=docker.service\n", "")
    unit.write_text(text.replace("/usr/bin/docker", shutil.which("docker") or "/usr/bin/docker"))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )  # fmt: skip
    about = [line for line in done.stderr.splitlines() if "standin.service" in line]
    assert about == [], done.stderr
    broken = unit.with_name("broken.service")
    broken.write_text(text.replace("[Service]\n", "[Service]\nExecStrat=/bin/true\n"))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(broken)], capture_output=True, text=True, check=False
    )
    assert "ExecStrat" in done.stderr
