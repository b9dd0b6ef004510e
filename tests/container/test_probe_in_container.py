"""The probe in a container that asked the engine for all GPUs; a hook brings the played driver into it.

The vendor's hook is called by the engine in the same way and brings the real driver.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.container.host.private_engine import private_engine
from tests.container.tiny_image import PYTHON, linked, python_layer
from tests.fake_gpu.build import LIBRARIES, build
from tooling.errors import EngineError
from tooling.gates.records import SIMULATION, Verdict
from tooling.probe.records import ProbeReport
from tooling.records import sha256_of_file
from tooling.verify.probe import probe_gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.container.host.private_engine import PrivateEngine

pytestmark = pytest.mark.container
IMAGE = "probe-simulation:1"
#: Where a Python built from source looks for packages.
SITE = f"python/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
RUNTIME = Path(__file__).parents[2] / "images" / "runtime"
#: The bindings open it by name.
LOADER = "/lib/x86_64-linux-gnu/libdl.so.2"
#: Called by the engine with the container's state on stdin, before its first program starts.
HOOK = """#!{python} -SE
import json, shutil, sys
bundle = json.load(sys.stdin)["bundle"]
root = json.load(open(bundle + "/config.json"))["root"]["path"]
for name in {names}:
    shutil.copy("{libraries}/" + name, root + "/usr/lib/x86_64-linux-gnu/" + name)
"""
SCENARIO = "gpus 2\nnuma-nodes 2\n"


def installed(module: str) -> Path:
    """Where the tests' own environment has a module or the folder of a package."""
    spec = find_spec(module)
    assert spec is not None, f"{module} is not installed"
    assert spec.origin is not None
    origin = Path(spec.origin)
    return origin.parent if spec.submodule_search_locations else origin


def packages() -> bytes:
    """Bindings, probe and scenario as a tar for the image's root."""
    buffer = io.BytesIO()
    folder = installed("cuda.bindings").parent
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(folder, f"{SITE}/cuda")
        tar.add(installed("pynvml"), f"{SITE}/pynvml.py")
        tar.add(RUNTIME, "opt/stack/runtime")
        for target in sorted({*linked(set(folder.rglob("*.so"))), LOADER}):
            tar.add(Path(target).resolve(), target.lstrip("/"), recursive=False)
        for name, content in (("tmp", None), ("usr/lib/x86_64-linux-gnu", None), ("scenario.txt", SCENARIO)):
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            member.mode, member.size = 0o755, len(content or "")
            tar.addfile(member, io.BytesIO((content or "").encode()))
    return buffer.getvalue()


def load_image(engine: PrivateEngine) -> None:
    """What the probe needs of an image of ours, with its entrypoint."""
    engine.docker("import", "-", "bare:1", stdin=python_layer(whole=True))
    made = engine.docker("create", "bare:1", PYTHON)
    engine.docker("cp", "-", f"{made}:/", stdin=packages())
    entry = f'ENTRYPOINT ["{PYTHON}", "/opt/stack/runtime/entrypoint.py"]'
    # Debian's own Python has no folder of that name on its path.
    variables = f"ENV FAKE_GPU_SCENARIO=/scenario.txt PYTHONPATH=/{SITE}"
    engine.docker("commit", "--change", entry, "--change", variables, made, IMAGE)
    engine.docker("rm", made)


@pytest.fixture
def gpu_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateEngine]:
    """An engine that finds the vendor's hook on its PATH."""
    libraries = tmp_path / "driver"
    libraries.mkdir()
    build(libraries)
    hook = tmp_path / "bin" / "nvidia-container-runtime-hook"
    hook.parent.mkdir()
    python = Path(sys.executable).resolve()
    hook.write_text(HOOK.format(python=python, names=sorted(LIBRARIES), libraries=libraries))
    hook.chmod(0o755)
    monkeypatch.setenv("PATH", f"{hook.parent}{os.pathsep}{os.environ['PATH']}")
    with private_engine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        load_image(engine)
        yield engine


@pytest.mark.usefixtures("gpu_engine")
def test_the_gate_sees_what_the_container_was_granted_and_says_that_it_was_played(tmp_path: Path):
    result = probe_gate(IMAGE, tmp_path)
    names = {check.name for check in result.checks}
    assert {"gpu-visible", "cuda-init", "memory-ladder", "peer-access"} <= names
    ladders = [check for check in result.checks if check.name in {"memory-ladder", "peer-access"}]
    assert {check.verdict for check in ladders} == {Verdict.PASS}, ladders
    assert SIMULATION in result.limitations
    (kept,) = result.evidence
    report = ProbeReport.model_validate_json((tmp_path / kept.path).read_text())
    assert kept.sha256 == sha256_of_file(tmp_path / kept.path)
    host = report.host
    assert [gpu.index for gpu in host.gpus] == [0, 1]
    assert host.simulated
    # What was asked for and granted, or the limit under which this machine's engine had to go on.
    granted = host.container
    assert granted.memlock_unlimited or granted.memlock_bytes
    assert granted.environment["NVIDIA_VISIBLE_DEVICES"] == "all"


def test_an_engine_that_cannot_hand_out_gpus_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with private_engine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        engine.docker("import", "-", IMAGE, stdin=python_layer())
        with pytest.raises(EngineError, match="Docker cannot give GPUs to containers here"):
            probe_gate(IMAGE, tmp_path)
