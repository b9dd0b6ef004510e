"""Cases from the field that the host program must get right, and others of their kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.host_examples import IMAGE_ID, request
from tooling.errors import EngineError, InputError
from tooling.host import preflight
from tooling.host.containers import differences
from tooling.host.contract import create_argv, generation_labels
from tooling.host.docker import Docker
from tooling.host.events import Events
from tooling.host.gpus import Smi
from tooling.host.host import Host
from tooling.host.reconcile import TRIES
from tooling.host.refusals import explain
from tooling.host.state import Generation, Group
from tooling.host.steps import take_down

CASES = Path(__file__).resolve().parents[1] / "cases"
GENERATION = Generation(7, request(), IMAGE_ID, 6, "op", "")


def text_of(case: str) -> str:
    return str(yaml.safe_load((CASES / f"{case}.yaml").read_text())["input"]["text"])


def inspected(**changes: Any) -> dict[str, Any]:
    """What an engine says of the container that the example's contract makes."""
    contract = GENERATION.request.contract
    made: dict[str, Any] = {
        "Image": IMAGE_ID,
        "Config": {
            "Env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=void", "NCCL_DEBUG=WARN", "HF_HUB_OFFLINE=1"],
            "Labels": {**contract.labels, **generation_labels(GENERATION.request, 7), "image": "own"},
            "Cmd": list(contract.arguments),
            "User": "1000",
            "StopTimeout": 120,
        },
        "HostConfig": {
            "Mounts": [
                {"Type": "bind", "Source": "/srv/models", "Target": "/models", "ReadOnly": True},
                {
                    "Type": "bind",
                    "Source": "/var/cache/stacks/a1a1a1a1a1a1-sm_120/kernels",
                    "Target": "/home/engine/.cache",
                },
            ],
            "PortBindings": {"30000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "30000"}]},
            "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]}],
            "Init": True,
            "NetworkMode": "default",
            "IpcMode": "private",
            "ShmSize": 1 << 34,
            "Ulimits": [{"Name": "memlock", "Hard": -1, "Soft": -1}],
        },
    }
    for name, value in changes.items():
        place, _, field = name.partition("__")
        if field:
            made[place][field] = value
        else:
            made[name] = value
    return made


def test_the_recorded_container_has_no_differences():
    assert differences(inspected(), GENERATION) == []


def test_rollback_loses_run_arguments():
    facts = text_of("rollback-loses-run-arguments")
    assert "1 mount" in facts
    assert "user root" in facts
    lost = inspected(
        Config__Env=["PATH=/bin"],
        Config__User="",
        HostConfig__Mounts=inspected()["HostConfig"]["Mounts"][:1],
    )
    found = {line.partition(":")[0] for line in differences(lost, GENERATION)}
    assert found == {"environment", "mounts", "user"}


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("Config__Cmd", ["serve"], "arguments"),
        ("Config__StopTimeout", None, "stop grace"),
        ("Config__Labels", {}, "labels"),
        ("HostConfig__PortBindings", {}, "ports"),
        ("HostConfig__PortBindings", {"30000/tcp": [{"HostIp": "", "HostPort": "30000"}]}, "ports"),
        ("HostConfig__DeviceRequests", None, "gpus"),
        ("HostConfig__DeviceRequests", [{"DeviceIDs": ["0"]}], "gpus"),
        ("HostConfig__Init", None, "init"),
        ("HostConfig__ShmSize", 64 << 20, "shm"),
        ("HostConfig__Ulimits", None, "memlock"),
    ],
)
def test_every_part_of_a_generation_is_compared(field, value, named):
    (line,) = differences(inspected(**{field: value}), GENERATION)
    assert line.startswith(f"{named}:")


def test_same_tag_older_image():
    assert "container image id            -> sha256:<old>" in text_of("deploy-same-tag-older-image")
    (line,) = differences(inspected(Image="sha256:" + "0" * 64), GENERATION)
    assert line.startswith(f"image: recorded {IMAGE_ID}")
    # No tag is ever in the command: the image is named by its content.
    assert IMAGE_ID in create_argv(request(), 7, IMAGE_ID)
    with pytest.raises(InputError):
        request(reference="registry.example/app:testing")


class Refusing(Docker):
    """A client whose stop is answered as the engine did in the field."""

    def __init__(self, said: str) -> None:
        super().__init__()
        self.said = said
        self.called: list[str] = []

    def call(self, *arguments: str, stdin: bytes | None = None, limit_s: float = 0) -> str:
        del stdin, limit_s
        self.called.append(arguments[0])
        if arguments[0] == "stop":
            raise explain("stop", self.said)
        return '[{"State": {"Running": true, "Restarting": false, "ExitCode": 0}}]'


def test_pid1_zombie_on_restart(tmp_path):
    said = text_of("deploy-pid1-zombie-on-restart")
    docker = Refusing(said)
    group = Group(tmp_path, "default")
    host = Host(group, docker, Smi(), Events(tmp_path / "events", "op"))
    with pytest.raises(EngineError, match="zombie and cannot be stopped") as caught:
        take_down(host, GENERATION)
    assert "init" in caught.value.fix
    # The next one is not started beside it.
    assert "start" not in docker.called
    # And ours are made with an init.
    assert "--init" in create_argv(request(), 7, IMAGE_ID)


def test_a_stop_that_claims_success_is_not_believed(tmp_path):
    class Lying(Refusing):
        def call(self, *arguments: str, stdin: bytes | None = None, limit_s: float = 0) -> str:
            return "" if arguments[0] == "stop" else super().call(*arguments, stdin=stdin, limit_s=limit_s)

    host = Host(Group(tmp_path, "default"), Lying(""), Smi(), Events(tmp_path / "events", "op"))
    with pytest.raises(EngineError, match="still runs"):
        take_down(host, GENERATION)


def test_restart_loop_damages_host():
    assert "35 times" in text_of("deploy-restart-loop-damages-host")
    argv = create_argv(request(), 7, IMAGE_ID)
    # No policy before the commit; after it, a boot tries a few times and no more.
    assert argv[argv.index("--restart") + 1] == "no"
    assert TRIES <= 3


def test_docker_29_refuses_old_clients(monkeypatch):
    error = explain("version", text_of("host-docker-29-refuses-old-clients"))
    assert "API 1.43" in error.what
    assert "limit is 1.44" in error.what
    assert "untouched" in error.fix
    # A version that somebody pinned would keep the client from negotiating.
    monkeypatch.setenv("DOCKER_API_VERSION", "1.12")
    assert "DOCKER_API_VERSION" not in Docker().environment


class Arm(Docker):
    """The client on an arm64 host."""

    def version(self) -> dict[str, Any]:
        return {"Server": {"Os": "linux", "Arch": "arm64", "Version": "28.5.1"}}


def test_exec_format_error_loop():
    error = explain("start", text_of("boot-exec-format-error-loop"))
    assert "not for this host's architecture" in error.what
    # Known from the release, before anything is pulled.
    with pytest.raises(EngineError, match="for linux/amd64 and this host is linux/arm64"):
        preflight.check_engine(Arm(), request(requirements={"platform": "linux/amd64"}))
    assert preflight.check_engine(Arm(), request(requirements={"platform": "linux/arm64/v8"})) == "28.5.1"


def test_cannot_execute_binary_same_arch():
    assert "Entrypoint = [" in text_of("boot-cannot-execute-binary-same-arch")
    for entrypoint, arguments in (
        (["/bin/bash"], ["bash", "-c", "x"]),
        (["tini", "--", "/py/python3"], ["python3"]),
    ):
        with pytest.raises(InputError, match="repeat the image's entry point"):
            preflight.check_command(entrypoint, arguments)
    preflight.check_command(["/bin/bash"], ["-c", "bash"])
    preflight.check_command([], ["bash"])
    preflight.check_command(["/usr/bin/tini", "--", "entrypoint.py"], ["serve"])
