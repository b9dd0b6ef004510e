"""From release, stack, host and workload to the request, the container and the four exports."""

import configparser
import io
import json
import shlex

import pytest
import yaml

from tests.unit.deploy_examples import (
    COMMIT,
    CPU,
    CU130,
    GROUP,
    HOST,
    MODEL,
    REPOSITORY,
    WORKLOAD,
    cpu_release,
    seen,
    wanted,
)
from tooling.deploy.export import export
from tooling.deploy.export.command import take_apart, unit_word
from tooling.deploy.export.compose import compose_file
from tooling.deploy.export.quadlet import quadlet
from tooling.deploy.inventory import GpuGroup, Model
from tooling.deploy.preflight import SeenEngine, SeenModel
from tooling.deploy.request import OFFLINE, build_request
from tooling.errors import InputError, ToolkitError
from tooling.host.contract import create_argv, run_argv

REQUEST = build_request(wanted(), HOST, GROUP, WORKLOAD, seen())
INSIDE = f"/models/models--Qwen--Qwen3-32B/snapshots/{COMMIT}"


def test_the_model_is_mounted_read_only_pinned_and_named():
    (mount,) = REQUEST.contract.mounts
    assert (mount.source, mount.target, mount.read_only) == (
        REPOSITORY, "/models/models--Qwen--Qwen3-32B", True,
    )  # fmt: skip
    assert REQUEST.contract.arguments == (
        "serve", "--model-path", INSIDE, "--served-model-name", "Qwen/Qwen3-32B", "--tp=4",
    )  # fmt: skip
    assert REQUEST.model is not None
    assert (REQUEST.model.revision, REQUEST.model.path) == (COMMIT, f"{REPOSITORY}/snapshots/{COMMIT}")
    assert OFFLINE.items() <= REQUEST.contract.environment.items()
    assert REQUEST.contract.health.model == "Qwen/Qwen3-32B"


def test_weights_of_other_origin_are_mounted_as_they_lie():
    workload = WORKLOAD.model_copy(update={"model": Model(id="tiny", revision="0123456", path="/srv/tiny")})
    request = build_request(wanted(), HOST, GROUP, workload, seen(model=SeenModel(path="/srv/tiny")))
    assert [(mount.source, mount.target) for mount in request.contract.mounts] == [
        ("/srv/tiny", "/models/tiny")
    ]
    assert request.contract.arguments[:3] == ("serve", "--model-path", "/models/tiny")


def test_the_contract_of_the_stack_arrives():
    contract = REQUEST.contract
    assert (contract.gpu_mode, contract.gpus) == ("cdi", ("0", "1", "2", "3"))
    assert (contract.shm_bytes, contract.memlock, contract.stop_grace_seconds) == (16 << 30, -1, 120)
    assert contract.init
    assert contract.cache_mount is not None
    assert contract.cache_mount.target == "/home/engine/.cache"
    assert [(port.address, port.host, port.container) for port in contract.ports] == [
        ("127.0.0.1", 30000, 30000)
    ]
    assert contract.labels["prometheus.io/port"] == "30000"
    assert contract.environment_files == ("/etc/hf.env",)
    assert len(contract.health.questions) == 2
    assert REQUEST.requirements.target == "sm_120"
    assert REQUEST.requirements.driver_minimum == "580.65.06"


def test_only_missing_layers_are_reckoned_with():
    first = tuple(layer.diff_id for layer in wanted().image.layers[:2])
    request = build_request(wanted(), HOST, GROUP, WORKLOAD, seen(engine=SeenEngine(images=(first, ("x",)))))
    assert (request.sizes.compressed, request.sizes.unpacked) == (10, 30)
    # The same layers on top of others are other layers to an engine.
    other = ("sha256:" + "f" * 64, *first)
    assert build_request(
        wanted(), HOST, GROUP, WORKLOAD, seen(engine=SeenEngine(images=(other,)))
    ).sizes.compressed == 7010  # fmt: skip


@pytest.mark.parametrize(
    ("version", "cdi", "mode", "wanted_mode"),
    [
        ("28.1.0", ("/etc/cdi",), "auto", "cdi"),
        ("28.1.0", (), "auto", "gpus"),
        ("20.10.24+dfsg1", ("/etc/cdi",), "auto", "gpus"),
        ("20.10.24", (), "cdi", "cdi"),
    ],
)
def test_how_gpus_come_in(version, cdi, mode, wanted_mode):
    host = HOST.model_copy(update={"gpu_mode": mode})
    request = build_request(wanted(), host, GROUP, WORKLOAD, seen(engine=SeenEngine(version=version, cdi=cdi)))
    assert request.contract.gpu_mode == wanted_mode


def test_a_stack_without_cuda_gets_no_gpu():
    group = GpuGroup()
    request = build_request(wanted(release=cpu_release(), stack=CPU), HOST, group, WORKLOAD, seen())
    assert request.contract.gpu_mode == "none"
    assert request.requirements.target == ""
    assert "--gpus" not in create_argv(request, 1, request.image_id)


def test_a_pinned_model_is_not_named_twice():
    workload = WORKLOAD.model_copy(update={"arguments": ("--model-path=/other",)})
    with pytest.raises(InputError, match="set from the pinned model"):
        build_request(wanted(), HOST, GROUP, workload, seen())


def test_what_was_accepted_is_recorded():
    request = build_request(
        wanted(accepted="source-qualified accepted: a dry run"), HOST, GROUP, WORKLOAD, seen()
    )
    assert request.contract.labels["org.blackwell-stacks.accepted"] == "source-qualified accepted: a dry run"


def test_no_secret_is_in_any_command():
    words = " ".join(create_argv(REQUEST, 1, REQUEST.image_id))
    assert "--env-file /etc/hf.env" in words
    assert "TOKEN" not in words


# --- exports ----------------------------------------------------------------------------------------------

EXPORTS = export(REQUEST)


def test_the_shell_command_is_the_command_of_the_host_program():
    words = shlex.split(EXPORTS.docker_run.replace("\\\n", ""))
    assert words == run_argv(REQUEST, name="cu130-numa0")
    assert REQUEST.reference in words


def test_the_cache_folder_is_made_before():
    assert EXPORTS.before == (
        "sudo install -d -m 1777 /var/cache/blackwell-stacks/aaaaaaaaaaaa-sm_120/kernels",
    )


def test_the_compose_file_says_the_same():
    service = yaml.safe_load(EXPORTS.compose)["services"]["cu130-numa0"]
    assert service["image"] == REQUEST.reference
    assert service["command"] == list(REQUEST.contract.arguments)
    assert service["devices"] == [f"nvidia.com/gpu={gpu}" for gpu in "0123"]
    assert service["environment"]["HF_HUB_OFFLINE"] == "1"
    assert service["env_file"] == ["/etc/hf.env"]
    assert service["ports"] == ["127.0.0.1:30000:30000"]
    assert service["ulimits"]["memlock"] == {"soft": -1, "hard": -1}
    assert service["stop_grace_period"] == "120s"
    assert service["volumes"][0] == {
        "type": "bind", "source": REPOSITORY, "target": "/models/models--Qwen--Qwen3-32B", "read_only": True,
    }  # fmt: skip
    assert service["restart"] == "unless-stopped"
    assert service["init"] is True


def test_gpus_by_the_hook_are_a_reservation_in_compose():
    host = HOST.model_copy(update={"gpu_mode": "gpus"})
    service = yaml.safe_load(export(build_request(wanted(), host, GROUP, WORKLOAD, seen())).compose)
    (device,) = service["services"]["cu130-numa0"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["0", "1", "2", "3"], "capabilities": ["gpu"]}


def _unit(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_file(io.StringIO(text.replace(" \\\n", " ")))
    return parser


def test_the_unit_runs_the_same_in_the_foreground_and_stops_trying():
    unit = _unit(EXPORTS.systemd)
    words = shlex.split(unit["Service"]["ExecStart"])
    assert words[:5] == ["/usr/bin/docker", "run", "--rm", "--name", "cu130-numa0"]
    assert "--restart" not in words
    assert words[-len(REQUEST.contract.arguments) :] == list(REQUEST.contract.arguments)
    assert unit["Unit"]["StartLimitBurst"] == "3"
    assert unit["Service"]["TimeoutStopSec"] == "150"


def test_the_quadlet_has_known_keys_only():
    # Keys of podman-systemd.unit(5), Podman 4.7.
    known = {
        "ContainerName", "Image", "PublishPort", "User", "Network", "AddDevice", "Ulimit", "Mount", "ShmSize",
        "EnvironmentFile", "Environment", "Label", "PodmanArgs", "LogDriver", "RunInit", "Exec",
    }  # fmt: skip
    unit = _unit(EXPORTS.quadlet)
    assert set(unit["Container"]) <= known
    assert unit["Container"]["Image"] == REQUEST.reference
    assert EXPORTS.quadlet.count("AddDevice=nvidia.com/gpu=") == 4


@pytest.mark.parametrize("write", [compose_file, lambda name, command: quadlet(name, "x", 1, command)])
def test_an_option_without_words_is_an_error(write):
    with pytest.raises(ToolkitError, match="--cgroupns"):
        write("x", take_apart(["docker", "run", "--cgroupns", "host", "image"]))


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("a", "a"),
        ("100%", "100%%"),
        ("$HOME", "$$HOME"),
        ('a "b"', '"a \\"b\\""'),
        ("a b", '"a b"'),
        ("", '""'),
    ],
)
def test_words_for_systemd(word, text):
    assert unit_word(word) == text


def test_dollars_are_the_composes_own():
    command = take_apart(["docker", "run", "--env", "A=$x", "image", "$y"])
    service = yaml.safe_load(compose_file("s", command))["services"]["s"]
    assert service["environment"]["A"] == "$$x"
    assert service["command"] == ["$$y"]


def test_a_request_survives_its_json():
    assert json.loads(json.dumps(REQUEST.as_json()))["model"]["id"] == MODEL.id
    assert CU130.run.gpus == 1
