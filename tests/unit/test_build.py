import json
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from pydantic import ValidationError

from tooling.base.bootstrap import BaseImage
from tooling.build.bench import switch_off_one
from tooling.build.builder import build_argv, ingredients_of
from tooling.build.context import (
    Ingredients,
    gather,
    labels_of,
    quoted,
    render_dockerfile,
    runnable,
    stack_document,
)
from tooling.build.failure import explain, yanked_pins
from tooling.build.layers import assign_layers
from tooling.build.patching import patch_hashes
from tooling.build.progress import Progress, phase_name
from tooling.census.architecture import parse_architecture
from tooling.dockerhost.build_client import BuildClient
from tooling.errors import CheckError, CommandError, EngineError, InputError
from tooling.lock.resolve import read_lock
from tooling.patches.errors import Fault, PatchError
from tooling.stack import load_stack
from tooling.stack.loading import parse_stack
from tooling.stack.model import Layer, PatchSeries, Stack

ROOT = Path(__file__).resolve().parents[2]
FILE = load_stack("cu130", ROOT)
STACK = FILE.stack
LOCK = read_lock(FILE, ROOT)
ADDED = ingredients_of(FILE, LOCK, ROOT / "images")
PLAIN = STACK.model_copy(update={"kernels": None, "patches": (), "local_packages": ()})
BASE = BaseImage(reference="base:1", image_id="sha256:1", packages={"libc6": "1"}, drift=(), epoch=86400)
STEP = "#7 [packages 3/9] RUN --mount=type=bind,source=bin EPOCH=1 /run/build/bin/install-layer torch"


def test_every_wheel_goes_into_one_layer():
    layers = assign_layers(STACK, LOCK)
    assert sorted(wheel.name for wheels in layers.values() for wheel in wheels) == [
        wheel.name for wheel in LOCK.wheels
    ]
    assert "torch" in {wheel.name for wheel in layers["torch"]}
    assert list(layers)[-1] == "engine"


def test_a_layer_that_names_no_package_of_the_lock_is_stale():
    stale = STACK.model_copy(update={"layers": (Layer(name="old", packages=("gone-*",)), *STACK.layers)})
    with pytest.raises(InputError, match="'gone-\\*' of layer 'old' matches no package"):
        assign_layers(stale, LOCK)


def test_the_dockerfile_goes_from_slow_to_fast_and_pulls_nothing():
    text = render_dockerfile(PLAIN, BASE, Ingredients(), ROOT / "images", {"a": 'x "y" $z'}, ca=True)
    positions = [text.index(f"install-layer {layer.name}") for layer in STACK.layers]
    assert positions == sorted(positions)
    assert text.index("COPY stack.json") > positions[-1]
    assert text.index("LABEL") > text.index("COPY stack.json")
    assert "syntax=" not in text
    assert text.count("FROM ") == 3
    assert all(
        line.split()[1] in {"base:1", "packages"} for line in text.splitlines() if line.startswith("FROM")
    )
    assert 'a="x \\"y\\" \\$z"' in text
    assert "\nUSER engine\n" in text


def test_layers_are_pruned_in_the_step_that_installs_them():
    pruned = STACK.model_copy(update={"prune": True})
    text = render_dockerfile(pruned, BASE, ADDED, ROOT / "images", {}, ca=False)
    assert text.count("source=prune,target=/run/build/prune") == len(STACK.layers)
    whole = STACK.model_copy(update={"prune": False})
    assert "build/prune" not in render_dockerfile(whole, BASE, ADDED, ROOT / "images", {}, ca=False)


def test_the_pruner_keeps_what_the_stack_is_for(tmp_path):
    pruned = STACK.model_copy(update={"prune": True})
    gather(pruned, LOCK, assign_layers(STACK, LOCK), ADDED, images=ROOT / "images", context=tmp_path, epoch=1)
    assert json.loads((tmp_path / "prune" / "policy.json").read_text())["targets"] == ["12.0", "12.1"]
    assert json.loads((tmp_path / "expected.json").read_text())["pruned"] == "/opt/stack/share/prune.json"
    program = tmp_path / "prune" / "prune.py"
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            program,
            tmp_path / "prune" / "policy.json",
            tmp_path / "layers",
            tmp_path / "r.json",
        ],
        env={"EPOCH": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout)["pruned"] == 0, "a layer without device code is no error"


def test_without_a_ca_bundle_none_is_mounted():
    assert "id=ca" not in render_dockerfile(STACK, BASE, ADDED, ROOT / "images", {}, ca=False)


def test_a_value_is_quoted_for_the_dockerfile():
    assert quoted('a\\b"c$d') == '"a\\\\b\\"c\\$d"'


def test_the_context_is_hashed_and_has_one_time(tmp_path):
    (tmp_path / "imported" / "pcie_ipc_comm").mkdir(parents=True)
    (tmp_path / "imported" / "pcie_ipc_comm" / "pcie_ipc_comm.so").touch()
    layers = assign_layers(STACK, LOCK)
    hashes = gather(STACK, LOCK, layers, ADDED, images=ROOT / "images", context=tmp_path, epoch=86400)
    assert {"bin/uv", "bin/install-layer", "layers/torch.txt", "stack.json", "expected.json"} <= hashes.keys()
    assert {path.stat().st_mtime for path in tmp_path.rglob("*")} == {86400}
    assert {
        "kit/tooling/patches/overlay.py",
        "kit/unidiff/patch.py",
        "kernels/compile_kernel.py",
    } <= hashes.keys()
    assert {"patches/01-flashinfer-python-0.7.2.json", "patches/02-sglang-0.5.23.json"} <= hashes.keys()
    assert "runtime/lib/tooling/census/reader/files.py" in hashes
    assert not any(name.startswith("imported/") for name in hashes), "made of the inputs, not an input"
    assert "--hash=sha256:" in (tmp_path / "layers" / "torch.txt").read_text()


def test_what_an_image_knows_of_its_stack():
    document = stack_document(STACK, ADDED)
    assert document["serve"]["command"] == ["python", "-m", "sglang.launch_server"]
    assert document["targets"]["required"] == ["sm_120"]
    assert document["kernels"] == ["pcie_ipc_comm", "pcie_ipc_ag_rs", "blackwell_kernels"]
    assert [name[:4] for name in document["patches"]["flashinfer-python-0.7.2"]] == ["0001", "0002", "0003"]
    assert "0001-allreduce-fusion-on-sm120" not in document["patches"]["sglang-0.5.23"], "off by default"
    cublas = next(rule for rule in document["census"] if rule["name"] == "cuBLAS")
    assert cublas["architectures"] == ["12.0", "12.0a", "12.0f"]
    assert not any("FlashMLA" in rule["name"] for rule in document["census"]), "known to be absent"


def test_which_machine_code_runs_on_a_device():
    assert runnable(parse_architecture("12.1")) == ["12.0", "12.0f", "12.1", "12.1a", "12.1f"]


def _stages(text: str) -> dict[str, str]:
    """Stage -> its text."""
    parts = re.split(r"^FROM (\S+) AS (\S+)$", text, flags=re.MULTILINE)[1:]
    return {parts[i + 1]: f"FROM {parts[i]}{parts[i + 2]}" for i in range(0, len(parts), 3)}


def test_patches_are_the_last_content_and_kernels_are_compiled_once_each():
    assert STACK.kernels is not None
    kernels = STACK.kernels.model_copy(update={"native": {}})
    without = STACK.model_copy(update={"local_packages": (), "kernels": kernels})
    stages = _stages(render_dockerfile(without, BASE, ADDED, ROOT / "images", {}, ca=False))
    assert list(stages) == [
        "packages", "contents", "patched", "kernel-patches", "kernel-sources",
        "kernel-pcie_ipc_comm", "kernel-pcie_ipc_ag_rs", "image",
    ]  # fmt: skip
    copies = [line for line in stages["image"].splitlines() if line.startswith("COPY")]
    assert copies[-3:] == [
        "COPY --from=kernel-pcie_ipc_comm /out/ /",
        "COPY --from=kernel-pcie_ipc_ag_rs /out/ /",
        "COPY --from=patched /out/ /",
    ]
    assert stages["contents"].startswith("FROM packages\n"), "RECORD holds for packages as they are shipped"
    assert "--plan 01-flashinfer-python-0.7.2.json --plan 02-sglang-0.5.23.json" in stages["patched"]
    assert "--import-check" in stages["patched"]
    assert "sglang" not in stages["kernel-patches"], "a patch of the engine makes no kernel compile again"
    assert stages["kernel-sources"].startswith("FROM packages\nCOPY --from=kernel-patches /out/ /")
    compiled = stages["kernel-pcie_ipc_comm"]
    assert compiled.startswith("FROM kernel-sources\n")
    assert "FLASHINFER_CUDA_ARCH_LIST=12.0a MAX_JOBS=2" in compiled
    assert "sharing=locked" in compiled
    assert "compile_kernel.py flashinfer.jit.comm pcie_ipc_comm /out" in compiled


def test_without_patches_and_kernels_there_are_no_stages_for_them():
    plain = _stages(render_dockerfile(PLAIN, BASE, Ingredients(), ROOT / "images", {}, ca=False))
    assert list(plain) == ["packages", "contents", "image"]
    kernels = STACK.model_copy(update={"patches": ()})
    unpatched = _stages(render_dockerfile(kernels, BASE, Ingredients(), ROOT / "images", {}, ca=False))
    assert list(unpatched)[2:4] == ["kernel-sources", "kernel-pcie_ipc_comm"]
    assert "COPY" not in unpatched["kernel-sources"]


def test_a_series_for_another_version_than_the_locked_one_is_refused():
    other = FILE.model_copy(
        update={"stack": STACK.model_copy(update={"patches": (PatchSeries(series="sglang-0.5.9"),)})}
    )
    with pytest.raises(InputError, match=r"is for sglang 0\.5\.9, the lock has 0\.5\.23"):
        ingredients_of(other, LOCK, ROOT / "images")


def test_a_series_given_twice_is_refused():
    twice = STACK.model_copy(update={"patches": (*STACK.patches, STACK.patches[0])})
    with pytest.raises(InputError, match=r"change the same file flashinfer/comm/mnnvl\.py"):
        ingredients_of(FILE.model_copy(update={"stack": twice}), LOCK, ROOT / "images")


def test_switches_of_the_stack_are_honoured():
    series = PatchSeries(series="sglang-0.5.23", enable=("0001",), disable=("0006",))
    switched = FILE.model_copy(update={"stack": STACK.model_copy(update={"patches": (series,)})})
    added = ingredients_of(switched, LOCK, ROOT / "images")
    names = stack_document(switched.stack, added)["patches"]["sglang-0.5.23"]
    assert [name[:4] for name in names] == ["0001", "0002", "0004", "0005", "0007"]
    assert patch_hashes(added.plans).keys() == {f"sglang-0.5.23/{name}" for name in names}


def test_the_bench_switches_one_patch_off_and_keeps_the_series():
    text, switched_off = FILE.path.read_text(), []
    while (after := switch_off_one(text, parse_stack(text, FILE.path), ROOT / "images")) is not None:
        text = after
        switched_off.append([series.disable for series in parse_stack(text, FILE.path).patches])
    assert switched_off == [[("0003",), ()], [("0003",), ("0007",)]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environment": {}}, "the engine would not find what was compiled"),
        (
            {"environment": {"FLASHINFER_CUDA_ARCH_LIST": "12.0f"}},
            "'12.0f' and kernels.architecture is '12.0a'",
        ),
        ({"kernels": {"architecture": "9.0a", "modules": ["x"]}}, "none of targets.required"),
        ({"kernels": {"architecture": "12.0a", "modules": ["x", "x"]}}, "listed twice"),
        ({"kernels": {"architecture": "12.0a", "modules": []}}, "at least 1"),
    ],
)
def test_kernels_that_the_engine_would_not_use_are_refused(change, message):
    document = {**STACK.model_dump(mode="json"), **change}
    with pytest.raises(ValidationError, match=message):
        Stack.model_validate(document)


def test_a_drifted_base_is_in_the_labels():
    assert labels_of(STACK, LOCK, BASE)["org.blackwell-stacks.base"] == "locked"
    drifted = BASE.model_copy(update={"drift": ("libc6: locked 1, found 2",)})
    assert labels_of(STACK, LOCK, drifted)["org.blackwell-stacks.base"] == "drifted"


def test_the_build_command(monkeypatch):
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@proxy")
    builder = BuildClient(path="/usr/bin/docker", version="20.10.24", kind="built-in")
    argv = build_argv(builder, Path("/d"), Path("/c"), Path("/i"), {"ca": "/ca.pem"}, host_network=True)
    assert argv == [
        "/usr/bin/docker", "build", "--progress=plain", "--file", "/d", "--iidfile", "/i",
        "--secret", "id=ca,src=/ca.pem", "--build-arg", "HTTPS_PROXY", "--network", "host", "/c",
    ]  # fmt: skip
    assert "secret@" not in " ".join(argv)


def test_progress_names_the_phases_and_keeps_the_lines_of_the_step_that_failed():
    log = StringIO()
    with Progress(log) as progress:
        for line in (STEP, "#7 0.5 Downloaded torch", "#7 DONE 12.5s", STEP.replace("#7", "#8"), "#8 0.1 boom"):
            progress.line(line)
        progress.line("#8 ERROR: executor failed running [/bin/sh -c x]: exit code: 2")
    assert progress.durations_s == {"layer torch": 12.5}
    assert progress.failed == ["boom", "ERROR: executor failed running [/bin/sh -c x]: exit code: 2"]
    assert log.getvalue().count("\n") == 6


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (STEP[3:], "layer torch"),
        ("exporting to image", "export"),
        ("[internal] load build definition from Dockerfile", None),
        ("[contents 1/1] RUN --mount=x python contents.py a b", "check of contents"),
        ("[patched 1/1] RUN --mount=x python -m overlay --import-check && find /out", "patches"),
        ("[kernel-a_b 1/1] RUN --mount=x python /run/kernels/compile_kernel.py f.g a_b /out", "kernel a_b"),
    ],
)
def test_phase_name(text, name):
    assert phase_name(text) == name


@pytest.mark.parametrize(
    ("line", "kind", "what"),
    [
        ("finding: torch is built for CUDA 12.9, the stack is CUDA 13.0", CheckError, "contents are not"),
        ("error: Hash mismatch for `a==1`", CheckError, "its hash differs"),
        ("cause: write /opt/x: no space left on device", EngineError, "disk of the Docker Engine is full"),
        ("cause: invalid peer certificate: UnknownIssuer", CommandError, "certificate is not trusted"),
        ("Because there is no version of a==1", CommandError, "not in the index any more"),
        ("cause: dns error: failed to lookup address information", CommandError, "cannot be reached"),
        ("error reading from server: EOF", EngineError, "went away"),
        ("kernel a_b: it exports no function", CheckError, "kernel module cannot be compiled"),
        ("something else", CommandError, "the build failed"),
    ],
)
def test_why_a_build_failed(line, kind, what):
    error = explain(["a line before", line], [], "/log")
    assert type(error) is kind
    assert what in error.what
    assert line in error.details
    assert "/log" in error.where


def test_a_refused_patch_keeps_its_names():
    refusal = PatchError(
        "a hunk does not fit", fix="refresh", fault=Fault.CONFLICT, patch="0002-x", file="a/b.py", hunk=3
    )
    error = explain(
        ["error: x", f"error-record: {json.dumps(refusal.as_record())}", "ERROR: exit code 1"], [], "/log"
    )
    assert isinstance(error, PatchError)
    assert (error.patch, error.file, error.hunk, error.fault) == ("0002-x", "a/b.py", 3, Fault.CONFLICT)
    assert error.where == "0002-x, a/b.py, hunk 3"
    assert error.details == ["full log: /log"]


def test_a_refusal_that_names_no_patch_is_an_input_error():
    record = InputError("the tree to be patched does not exist", where="/x").as_record()
    assert type(explain([f"error-record: {json.dumps(record)}"], [], "/log")) is InputError


def test_a_failure_outside_any_step_shows_the_last_lines():
    assert explain([], ["ERROR: failed to solve: x"], "/log").details == ["ERROR: failed to solve: x"]


def test_withdrawn_pins_are_read_from_the_log():
    lines = [
        '#7 1.2 warning: `a==1.0` is yanked (reason: "x")',
        "#7 1.3 warning: `a==1.0` is yanked",
        "#7 fine",
    ]
    assert yanked_pins(lines) == ["a==1.0"]
