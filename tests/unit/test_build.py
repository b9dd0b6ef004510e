from io import StringIO
from pathlib import Path

import pytest

from tooling.base.bootstrap import BaseImage
from tooling.build.builder import build_argv
from tooling.build.context import gather, labels_of, quoted, render_dockerfile, stack_document
from tooling.build.failure import explain, yanked_pins
from tooling.build.layers import assign_layers
from tooling.build.progress import Progress, phase_name
from tooling.dockerhost.build_client import BuildClient
from tooling.errors import CheckError, CommandError, EngineError, InputError
from tooling.lock.resolve import read_lock
from tooling.stack import load_stack
from tooling.stack.model import Layer

ROOT = Path(__file__).resolve().parents[2]
FILE = load_stack("cu130", ROOT)
STACK = FILE.stack
LOCK = read_lock(FILE, ROOT)
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
    text = render_dockerfile(STACK, BASE, ROOT / "images", {"a": 'x "y" $z'}, ca=True)
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


def test_without_a_ca_bundle_none_is_mounted():
    assert "id=ca" not in render_dockerfile(STACK, BASE, ROOT / "images", {}, ca=False)


def test_a_value_is_quoted_for_the_dockerfile():
    assert quoted('a\\b"c$d') == '"a\\\\b\\"c\\$d"'


def test_the_context_is_hashed_and_has_one_time(tmp_path):
    hashes = gather(
        STACK, LOCK, assign_layers(STACK, LOCK), images=ROOT / "images", context=tmp_path, epoch=86400
    )
    assert {"bin/uv", "bin/install-layer", "layers/torch.txt", "stack.json", "expected.json"} <= hashes.keys()
    assert {path.stat().st_mtime for path in tmp_path.rglob("*")} == {86400}
    assert "--hash=sha256:" in (tmp_path / "layers" / "torch.txt").read_text()


def test_what_an_image_knows_of_its_stack():
    document = stack_document(STACK)
    assert document["serve"]["command"] == ["python", "-m", "sglang.launch_server"]
    assert document["targets"]["required"] == ["sm_120"]


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
        ("something else", CommandError, "the build failed"),
    ],
)
def test_why_a_build_failed(line, kind, what):
    error = explain(["a line before", line], [], "/log")
    assert type(error) is kind
    assert what in error.what
    assert line in error.details
    assert "/log" in error.where


def test_a_failure_outside_any_step_shows_the_last_lines():
    assert explain([], ["ERROR: failed to solve: x"], "/log").details == ["ERROR: failed to solve: x"]


def test_withdrawn_pins_are_read_from_the_log():
    lines = [
        '#7 1.2 warning: `a==1.0` is yanked (reason: "x")',
        "#7 1.3 warning: `a==1.0` is yanked",
        "#7 fine",
    ]
    assert yanked_pins(lines) == ["a==1.0"]
