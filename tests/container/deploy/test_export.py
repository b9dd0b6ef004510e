"""What is exported starts what `deploy` starts: forms are started on a real engine, compared field by field."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.container.deploy.test_deploy import shape
from tests.programs import require_program
from tooling.cli import app

if TYPE_CHECKING:
    from tests.container.deploy.conftest import Box

pytestmark = pytest.mark.container


def _inspect(box: Box, name: str) -> dict[str, Any]:
    return dict(json.loads(box.engine.docker("inspect", name))[0])


def test_every_form_starts_the_same(box: Box):
    release = box.release("one")
    box.host["workload"]["environment"] = {"PRICE": "5 $ or 100%"}
    done = box.deploy(release.name, "--argument=--text=a b")
    assert done.code == 0, done.err
    wanted, name = shape(box.inspect()), f"standin-{box.group}"
    forms = box.run("export", release.name, "--json", "--argument=--text=a b").json[box.group]
    box.engine.docker("rm", "-f", box.inspect()["Name"].lstrip("/"))
    _check_unit(box, forms["systemd"])
    # Without a host to look at it is the same, as long as the host is as it should be.
    box.host["workload"].pop("environment")
    image = f"{box.repository.name}:{release.name}"
    model = ["--model", "stand-in@0123456", "--model-path", str(box.folder / "model"), "--port", str(box.port)]
    words = ["export", image, "--json", "--trust", str(box.trust), *model]
    unseen = CliRunner().invoke(app, words)
    assert unseen.exit_code == 0, unseen.output
    assert box.repository.name in json.loads(unseen.stdout)["default"]["docker_run"]

    environment = box.engine.environment
    subprocess.run(["sh", "-euc", forms["docker_run"]], check=True, env=environment, capture_output=True)
    assert shape(_inspect(box, name)) == wanted
    box.engine.docker("rm", "-f", name)

    compose = require_program("docker-compose", "docker-compose")
    (box.folder / "compose.yaml").write_text(forms["compose"])
    project = [compose, "--project-name", name, "--file", str(box.folder / "compose.yaml")]
    subprocess.run([*project, "up", "-d"], check=True, env=environment, capture_output=True)
    try:
        assert _normal(shape(_inspect(box, name))) == _normal(wanted)
    finally:
        subprocess.run([*project, "down"], check=True, env=environment, capture_output=True)


def _normal(fields: dict[str, Any]) -> dict[str, Any]:
    """Compose adds the image's own variables once more; else nothing may differ."""
    return {**fields, "environment": sorted(set(fields["environment"]))}


def _check_unit(box: Box, text: str) -> None:
    """systemd itself reads the unit, and sees a mistake in it."""
    analyze = require_program("systemd-analyze", "systemd")
    # Units that it needs are not on every machine; the syntax of this one is what is looked at.
    text = text.replace("Requires=docker.service\n", "")
    text = text.replace("/usr/bin/docker", shutil.which("docker") or "/usr/bin/docker")
    for name, content in (("good", text), ("broken", text.replace("[Service]\n", "[Service]\nExecStrat=x\n"))):
        unit = box.folder / f"{name}.service"
        unit.write_text(content)
        done = subprocess.run(
            [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
        )
        about = [line for line in done.stderr.splitlines() if f"{name}.service" in line]
        assert bool(about) is (name == "broken"), done.stderr
