"""Boots of real containers: every way in which an engine fails to serve has its own name, at once."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import pytest

from tests.container.tiny_image import PYTHON, python_layer
from tooling.boot import BootError, Mount, Patience, Reason, RunContract, attach, boot
from tooling.boot.contract import LABEL_BOOT
from tooling.triage import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker.models.containers import Container

pytestmark = [pytest.mark.container, pytest.mark.usefixtures("containers_before")]
ENGINE = Path(__file__).with_name("fake_engine.py")
QUICK = Patience(ready_s=300, listen_s=1, answer_s=60, poll_s=0.1, stop_s=0)


@pytest.fixture(scope="session")
def client() -> Iterator[docker.DockerClient]:
    found = docker.from_env(version="auto")
    yield found
    found.close()


@pytest.fixture(scope="session")
def image(client: docker.DockerClient) -> Iterator[str]:
    made = client.api.import_image_from_data(python_layer(), repository="boot-test-python", tag="1")
    assert "sha256" in str(made)
    yield "boot-test-python:1"
    client.images.remove("boot-test-python:1", force=True)


def contract(behaviour: str, **more: object) -> RunContract:
    fields: dict[str, object] = {
        "entrypoint": (PYTHON, "/engine.py"),
        "command": (behaviour,),
        "mounts": (Mount(source=str(ENGINE), target="/engine.py"),),
        "port": 8000,
        **more,
    }
    return RunContract.model_validate(fields)


@pytest.fixture
def containers_before(client: docker.DockerClient) -> Iterator[None]:
    def ours() -> set[str]:
        return {str(c.id) for c in client.containers.list(all=True, filters={"label": LABEL_BOOT})}

    before = ours()
    yield
    assert ours() == before, "a container of ours was left behind"


def test_a_healthy_engine_is_ready_when_it_answers(image: str, client: docker.DockerClient, tmp_path: Path):
    with boot(image, contract("healthy"), evidence=tmp_path, stack="fake", patience=QUICK) as engine:
        assert engine.facts.answer.echoed
        assert engine.model == "fake"
        container = client.containers.get(engine.facts.container_id)
        assert container.labels["blackwell-stacks.stack"] == "fake"
        assert container.labels["blackwell-stacks.image"] == engine.facts.image_id
        binding = container.attrs["HostConfig"]["PortBindings"]["8000/tcp"][0]
        assert binding["HostIp"] == "127.0.0.1"
        assert [mount["RW"] for mount in container.attrs["Mounts"]] == [False]
        assert engine.check().completion_tokens == 12
        assert engine.report().outcome is Outcome.OK
    assert engine.evidence is not None
    log = Path(engine.evidence.path)
    assert b"fired up" in log.read_bytes()
    assert subprocess.check_output(["sha256sum", log], text=True).split()[0] == engine.evidence.sha256
    engine.close()  # twice is once


def test_a_base_model_without_chat_answers_plain_completions(image: str, tmp_path: Path):
    with boot(image, contract("chatless"), evidence=tmp_path, patience=QUICK) as engine:
        assert engine.facts.answer.echoed


def failing(image: str, told: RunContract, tmp_path: Path, patience: Patience = QUICK) -> BootError:
    with pytest.raises(BootError) as caught, boot(image, told, evidence=tmp_path, patience=patience):
        pass
    return caught.value


def test_an_engine_that_exits_17_is_named_with_its_exception(image: str, tmp_path: Path):
    error = failing(image, contract("exits-17"), tmp_path)
    assert error.reason is Reason.EXITED
    assert "exit code 17" in error.what
    assert "flux capacitor" in error.what
    assert "flux capacitor" in Path(error.log).read_text()


def test_a_killed_engine_is_told_from_one_that_exits(image: str, tmp_path: Path):
    error = failing(image, contract("eats-memory", memory_bytes=64 << 20), tmp_path)
    assert error.reason is Reason.OOM_KILLED
    assert "memory limit" in error.what


def test_a_line_that_says_ready_is_not_readiness(image: str, tmp_path: Path):
    error = failing(image, contract("deaf"), tmp_path)
    assert error.reason is Reason.NEVER_LISTENED
    assert "nobody listens" in error.what


def test_http_200_without_text_is_not_an_answer(image: str, tmp_path: Path):
    error = failing(image, contract("empty"), tmp_path)
    assert error.reason is Reason.EMPTY_ANSWER
    assert "12 completion tokens" in error.what


def test_a_download_that_can_neither_finish_nor_exit_is_not_waited_for(image: str, tmp_path: Path):
    error = failing(image, contract("disk-full"), tmp_path)
    assert error.reason is Reason.NO_SPACE
    assert "748.94 MB free for a 4915.92 MB file" in error.what


def test_an_engine_that_falls_silent_after_readiness_is_caught_by_the_next_check(image: str, tmp_path: Path):
    with boot(image, contract("falls-silent"), evidence=tmp_path, patience=QUICK) as engine:
        with pytest.raises(BootError) as caught:
            engine.check(answer_s=0.5)
        assert caught.value.reason is Reason.STOPPED_ANSWERING


def test_a_killed_container_is_named_by_the_next_check(image: str, client: docker.DockerClient, tmp_path: Path):
    with boot(image, contract("healthy"), evidence=tmp_path, patience=QUICK) as engine:
        client.containers.get(engine.facts.container_id).kill()
        client.containers.get(engine.facts.container_id).wait()
        with pytest.raises(BootError) as caught:
            engine.check()
        assert caught.value.reason is Reason.EXITED
        assert "137" in caught.value.what


def test_a_taken_port_is_named_before_anything_starts(image: str, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BootError) as caught:
            boot(image, contract("healthy"), evidence=tmp_path, host_port=port, patience=QUICK)
    assert caught.value.reason is Reason.PORT_IN_USE


def test_a_missing_model_is_named_before_anything_starts(image: str, tmp_path: Path):
    missing = contract("healthy", models=(Mount(source=str(tmp_path / "none"), target="/m"),))
    assert failing(image, missing, tmp_path).reason is Reason.MODEL_MISSING
    assert not (tmp_path / "none").exists()


def test_a_missing_image_and_a_missing_program_have_their_own_names(image: str, tmp_path: Path):
    assert failing("boot-test-none:1", contract("healthy"), tmp_path).reason is Reason.IMAGE_MISSING
    error = failing(image, contract("healthy", entrypoint=("/opt/none",)), tmp_path)
    assert error.reason is Reason.BAD_COMMAND
    assert "/opt/none" in error.what


def test_a_file_that_the_kernel_cannot_run_is_not_blamed_on_the_architecture(image: str, tmp_path: Path):
    script = tmp_path / "entry"
    script.write_bytes(b"\x7fELF broken")
    script.chmod(0o755)
    broken = contract("x", entrypoint=("/entry",), mounts=(Mount(source=str(script), target="/entry"),))
    error = failing(image, broken, tmp_path)
    assert error.reason is Reason.BAD_COMMAND
    assert "image and host are both" in error.what


def test_a_command_that_repeats_the_entry_point_is_refused_before_anything_starts(image: str, tmp_path: Path):
    told = contract("x", entrypoint=("/bin/bash",), command=("bash", "-c", "serve"))
    assert failing(image, told, tmp_path).reason is Reason.BAD_COMMAND
    assert not list(tmp_path.iterdir())


def test_gpus_on_a_host_without_the_nvidia_runtime_are_refused_by_name(image: str, tmp_path: Path):
    error = failing(image, contract("healthy", gpus="all"), tmp_path)
    assert error.reason is Reason.NO_GPUS


@pytest.fixture
def foreign(client: docker.DockerClient, image: str, request: pytest.FixtureRequest) -> Iterator[Container]:
    """Somebody else's container, with a restart policy."""
    container = client.containers.run(
        image,
        [request.param],
        entrypoint=[PYTHON, "/engine.py"],
        volumes={str(ENGINE): {"bind": "/engine.py", "mode": "ro"}},
        ports={"8000/tcp": ("127.0.0.1", 0)},
        restart_policy={"Name": "always"},
        detach=True,
    )
    yield container
    container.remove(force=True)


def url_of(container: Container) -> str:
    container.reload()
    return f"http://127.0.0.1:{container.attrs['NetworkSettings']['Ports']['8000/tcp'][0]['HostPort']}"


@pytest.mark.parametrize("foreign", ["always-crashes"], indirect=True)
def test_a_crash_loop_is_named_at_the_first_restart(foreign: Container, tmp_path: Path):
    with pytest.raises(BootError) as caught:
        attach(url_of(foreign), evidence=tmp_path, container=str(foreign.id), patience=QUICK)
    assert caught.value.reason is Reason.CRASH_LOOP
    assert "GPU allocation failed" in caught.value.what
    foreign.reload()
    assert foreign.status in ("running", "restarting")


@pytest.mark.parametrize("foreign", ["crashes-by-turns"], indirect=True)
def test_lines_of_an_earlier_boot_of_the_same_container_do_not_count(foreign: Container, tmp_path: Path):
    for _ in range(600):
        time.sleep(0.1)
        foreign.reload()
        if foreign.attrs["RestartCount"] == 1 and foreign.status == "running":
            break
    assert foreign.attrs["RestartCount"] == 1
    assert foreign.logs().count(b"sigquit") == 1
    with attach(url_of(foreign), evidence=tmp_path, container=str(foreign.id), patience=QUICK) as engine:
        report = engine.report()
        assert report.outcome is Outcome.OK
        assert "child-failed" not in [finding.signature for finding in report.findings]
        assert not engine.facts.owned
    foreign.reload()
    assert foreign.status == "running"


def test_ctrl_c_stops_and_removes_what_we_started(image: str, tmp_path: Path):
    script = f"""
from pathlib import Path
from tooling.boot import *
from tooling.console import say
told = RunContract.model_validate_json('''{contract("deaf").model_dump_json()}''')
boot({image!r}, told, evidence=Path({str(tmp_path)!r}), patience=Patience(listen_s=60, stop_s=0))
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert child.stderr is not None
    said = []
    with child.stderr:
        for line in child.stderr:
            said.append(line)
            if "says that it is ready" in line:
                child.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in said[-1], said
    assert child.wait() != 0
