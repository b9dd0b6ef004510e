"""All that is refused before a byte moves: each rule on made-up hosts; the script that looks, on real files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.deploy_examples import (
    COMMIT,
    CPU,
    CU130,
    GROUP,
    HOST,
    IMAGE,
    MODEL,
    cpu_release,
    release,
    seen,
    wanted,
)
from tests.unit.release_examples import CPU_POLICY
from tooling.deploy.faults import HostFault
from tooling.deploy.image import unpacked_bytes
from tooling.deploy.inventory import GpuGroup, Model
from tooling.deploy.preflight import (
    DISK_MARGIN,
    SeenEngine,
    SeenModel,
    check_status,
    gpu_problems,
    host_problems,
    image_problems,
    read_seen,
    refuse,
)
from tooling.errors import CheckError
from tooling.probe.records import GpuFacts, HostRecord, Source
from tooling.registry.manifest import Descriptor
from tooling.release.records import Status

SERVE = ["serve"]
LOOK = Path(__file__).resolve().parents[2] / "tooling" / "deploy" / "on_host" / "look.py"


def _gpus(count: int = 4, capability: str = "12.0", driver: str = "580.95.05") -> HostRecord:
    gpus = tuple(
        GpuFacts(index=number, name="NVIDIA RTX PRO 6000", compute_capability=capability)
        for number in range(count)
    )
    return HostRecord(source=Source.HOST, gpus=gpus, driver=driver)


def test_a_good_host_has_no_problem():
    assert host_problems(HOST, seen(), MODEL) == []
    assert image_problems(HOST, seen(), IMAGE, SERVE) == []
    assert gpu_problems(HOST, [GROUP], _gpus(), release(), CU130) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"python": "3.8.10"}, "python3 of the host is 3.8.10"),
        ({"engine": SeenEngine(error="docker: command not found")}, "has no Docker"),
        ({"engine": SeenEngine(error="permission denied while trying to connect to the Docker daemon socket")},
         "may not use the host's Docker Engine"),
        ({"engine": SeenEngine(error="client version 1.43 is too old. Minimum supported API version is 1.44")},
         "its minimum is 1.44. What runs is untouched"),
        ({"engine": SeenEngine(error="Cannot connect to the Docker daemon at unix:///x.")}, "does not answer"),
        ({"unreadable": ("/etc/hf.env",)}, "/etc/hf.env cannot be read"),
        ({"model": SeenModel(problem="the cache does not have this revision", revisions=("f" * 40,))},
         "at revision 0123456789ab is not usable in /srv/hf"),
        ({"model": None}, "it was not looked for"),
    ],
)  # fmt: skip
def test_what_of_a_host_stands_against_a_deploy(changes, words):
    (problem,) = host_problems(HOST, seen(**changes), MODEL)
    assert words in problem.what
    assert problem.where == "box"
    assert problem.fix


def test_a_missing_revision_names_those_that_are_there_and_the_command_that_fetches_it():
    there = SeenModel(problem="the cache does not have this revision", revisions=("f" * 40,))
    (problem,) = host_problems(HOST, seen(model=there), MODEL)
    assert problem.details == ["there are revisions: ffffffffffff"]
    assert f"hf download Qwen/Qwen3-32B --revision {COMMIT}" in problem.fix


def test_a_host_without_a_model_cache_is_told_where_to_write_it():
    host = HOST.model_copy(update={"model_cache": None})
    (problem,) = host_problems(host, seen(model=SeenModel(problem="x")), MODEL)
    assert "--model-cache" in problem.fix
    own = Model(id="tiny", revision="0123456", path="/srv/tiny")
    (problem,) = host_problems(host, seen(model=SeenModel(problem="it does not exist")), own)
    assert "/srv/tiny: it does not exist" in problem.what


def test_an_image_for_another_architecture_is_refused_before_the_pull():
    (problem,) = image_problems(HOST, seen(machine="aarch64"), IMAGE, SERVE)
    assert "is built for amd64 and this host is arm64" in problem.what
    arm = IMAGE.model_copy(update={"platform": "linux/arm64"})
    assert image_problems(HOST, seen(machine="aarch64"), arm, SERVE) == []


def test_a_command_that_repeats_the_entry_point_is_no_matter_of_architecture():
    image = IMAGE.model_copy(update={"entry_point": ("/bin/bash",)})
    (problem,) = image_problems(HOST, seen(), image, ["bash", "-c", "serve"])
    assert "repeats the entry point" in problem.what


def test_too_little_disk_is_told_with_numbers():
    need = sum(layer.compressed + layer.unpacked for layer in IMAGE.layers) + DISK_MARGIN
    assert image_problems(HOST, seen(free=need), IMAGE, SERVE) == []
    (problem,) = image_problems(HOST, seen(free=need - 1), IMAGE, SERVE)
    assert "GiB free" in problem.what
    # What the host has already needs no room.
    everything = SeenEngine(images=(tuple(layer.diff_id for layer in IMAGE.layers),))
    assert image_problems(HOST, seen(free=1, engine=everything), IMAGE, SERVE) == []


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (_gpus(0), "shows no NVIDIA GPU"),
        (_gpus(2), "has no GPU 2, 3"),
        (_gpus(driver="570.10"), "driver is 570.10, the release needs 580.65.06"),
        (_gpus(driver=""), "driver is not known"),
        (_gpus(driver="610.1"), "is newer than what the release was proved with"),
        (_gpus(capability="9.0"), "for compute capability 12.0"),
    ],
)
def test_gpus_and_driver_must_be_those_of_the_release(record, words):
    problems = gpu_problems(HOST, [GROUP], record, release(), CU130)
    assert len(problems) == 1
    assert words in problems[0].what


def test_groups_must_go_with_the_stack():
    (few,) = gpu_problems(HOST, [GpuGroup()], _gpus(), release(), CU130)
    assert "has 0 GPUs, stack cu130 needs 1" in few.what
    (many,) = gpu_problems(HOST, [GROUP], _gpus(), cpu_release(), CPU)
    assert "uses none" in many.what


def test_all_problems_are_told_at_once():
    problems = host_problems(HOST, seen(unreadable=("/a", "/b")), MODEL)
    with pytest.raises(HostFault) as caught:
        refuse(problems, "box")
    assert "2 things stand against a deploy; nothing was touched" in caught.value.what
    assert any("/b cannot be read" in line for line in caught.value.details)
    refuse([], "box")


# --- how far a release is proved --------------------------------------------------------------------------


def test_a_qualified_release_needs_no_word():
    assert check_status(release(), CU130, None, "") == ""
    assert check_status(cpu_release(), CPU, None, "") == ""


def _less(status: Status):
    good = release()
    assessment = good.release.assessment.model_copy(update={"status": status})
    return good.model_copy(update={"release": good.release.model_copy(update={"assessment": assessment})})


def test_less_than_qualified_is_refused_unless_it_is_accepted_by_name_with_a_reason():
    found = _less(Status.SOURCE_QUALIFIED)
    with pytest.raises(CheckError, match="is source-qualified") as caught:
        check_status(found, CU130, None, "")
    assert "--accept source-qualified --reason" in caught.value.fix
    with pytest.raises(CheckError, match="needs a reason"):
        check_status(found, CU130, Status.SOURCE_QUALIFIED, "why not")
    note = check_status(found, CU130, Status.SOURCE_QUALIFIED, "first box of its kind, gates run there")
    assert note == "source-qualified accepted: first box of its kind, gates run there"
    with pytest.raises(CheckError, match="is untested"):
        check_status(_less(Status.UNTESTED), CU130, Status.SOURCE_QUALIFIED, "a reason that is long enough")


def test_evidence_of_a_cpu_proves_nothing_for_a_gpu_stack():
    found = release("cu130", CPU_POLICY)
    assert found.status is Status.QUALIFIED
    with pytest.raises(CheckError, match="evidence on a CPU only"):
        check_status(found, CU130, None, "")
    with pytest.raises(CheckError, match="evidence on a CPU only"):
        check_status(found, CU130, Status.SOURCE_QUALIFIED, "a reason that is long enough")


def test_a_release_of_another_stack_is_refused():
    with pytest.raises(CheckError, match="of stack 'cu130', not of 'cpu'"):
        check_status(release(), CPU, None, "")


# --- sizes ------------------------------------------------------------------------------------------------


def _layer(size: int, kind: str = "tar+gzip") -> Descriptor:
    return Descriptor(
        media_type=f"application/vnd.oci.image.layer.v1.{kind}", digest="sha256:" + "1" * 64, size=size
    )


def test_the_unpacked_size_is_read_from_the_end_of_a_gzip_stream():
    assert unpacked_bytes(_layer(100), lambda _, n: (1000).to_bytes(n, "little")) == 1000
    five_gib = 5 << 30
    wrapped = (five_gib % (1 << 32)).to_bytes(4, "little")
    assert unpacked_bytes(_layer(3 << 30), lambda _, __: wrapped) == five_gib
    assert unpacked_bytes(_layer(100), lambda _, __: b"") == 300
    assert unpacked_bytes(_layer(100, "tar"), lambda _, __: b"") == 100
    assert unpacked_bytes(_layer(100, "tar+zstd"), lambda _, __: b"") == 300


# --- the script that looks --------------------------------------------------------------------------------


def _look(model: dict[str, str] | None, cache: Path | str = "", files: tuple[str, ...] = ()):
    asked = {"program": "/nowhere", "model": model, "model_cache": str(cache), "files": list(files)}
    done = subprocess.run(
        [sys.executable, "-", json.dumps(asked)], input=LOOK.read_bytes(), capture_output=True, check=True,
        env={"PATH": "/nowhere"},
    )  # fmt: skip
    return read_seen(done.stdout.decode(), "here")


@pytest.fixture
def cache(tmp_path):
    home = tmp_path / "hub" / "models--org--m"
    (home / "blobs").mkdir(parents=True)
    snapshot = home / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name, content in (("config.json", "{}"), ("a.safetensors", "x")):
        (home / "blobs" / name).write_text(content)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    index = {"weight_map": {"w": "a.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


ASKED = {"id": "org/m", "revision": COMMIT, "path": ""}


def test_a_whole_revision_is_found(cache):
    found = _look(ASKED, cache).model
    assert found is not None
    assert found.problem == ""
    assert found.path.endswith(f"snapshots/{COMMIT}")
    assert _look(ASKED, cache / "hub").model == found.model_copy()


def test_a_revision_that_is_not_there_lists_those_that_are(cache):
    found = _look({**ASKED, "revision": "f" * 40}, cache).model
    assert found is not None
    assert (found.problem, found.revisions) == ("the cache does not have this revision", (COMMIT,))
    assert _look({**ASKED, "id": "org/other"}, cache).model.problem == "the cache does not have this model"
    assert _look(ASKED, "").model.problem == "the cache does not have this model"


def test_a_broken_download_is_seen(cache):
    home = cache / "hub" / "models--org--m"
    (home / "blobs" / "a.safetensors").unlink()
    assert "its download is not complete" in _look(ASKED, cache).model.problem
    (home / "snapshots" / COMMIT / "a.safetensors").unlink()
    assert "e.g. a.safetensors" in _look(ASKED, cache).model.problem


def test_weights_at_a_path(tmp_path):
    own = {"id": "m", "revision": "0123456", "path": str(tmp_path / "w")}
    assert _look(own).model.problem == "it does not exist"
    (tmp_path / "w").mkdir()
    assert "neither a config.json nor a .gguf" in _look(own).model.problem
    (tmp_path / "w" / "m.gguf").write_text("x")
    assert _look(own).model.problem == ""


def test_a_host_without_docker_says_so(tmp_path):
    found = _look(None, files=(str(tmp_path / "gone"),))
    assert found.engine.error == "docker: command not found"
    assert found.unreadable == (str(tmp_path / "gone"),)
    assert found.memory_available


def test_a_greeting_before_the_answer_is_passed_over_and_nonsense_is_not():
    text = '{"python": "3.11.2", "machine": "x86_64", "user": 0, "engine": {}}'
    assert read_seen("Welcome to box!\n" + text, "box").machine == "x86_64"
    with pytest.raises(HostFault, match="something else than was asked"):
        read_seen("Welcome to box!\n", "box")


def test_the_examples_agree():
    assert wanted().image.digest == wanted().release.digest
