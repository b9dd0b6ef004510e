"""The document that an operator sends, and the command that becomes of it."""

from __future__ import annotations

import json

import pytest

from tests.unit.host_examples import DIGEST, IMAGE_ID, document, request
from tooling.errors import InputError
from tooling.host.contract import cache_directory, create_argv, run_argv
from tooling.host.reading import parse_request, read_request


def test_the_exact_command():
    assert create_argv(request(), 7, IMAGE_ID) == [
        *("docker", "create", "--name", "blackwell-default-g0007"),
        *("--label", f"blackwell-stacks.digest={DIGEST}"),
        *("--label", "blackwell-stacks.generation=7"),
        *("--label", "blackwell-stacks.group=default"),
        *("--label", "blackwell-stacks.release=cu130-0.5.23-20261129-a1a1a1a1a1a1"),
        *("--label", "blackwell-stacks.role=stack"),
        *("--label", "blackwell-stacks.stack=cu130"),
        *("--label", "prometheus.io/port=30000"),
        *("--restart", "no", "--stop-timeout", "120"),
        *("--log-driver", "json-file", "--log-opt", "max-size=1000", "--log-opt", "max-file=2"),
        *("--init", "--user", "1000", "--shm-size", "17179869184", "--ulimit", "memlock=-1:-1"),
        *("--env", "NVIDIA_VISIBLE_DEVICES=void"),
        *("--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"),
        *("--env", "HF_HUB_OFFLINE=1", "--env", "NCCL_DEBUG=WARN", "--env-file", "/etc/blackwell/token.env"),
        *("--mount", "type=bind,source=/srv/models,target=/models,readonly"),
        "--mount",
        "type=bind,source=/var/cache/stacks/a1a1a1a1a1a1-sm_120/kernels,target=/home/engine/.cache",
        *("--publish", "127.0.0.1:30000:30000"),
        *(IMAGE_ID, "serve", "--model-path", "/models/m"),
    ]


def test_gpus_by_the_runtime_and_none_at_all():
    by_runtime = create_argv(request(contract__gpu_mode="gpus"), 1, IMAGE_ID)
    assert by_runtime[by_runtime.index("--gpus") + 1] == '"device=0,1"'
    assert "NVIDIA_VISIBLE_DEVICES=void" not in by_runtime
    other = create_argv(request(contract__gpu_mode="runtime"), 1, IMAGE_ID)
    at = other.index("--runtime")
    assert other[at : at + 4] == ["--runtime", "nvidia", "--env", "NVIDIA_VISIBLE_DEVICES=0,1"]
    # Images name `all` in their environment; a host whose default runtime reads it must not hand out anything.
    none = create_argv(request(contract__gpu_mode="none", contract__gpus=[]), 1, IMAGE_ID)
    assert "NVIDIA_VISIBLE_DEVICES=void" in none
    assert "--gpus" not in none
    assert "--device" not in none


def test_what_a_person_starts_differs_in_name_policy_and_reference_alone():
    created = create_argv(request(), 7, IMAGE_ID)
    run = run_argv(request(), name="mine")
    assert run[:3] == ["docker", "run", "--detach"]
    assert "unless-stopped" in run
    assert run[run.index("--stop-timeout") : -4] == created[created.index("--stop-timeout") : -4]
    assert run[-4:] == [f"registry.example:5000/stacks/cu130@{DIGEST}", *created[-3:]]


def test_kernels_are_kept_by_image_and_target():
    other = "sha256:" + "c3" * 32
    changed = request(digest=other, reference=f"r/x@{other}")
    assert cache_directory(request()) != cache_directory(changed)
    assert cache_directory(request()) != cache_directory(request(requirements__target="sm_121"))
    assert cache_directory(request(contract__cache_mount=None)) == ""


def test_an_ipv6_address_is_written_in_brackets():
    port = {"address": "::1", "host": 1, "container": 2}
    argv = create_argv(request(contract__ports=[port]), 1, IMAGE_ID)
    assert argv[argv.index("--publish") + 1] == "[::1]:1:2"


def test_a_request_survives_its_own_json():
    once = request()
    assert read_request(json.dumps(once.as_json())) == once


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "blackwell-stacks/host-request/v2"}, "schema"),
        ({"surprise": 1}, "unknown fields: surprise"),
        ({"contract__surprise": 1}, "contract has unknown fields: surprise"),
        ({"digest": "sha256:" + "f" * 64}, "does not end in the digest"),
        ({"reference": "registry.example/x:latest"}, "reference"),
        ({"group": "../../etc"}, "group"),
        ({"image_id": "latest"}, "image_id"),
        ({"keep": 0}, "keep"),
        ({"keep": True}, "keep"),
        ({"pull": "always"}, "pull"),
        ({"records": [{}]}, "trust is empty"),
        ({"contract__gpu_mode": "none"}, "gpu_mode"),
        ({"contract__gpus": ["0", "0"]}, "a GPU twice"),
        ({"contract__gpus": ["all"]}, r"gpus\[0\]"),
        ({"contract__environment": {"HF_TOKEN": "hf_x"}}, "secrets by their names"),
        ({"contract__environment": {"AWS_SECRET_ACCESS_KEY": "x"}}, "secrets by their names"),
        ({"contract__environment": {"A=B": "x"}}, "A=B"),
        ({"contract__labels": {"blackwell-stacks.group": "x"}}, "program itself"),
        ({"contract__mounts": [{"source": "/a,readonly=false", "target": "/b"}]}, "source"),
        ({"contract__mounts": [{"source": "/a", "target": "/home/engine/.cache"}]}, "target twice"),
        ({"contract__network": "host"}, "no effect with network host"),
        ({"contract__network": "none"}, "no way to ask"),
        ({"contract__ipc": "host"}, "no effect with ipc host"),
        ({"contract__health": {"port": 1}}, "nobody asked"),
        ({"contract__health": {"port": 1, "prompt": "x", "expect": " "}}, "any answer meets"),
        ({"contract__health": {"port": 0, "prompt": "x", "expect": "y"}}, "port"),
        ({"contract__stop_grace_seconds": 1.5}, "whole number"),
    ],
)
def test_a_wrong_request_is_refused_by_the_field_s_name(changes, message):
    with pytest.raises(InputError, match=message):
        parse_request(document(**changes))


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "HF_TOKEN_PATH", "API_KEY_FILE"])
def test_variables_that_only_sound_like_secrets_pass(name):
    assert request(contract__environment={name: "x"}).contract.environment == {name: "x"}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"'])
def test_what_is_no_request_at_all_is_refused(text):
    with pytest.raises(InputError):
        read_request(text)
