"""The pure parts of booting: options, states, ends, platforms, arguments."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tooling.boot import (
    BootError,
    Mount,
    Reason,
    RunContract,
    dry_boot_contract,
    serve_arguments,
    stack_contract,
)
from tooling.boot.arguments import (
    changed_arguments,
    check_arguments,
    check_pairs,
    parse_command,
    read_result,
)
from tooling.boot.contract import container_options
from tooling.boot.dry_boot import STUBS, dry_boots, stubbed_modules, without_gpu_arguments
from tooling.boot.failure import describe_exit, explain_end
from tooling.boot.in_image.parse_arguments import _Parser, check
from tooling.boot.platforms import check_command, check_platforms
from tooling.boot.start import check_models
from tooling.boot.state import ContainerState, has_crashed_again, parse_state
from tooling.errors import CheckError, InputError
from tooling.stack.loading import parse_stack
from tooling.triage import triage

CONTRACT = RunContract(
    command=("serve", "--tp", "4"), models=(Mount(source="/m", target="/models/m"),), gpus="all"
)


def test_the_options_of_a_container_are_exactly_these():
    assert container_options(CONTRACT, image_id="sha256:1", stack="cu130", boot_id="b", host_port=None) == {
        "image": "sha256:1",
        "command": ["serve", "--tp", "4"],
        "name": "blackwell-stacks-b",
        "labels": {
            "blackwell-stacks.stack": "cu130",
            "blackwell-stacks.image": "sha256:1",
            "blackwell-stacks.boot": "b",
        },
        "environment": {},
        "ports": {"30000/tcp": ("127.0.0.1", None)},
        "volumes": {"/m": {"bind": "/models/m", "mode": "ro"}},
        "restart_policy": {"Name": "no"},
        "detach": True,
        "device_requests": [{"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]]}],
    }


def test_limits_are_set_only_when_asked_for():
    told = RunContract(
        entrypoint=("/p",),
        gpus=("0", "2"),
        ipc_host=True,
        shm_bytes=1,
        memory_bytes=2,
        memlock_unlimited=True,
        init=True,
        network="n",
    )
    options = container_options(told, image_id="i", stack="s", boot_id="b", host_port=8000)
    assert options["entrypoint"] == ["/p"]
    assert options["init"] is True
    assert options["device_requests"][0]["DeviceIDs"] == ["0", "2"]
    assert options["device_requests"][0]["Count"] == 0
    assert (options["ipc_mode"], options["shm_size"], options["network"]) == ("host", 1, "n")
    assert options["mem_limit"] == options["memswap_limit"] == 2
    assert options["ulimits"] == [{"Name": "memlock", "Soft": -1, "Hard": -1}]
    assert options["ports"] == {"30000/tcp": ("127.0.0.1", 8000)}


STACK = """
name: x
description: A stack for this test only.
platform: {architecture: x86_64, glibc: "2.36", python: "3.11"}
engine: {name: sglang, package: sglang, version: 0.5.23}
base: {bootstrap: {suite: bookworm, packages: [python3.11]}}
layers: [{name: engine}]
serve:
  command: [python, -m, sglang.launch_server]
  port: 30000
  arguments: {model-path: /m, tp: 4, enable-metrics: true, x: false}
budget: {build_disk_gb: 1}
"""


def test_a_stack_gives_the_contract_of_its_image():
    stack = parse_stack(STACK, Path("x.yaml"))
    assert serve_arguments(stack, ["--tp=2"]) == ("--model-path", "/m", "--enable-metrics", "--tp=2")
    told = stack_contract(stack, extra=["--model-path", "/n"], gpus="all")
    assert told.command[:3] == ("python", "-m", "sglang.launch_server")
    assert told.command[-2:] == ("--model-path", "/n")
    assert (told.port, told.shm_bytes, told.memlock_unlimited) == (30000, 16 << 30, True)
    assert stack_contract(stack).shm_bytes is None


def state(**more: object) -> ContainerState:
    fields: dict[str, object] = {
        "running": False, "status": "exited", "exit_code": 1, "oom_killed": False, "error": "",
        "started_at": "2026-06-01T12:30:00Z", "finished_at": "", "restarts": 0, **more,
    }  # fmt: skip
    return ContainerState.model_validate(fields)


def test_a_container_between_two_restarts_is_not_running():
    inspected = {
        "State": {
            "Running": True, "Restarting": True, "Status": "restarting", "ExitCode": 3, "OOMKilled": False,
            "Error": "", "StartedAt": "a", "FinishedAt": "b",
        },
        "RestartCount": 2,
    }  # fmt: skip
    seen = parse_state(inspected)
    assert not seen.running
    assert parse_state(inspected, oom_seen=True).oom_killed
    assert has_crashed_again(state(), seen)
    assert has_crashed_again(state(running=True), state(running=True, started_at="later"))
    assert not has_crashed_again(state(running=True), state())


def ended(log: list[str], image: str, more: dict[str, object]) -> tuple[Reason, str, str]:
    seen = state(**more)
    report = triage(log, died=f"exit code {seen.exit_code}", one_boot=True)
    return explain_end(seen, report, host_architecture="amd64", image_architecture=image)


@pytest.mark.parametrize(
    ("log", "more", "reason", "says"),
    [
        (["torch.OutOfMemoryError: CUDA out of memory."], {}, Reason.EXITED, "GPU allocation failed"),
        ([], {"oom_killed": True, "exit_code": 137}, Reason.OOM_KILLED, "memory limit"),
        ([], {"exit_code": 137}, Reason.EXITED, "killed"),
        ([], {"exit_code": 139}, Reason.EXITED, "segmentation fault"),
        (["[Errno 98] Address already in use"], {}, Reason.PORT_IN_USE, "taken"),
        (["No space left on device"], {}, Reason.NO_SPACE, "disk is full"),
        (["We couldn't connect to 'https://hub' to load"], {}, Reason.MODEL_MISSING, "hub"),
        (["NVML Shared Library Not Found"], {}, Reason.NO_GPUS, "NVIDIA runtime"),
        (["exec /entry.sh: exec format error"], {}, Reason.BAD_COMMAND, "both amd64"),
        (["exec /e: exec format error"], {"image": "arm64"}, Reason.WRONG_ARCHITECTURE, "architecture"),
        (["bash: /usr/bin/bash: cannot execute binary file"], {}, Reason.BAD_COMMAND, "as a script"),
        ([], {"error": "cannot mount volume"}, Reason.NOT_STARTED, "cannot mount volume"),
        ([], {}, Reason.EXITED, "does not say why"),
    ],
)
def test_every_end_has_its_name(log: list[str], more: dict[str, object], reason: Reason, says: str):
    image = str(more.pop("image", "amd64"))
    found, what, fix = ended(log, image, more)
    assert found is reason
    assert says in what
    assert fix


def test_exit_codes_are_explained():
    assert describe_exit(127) == "exit code 127, the command was not found"
    assert describe_exit(136) == "exit code 136, signal 8"
    assert describe_exit(17) == "exit code 17"


def test_an_index_without_the_hosts_platform_is_refused_before_the_pull():
    with pytest.raises(BootError) as caught:
        check_platforms("x", ["linux/amd64", "unknown/unknown"], "linux/arm64/v8")
    assert caught.value.reason is Reason.WRONG_ARCHITECTURE
    assert "built for amd64 and this host is arm64" in caught.value.what
    with pytest.raises(BootError, match="no platform at all"):
        check_platforms("x", ["unknown/unknown"], "amd64")
    check_platforms("x", ["linux/amd64", "linux/arm64"], "aarch64")


@pytest.mark.parametrize("command", [("bash", "-c", "serve"), ("/bin/sh", "-c", "serve")])
def test_a_command_that_repeats_the_entry_point_is_refused(command: tuple[str, ...]):
    with pytest.raises(BootError, match="repeats the entry point"):
        check_command(["/usr/bin/bash"], command)
    check_command(["/usr/bin/python3"], command)
    check_command(["/bin/bash", "-c"], command)


def test_a_mount_without_a_model_is_refused(tmp_path: Path):
    told = RunContract(models=(Mount(source=str(tmp_path), target="/m"),))
    with pytest.raises(BootError, match="has neither"):
        check_models(told)
    with pytest.raises(BootError, match="absolute"):
        check_models(RunContract(models=(Mount(source="relative", target="/m"),)))
    (tmp_path / "config.json").touch()
    check_models(told)


def test_a_dry_boot_keeps_all_but_the_gpu():
    told = CONTRACT.model_copy(
        update={"command": ("serve", "--tp", "4", "--attention-backend=flashinfer", "--enable-metrics")}
    )
    dry, limitations = dry_boot_contract(told, engine="sglang", image_pythonpath="/own")
    assert dry.command[:2] == ("serve", "--enable-metrics")
    assert "--device=cpu" in dry.command
    assert dry.environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert dry.environment["PYTHONPATH"].endswith("/stubs:/own")
    assert dry.gpus == ()
    assert dry.models == told.models
    assert [mount.source for mount in dry.mounts] == [str(STUBS)]
    assert "--tp 4 --attention-backend=flashinfer" in limitations[-1]
    assert stubbed_modules() == ("sgl_kernel",)


def test_gpu_arguments_go_with_their_values():
    how = dry_boots()["sglang"].gpu_arguments
    told = ("a", "--tp=2", "--context-length", "2", "--enable-dp-attention", "--quantization", "fp8", "b")
    assert without_gpu_arguments(told, how) == (
        ("a", "--context-length", "2", "b"),
        ("--tp=2", "--enable-dp-attention", "--quantization", "fp8"),
    )
    with pytest.raises(InputError, match="cannot be booted on a CPU"):
        dry_boot_contract(CONTRACT, engine="wibble")


def test_the_stub_has_every_name_and_refuses_every_call():
    script = """
import sgl_kernel, sgl_kernel.scalar_type as s
from sgl_kernel import copy_all_layer_kv_cache_cpu
from sgl_kernel.a.b import c
assert s.scalar_types.uint4b8 is not None
assert (s.ScalarType | None) is not None
assert not hasattr(sgl_kernel, "__wrapped__")
try:
    c()
except NotImplementedError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(STUBS)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "sgl_kernel.a.b.c is stubbed in a dry boot; it needs the GPU"


def parser() -> argparse.ArgumentParser:
    made = _Parser(prog="serve")
    made.add_argument("--model-path", required=True)
    made.add_argument("--backend", choices=["a", "b"], default="a")
    made.add_argument("--size", "--s2", type=int, default=1)
    made.add_argument("--enable-old", action="store_true", help="(Deprecated: use --backend) x")
    return made


def test_the_parser_in_the_image_names_everything_it_does_not_take():
    found = check(
        parser(),
        ["--model-path", "m", "--backend", "z", "--size=big", "--bogus", "3", "--enable-ol", "--enable-old"],
    )
    assert found["unknown"] == ["--bogus", "3"]
    assert [name for name, _ in found["refused"]] == ["--backend", "--s2"]
    assert "invalid choice" in found["refused"][0][1]
    assert found["abbreviated"] == [["--enable-ol", "--enable-old"]]
    assert [name for name, _ in found["deprecated"]] == ["--enable-old"]


def test_an_ambiguous_abbreviation_is_refused_by_name_and_hides_nothing_else():
    made = parser()
    made.add_argument("--size-limit", type=int)
    found = check(made, ["--model-path", "m", "--siz=3", "--bogus"])
    assert found["refused"] == [["--siz", "could match --size, --size-limit"]]
    assert found["unknown"] == ["--bogus"]


def test_a_missing_required_argument_is_a_refusal_too():
    assert "required" in check(parser(), [])["refused"][0][1]


def test_accepted_arguments_are_accepted():
    found = {**check(parser(), ["--model-path", "m", "--backend", "b"]), "version": "1"}
    assert found["values"] == {"model_path": "m", "backend": "b"}
    report = read_result("banner\nRESULT " + json.dumps(found) + "\nmore")
    assert report.accepted
    assert report.problems() == ()
    old = report.model_copy(
        update={"deprecated": (("--x", "use --y"),), "abbreviated": (("--b", "--backend"),)}
    )
    assert old.accepted
    assert old.warnings() == ("--b is an abbreviation, taken as --backend", "--x is deprecated: use --y")
    assert not report.model_copy(update={"options": 0}).accepted
    assert report.model_copy(update={"unknown": ("--x",)}).problems() == ("--x is unknown to this version",)
    with pytest.raises(CheckError, match="no result"):
        read_result("banner")


def test_the_command_that_asks_the_parser_touches_nothing():
    command = parse_command("img", "/s.py", "sglang", ["--x"], "/opt/python")
    assert command[:6] == ["docker", "run", "--rm", "--init", "--network", "none"]
    assert command[-3:] == [
        "img",
        "/run/blackwell-stacks/parse_arguments.py",
        '{"engine": "sglang", "arguments": ["--x"]}',
    ]
    with pytest.raises(InputError, match="not known"):
        check_arguments("img", "wibble", [], python="p")


def test_pairs_that_cannot_work_are_refused_before_boot():
    (alone,) = check_pairs("sglang", ["--speculative-algorithm", "EAGLE3"])
    assert alone.startswith("--speculative-algorithm=EAGLE3 needs --speculative-draft-model-path")
    assert check_pairs("sglang", ["--speculative-algorithm=NEXTN"]) == ()
    assert "ignored" in check_pairs("sglang", ["--speculative-num-steps", "3"])[0]


def test_what_a_server_reports_differently_is_named():
    info = {
        "enable_flashinfer_allreduce_fusion": False, "context_length": 1024, "device": "cpu",
        "kv_cache_dtype": "auto", "enable_metrics": True, "nested": {"a": 1}, "mem_fraction_static": 0.9,
    }  # fmt: skip
    arguments = [
        "--enable-flashinfer-allreduce-fusion", "--context-length", "1024", "--device=cpu", "--enable-metrics",
        "--kv-cache-dtype", "fp8_e4m3", "--nested", "x", "--unreported", "--mem-fraction-static", "0.90",
    ]  # fmt: skip
    assert changed_arguments(arguments, info) == (
        "--enable-flashinfer-allreduce-fusion is reported as False",
        "--kv-cache-dtype=fp8_e4m3 is reported as 'auto'",
    )
