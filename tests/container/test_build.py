"""The builder on a real engine: what it makes, and that nothing is left half-done when it cannot."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import docker
import pytest
import requests

from tests.programs import require_program
from tests.wheelhouse import make_wheel
from tooling.build import build
from tooling.build.context import LABEL
from tooling.dockerhost.containers import run_once
from tooling.errors import BusyError, CheckError, CommandError, EngineError, InputError, ToolkitError

pytestmark = pytest.mark.container


def _containers(client) -> set[str]:
    return {container.id for container in client.containers.list(all=True)}


def test_an_image_is_built_checked_and_named(checkout):
    record = checkout.build()
    assert checkout.tags() == sorted([record.reference, f"blackwell-stacks/{checkout.name}:built"])
    assert [package["name"] for package in record.contents["packages"]] == ["hello", "world"]
    assert record.contents["hashed_files"] >= 6
    assert record.selftest["passed"]
    image = checkout.client.images.get(record.image_id)
    assert image.labels[f"{LABEL}.inputs-sha256"] == record.inputs_sha256 == record.inputs.sha256
    assert image.labels[f"{LABEL}.base"] == "locked"
    assert image.attrs["Config"]["User"] == "engine"
    assert (
        json.loads((checkout.root / "build" / checkout.name / "record.json").read_text())["image_id"]
        == record.image_id
    )
    assert len(record.layers) == len(image.attrs["RootFS"]["Layers"])


def test_the_image_serves_with_the_stacks_arguments_and_tests_itself(checkout):
    record = checkout.build()
    assert run_once(checkout.client, record.image_id, []).stdout == "hello\n"
    selftest = run_once(checkout.client, record.image_id, ["selftest"])
    assert selftest.exit_code == 0
    assert "PASS  packages" in selftest.stderr
    probe = run_once(checkout.client, record.image_id, ["probe"])
    assert probe.exit_code == 3
    assert "no GPU can be used here" in probe.stderr
    unknown = run_once(checkout.client, record.image_id, ["no-such-command"])
    assert unknown.exit_code == 127
    assert "it has probe, selftest, serve" in unknown.stderr


def test_files_have_one_time_and_no_cache_or_secret_stays(checkout):
    record = checkout.build()
    script = (
        "import os; from pathlib import Path\n"
        "print({int(os.lstat(p).st_mtime) for p in Path('/opt/stack/lib').rglob('*')})"
    )
    assert run_once(checkout.client, record.image_id, ["python", "-c", script]).stdout == "{1700000000}\n"
    places = ["/opt/.uv-cache", "/run", "/root", "/tmp", "/var/tmp"]  # noqa: S108  # inside the image
    assert (
        run_once(checkout.client, record.image_id, ["find", *places, "-type", "f", "-newer", "/bin/sh"]).stdout
        == ""
    )


def test_a_changed_argument_makes_one_small_new_layer_and_keeps_the_rest(checkout):
    first = checkout.build()
    checkout.edit("greeting: hi", "greeting: good-day")
    second = checkout.build()
    changed = [
        (one.diff_id == other.diff_id, other.bytes)
        for one, other in zip(first.layers, second.layers, strict=True)
    ]
    assert [same for same, _ in changed].count(False) <= 2
    assert sum(size for same, size in changed if not same) < 10_000
    assert first.reference in checkout.tags()
    assert second.image_id != first.image_id


def test_equal_inputs_give_equal_package_layers(checkout):
    first = checkout.build()
    checkout.client.images.remove(first.image_id, force=True)
    script = checkout.root / "images" / "build" / "install-layer"
    script.write_text(script.read_text() + "# another text, the same work\n")
    second = checkout.build()
    steps = {layer.diff_id for layer in first.layers if "install-layer" in layer.created_by}
    assert steps == {layer.diff_id for layer in second.layers if "install-layer" in layer.created_by}
    assert len(steps) == 2


def test_a_wheel_that_is_another_file_is_refused_and_the_previous_image_stays(checkout):
    before = checkout.build()
    checkout.edit("greeting: hi", "greeting: other")
    make_wheel(checkout.index.folder, "world", "1.0.0", {"world.py": "import evil\n"})
    # The layer is in the engine's cache: another order of layers makes it install again.
    checkout.edit("- {name: first, packages: [world]}", "- {name: second, packages: [world]}")
    with pytest.raises(CheckError, match="not the file that the lock names"):
        checkout.build()
    assert before.reference in checkout.tags()
    assert len(checkout.tags()) == 2


def test_a_missing_wheel_is_named(checkout):
    (checkout.index.folder / "world-1.0.0-py3-none-any.whl").unlink()
    with pytest.raises(CommandError, match="not in the index any more") as caught:
        checkout.build()
    assert "world" in str(caught.value)
    assert checkout.tags() == []


def test_a_withdrawn_wheel_is_refused_at_lock_and_at_build(checkout):
    checkout.index.yanked.add("world-1.0.0-py3-none-any.whl")
    with pytest.raises(InputError, match="yanked"):
        checkout.lock()
    with pytest.raises(InputError, match=r"withdrawn \(yanked\) what the lock needs: world==1\.0\.0"):
        checkout.build()
    assert checkout.tags() == []


def test_one_path_of_two_owners_is_refused_unless_allowed(checkout):
    for name in ("hello", "world"):
        make_wheel(checkout.index.folder, name, "1.0.0", {f"{name}.py": "", "shared.py": f"owner = '{name}'\n"})
    checkout.lock()
    with pytest.raises(CheckError) as caught:
        checkout.build()
    assert "finding: shared.py belongs to hello and world" in caught.value.details
    allow = "allow: [{finding: shared.py belongs to hello and world, reason: known from this test}]\nlayers:"
    checkout.edit("layers:", allow)
    assert checkout.build().contents["allowed"] == ["shared.py belongs to hello and world"]


def test_an_allowance_that_matches_nothing_is_refused(checkout):
    checkout.edit("layers:", "allow: [{finding: gone long ago, reason: known from this test}]\nlayers:")
    with pytest.raises(CheckError) as caught:
        checkout.build()
    assert "stale: the stack allows 'gone long ago'" in str(caught.value)


def test_a_requirement_that_is_not_met_is_refused(checkout):
    make_wheel(checkout.index.folder, "world", "1.0.0", {"world.py": ""}, requires=["absent>=2"])
    checkout.edit(
        "lock: {requirements: [world==1.0.0]}",
        "lock: {requirements: [world==1.0.0], exclude: [{package: absent, reason: left out for this test}]}",
    )
    checkout.lock()
    with pytest.raises(CheckError) as caught:
        checkout.build()
    assert "finding: world requires absent, which is not installed" in caught.value.details


def test_drift_of_the_base_is_recorded_and_does_not_stop_the_build(checkout):
    path = checkout.file().base_lock_path
    text = path.read_text()
    line = next(line for line in text.splitlines() if line.startswith("tini="))
    path.write_text(text.replace(line, "tini=0.0-1 amd64"))
    record = checkout.build()
    assert record.inputs.base_drift[0].startswith("tini: locked 0.0-1 amd64, found")
    assert checkout.client.images.get(record.image_id).labels[f"{LABEL}.base"] == "drifted"


def test_too_little_disk_stops_before_the_download(checkout):
    checkout.edit("build_disk_gb: 1", "build_disk_gb: 1000000")
    checkout.index.requests.clear()
    with pytest.raises(EngineError, match="GB of free disk are needed"):
        checkout.build()
    assert checkout.index.requests == []


def test_a_layer_over_the_budget_is_refused_and_the_image_removed(checkout):
    checkout.edit("{build_disk_gb: 1}", "{build_disk_gb: 1, layer_gb: 0.05}")
    with pytest.raises(CheckError, match="larger than"):
        checkout.build()
    assert checkout.client.images.list(filters={"label": f"{LABEL}.stack={checkout.name}"}) == []


def test_a_lock_of_another_stack_is_refused_before_anything_else(checkout):
    path = checkout.file().lock_path
    path.write_text(path.read_text().replace(f"stack: {checkout.name}", "stack: other"))
    with pytest.raises(ToolkitError, match="lock of stack 'other'"):
        checkout.build()


def test_credentials_of_an_index_stay_out_of_image_log_and_record(checkout, monkeypatch):
    secret = "pa55-word-of-the-index"  # noqa: S105  # the needle that is searched for
    monkeypatch.setenv("UV_DEFAULT_INDEX", checkout.index.address.replace("//", f"//user:{secret}@"))
    record = checkout.build()
    assert any(authorization for _, authorization in checkout.index.requests)
    history = json.dumps(checkout.client.api.history(record.image_id))
    texts = [history, Path(record.log).read_text(), record.model_dump_json()]
    texts.append((checkout.root / "build" / checkout.name / "Dockerfile").read_text())
    found = run_once(checkout.client, record.image_id, ["grep", "-rl", secret, "/opt", "/home", "/etc", "/run"])
    assert found.stdout == ""
    assert not any(secret in text for text in texts)


def _hold(checkout) -> tuple[threading.Event, threading.Event]:
    """Make the index wait in the middle of the build: (reached, go on)."""
    reached, go_on = threading.Event(), threading.Event()

    def wait(name: str) -> None:
        if name.startswith("world"):
            reached.set()
            go_on.wait(120)

    checkout.index.before_file = wait
    return reached, go_on


def test_a_second_build_of_the_same_stack_is_refused_with_the_first_ones_process(checkout):
    reached, go_on = _hold(checkout)
    results: list[object] = []
    first = threading.Thread(target=lambda: results.append(checkout.build()))
    first.start()
    try:
        assert reached.wait(120)
        with pytest.raises(BusyError, match=f"by process {os.getpid()}"):
            build(checkout.name, checkout.root)
    finally:
        go_on.set()
        first.join(120)
    assert len(results) == 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_no_container_no_name_and_no_process(checkout, how):
    reached, go_on = _hold(checkout)
    before = _containers(checkout.client)
    command = [sys.executable, "-m", "tooling", "build", checkout.name]
    environment = {
        **os.environ,
        "BLACKWELL_STACKS_ROOT": str(checkout.root),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert reached.wait(120)
            child.send_signal(how)
            _, err = child.communicate(timeout=60)
        finally:
            go_on.set()
            child.kill()
    assert child.returncode == 128 + how
    assert "interrupted" in err
    assert "Traceback" not in err
    assert checkout.tags() == []
    assert _containers(checkout.client) == before
    # The lock went with its process: the next build starts and succeeds.
    assert checkout.build().selftest["passed"]


@pytest.fixture
def private_engine():
    """A Docker Engine of this test's own: its process and the address of its socket."""
    # A bridge of its own: with `--bridge none` an engine deletes docker0, whoever's it is.
    require_program("ip", "iproute2")
    bridge = f"bs{os.getpid()}"
    subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], check=True)
    subprocess.run(["ip", "address", "add", "10.213.77.1/24", "dev", bridge], check=True)
    # A short path: a socket's address holds 108 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="bs-", ignore_cleanup_errors=True) as folder,
        Path(folder, "log").open("w") as log,
    ):
        address = f"unix://{folder}/docker.sock"
        argv = ["dockerd", "--host", address, "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
        argv += ["--pidfile", f"{folder}/pid", "--bridge", bridge, "--iptables=false"]
        daemon = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            client = docker.DockerClient(base_url=address, version="1.24")
            deadline = time.monotonic() + 60
            while True:
                assert daemon.poll() is None, Path(folder, "log").read_text()[-2000:]
                try:
                    if Path(folder, "docker.sock").exists() and client.ping():
                        break
                except requests.exceptions.RequestException:
                    assert time.monotonic() < deadline
                time.sleep(0.2)
            client.close()
            yield daemon, address
        finally:
            daemon.kill()
            daemon.wait()
            subprocess.run(["ip", "link", "delete", bridge], check=True)
            # Killed, it could not end the containerd that it had started.
            pid = Path(folder, "exec", "containerd", "containerd.pid")
            if pid.is_file():
                os.kill(int(pid.read_text()), signal.SIGTERM)
            # Nor could it unmount what lies below its folder.
            mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
            for mount in sorted((one for one in mounts if one.startswith(f"{folder}/")), reverse=True):
                subprocess.run(["umount", "--lazy", mount], check=True)


def test_an_engine_that_goes_away_mid_build_is_said_so(checkout, private_engine, monkeypatch):
    daemon, address = private_engine
    monkeypatch.setenv("DOCKER_HOST", address)
    # Without a network of its own the step uses the host's, where the index is anyway.
    reached, go_on = _hold(checkout)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            build(checkout.name, checkout.root)
        except ToolkitError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert reached.wait(300), errors
        daemon.kill()
        thread.join(60)
    finally:
        go_on.set()
    assert isinstance(errors[0], EngineError), errors
    assert "went away" in errors[0].what
    assert not checkout.tags()
