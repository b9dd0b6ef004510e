"""The whole chain on the cpu stack, against a real registry: release, second release, failures, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.container.release.conftest import quick
from tests.container.release.proxy import proxy
from tests.container.release.registry_server import install_registry, serve
from tests.models.damage import damage_gguf
from tooling.attest.gate import TestResult
from tooling.attest.provenance import InputKind, Provenance
from tooling.attest.sbom import Sbom
from tooling.build.context import LABEL
from tooling.gates.records import Verdict
from tooling.registry.errors import RegistryError
from tooling.registry.push import push_image, pushed_tag
from tooling.registry.reference import parse_reference
from tooling.registry.repository import Repository
from tooling.release.chain import release_stack
from tooling.release.errors import ReleaseRefusedError
from tooling.release.evidence import collect_referrers
from tooling.release.names import parse_release_name
from tooling.release.records import Status
from tooling.release.run import ChainRequest, ChainResult, GateOptions
from tooling.release.verify import verify
from tooling.sign.keys import SigningKey, Trust
from tooling.sign.passphrase import PASSPHRASE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import docker

    from tests.container.release.proxy import Plan

pytestmark = pytest.mark.container
ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "stacks" / "models" / "tiny" / "tiny.gguf"
KEY = SigningKey.generate()
TRUST = Trust((KEY.public,))


@pytest.fixture(scope="module")
def registry(
    tmp_path_factory: pytest.TempPathFactory, engine: docker.DockerClient
) -> Iterator[tuple[str, Plan]]:
    """A registry behind a proxy that can break requests; the names that the chain gives images go with it.

    One registry for all tests of this module: the engine then sends the layers once.
    """
    install_registry()
    with serve(tmp_path_factory.mktemp("chain")) as running, proxy(running.host) as proxied:
        yield proxied
    for image in engine.images.list():
        for tag in image.tags:
            if "/chain/" in tag:
                engine.images.remove(tag)


@pytest.fixture(scope="module")
def request_of(registry: tuple[str, Plan], tmp_path_factory: pytest.TempPathFactory) -> ChainRequest:
    return ChainRequest(
        stack="cpu",
        root=ROOT,
        registry=f"{registry[0]}/chain/first",
        key=KEY,
        trust=TRUST,
        settings=quick(),
        output=tmp_path_factory.mktemp("output"),
    )


@pytest.fixture(scope="module")
def released(request_of: ChainRequest) -> ChainResult:
    """The cpu stack on its whole way, once."""
    return release_stack(request_of)


def _repository(request: ChainRequest) -> Repository:
    return Repository(parse_reference(f"{request.registry}/{request.stack}"), quick())


def _copy(request: ChainRequest, released: ChainResult, name: str, engine: docker.DockerClient) -> ChainRequest:
    """The same image in a repository that nobody has used, to be released from there."""
    fresh = replace(request, registry=request.registry.replace("first", name))
    with _repository(request) as repository:
        config = repository.manifest(released.image.partition("@")[2]).config
    assert config is not None
    with _repository(fresh) as repository:
        manifest = push_image(engine, config.digest, repository, print)
        return replace(fresh, image=f"{repository.name}@{manifest.digest}")


def _release_tags(request: ChainRequest) -> list[str]:
    with _repository(request) as repository:
        return [tag for tag in repository.tags() if parse_release_name(tag)]


def test_the_cpu_stack_goes_from_declaration_to_release(
    released: ChainResult, request_of: ChainRequest, engine: docker.DockerClient
):
    assert released.released is not None
    assert [step.name for step in released.steps] == [
        "build", "push", "inspection", "gates", "evidence", "release",
    ]  # fmt: skip
    with _repository(request_of) as repository:
        found = verify(repository, released.released.name, TRUST, now=datetime.now(UTC))
        manifest = repository.manifest(found.digest)
        collected = collect_referrers(repository, found.digest, TRUST)
    assert found.status is Status.QUALIFIED
    assert released.image.endswith(found.digest)
    assert manifest.config is not None
    assert engine.images.get(manifest.config.digest).labels[f"{LABEL}.stack"] == "cpu"
    runs = [signed.statement.read(TestResult).measured for signed in collected.of(TestResult)]
    assert sorted(run.result.gate for run in runs) == [
        "arguments", "correctness", "inspection", "log-triage", "throughput",
    ]  # fmt: skip
    assert {run.hardware.device.value for run in runs} == {"cpu"}
    booted = [run.boot_ids for run in runs if run.result.gate in {"correctness", "log-triage", "throughput"}]
    assert len(set(booted)) == 1
    assert booted[0]
    (build,) = [signed.statement.read(Provenance) for signed in collected.of(Provenance)]
    assert build.inputs(InputKind.BASE)
    assert build.inputs(InputKind.LOCK)[0].name == "stacks/cpu.lock.txt"
    (bill,) = [signed.statement.read(Sbom) for signed in collected.of(Sbom)]
    purls = [part["purl"] for part in bill.components]
    assert any(purl.startswith("pkg:pypi/xllamacpp@") for purl in purls)
    assert any(purl.startswith("pkg:deb/debian/libc6@") for purl in purls)


def test_a_second_release_of_the_same_image_on_the_same_day_is_the_same_release(
    released: ChainResult, request_of: ChainRequest, tmp_path: Path
):
    again = release_stack(replace(request_of, image=released.image, output=tmp_path))
    assert again.released is not None
    assert released.released is not None
    assert again.released.name == released.released.name
    assert again.image == released.image
    assert _release_tags(request_of) == [again.released.name]
    # The evidence that is attached meets the gates, so none of them ran again.
    assert [step.name for step in again.steps] == ["pull", "inspection", "gates", "evidence", "release"]
    assert not (tmp_path / "gates").exists()


def test_a_failing_gate_stops_the_chain_before_the_tag_and_its_evidence_stays(
    released: ChainResult, request_of: ChainRequest, engine: docker.DockerClient, tmp_path: Path
):
    damage_gguf(TINY, "zero-v", tmp_path / "tiny.gguf")
    bad = replace(
        _copy(request_of, released, "failing", engine),
        gates=GateOptions(model=tmp_path / "tiny.gguf"),
        output=tmp_path / "output",
    )
    with pytest.raises(ReleaseRefusedError, match="correctness failed") as caught:
        release_stack(bad)
    assert caught.value.details
    assert _release_tags(bad) == []
    with _repository(bad) as repository:
        attached = collect_referrers(repository, bad.image.partition("@")[2], TRUST).of(TestResult)
    verdicts = {
        run.result.gate: run.result.verdict
        for run in (one.statement.read(TestResult).measured for one in attached)
    }
    assert verdicts["correctness"] is Verdict.FAIL
    assert verdicts["arguments"] is Verdict.PASS


@pytest.fixture(params=["record", "tag"])
def faulty(
    request: pytest.FixtureRequest,
    released: ChainResult,
    request_of: ChainRequest,
    engine: docker.DockerClient,
    tmp_path: Path,
) -> tuple[str, ChainRequest]:
    """At which write the registry fails, and what is released there."""
    fresh = _copy(request_of, released, f"faulty{request.param}", engine)
    return request.param, replace(
        fresh, settings=quick(attempts=2), evidence=released.evidence, output=tmp_path / "faulty"
    )


def test_a_registry_that_fails_during_the_release_gets_no_release_tag(
    released: ChainResult, registry: tuple[str, Plan], faulty: tuple[str, ChainRequest], tmp_path: Path
):
    assert released.released is not None
    name, plan = released.released.name, registry[1]
    at, request = faulty

    def fails(_number: int, method: str, path: str) -> bool:
        wanted = f"manifests/{name}" if at == "tag" else ".record-"
        return method == "PUT" and wanted in path

    plan.reset()
    plan.fault, plan.when = "500", fails
    with pytest.raises(RegistryError):
        release_stack(request)
    assert any(fails(0, method, path) for method, path in plan.seen)
    plan.reset()
    assert _release_tags(request) == []
    done = release_stack(replace(request, output=tmp_path / "again"))
    assert done.released is not None
    assert _release_tags(request) == [name]


@pytest.mark.usefixtures("released")
def test_nobody_to_push_to_is_named(engine: docker.DockerClient):
    image_id = engine.images.get("blackwell-stacks/cpu:built").id
    assert image_id is not None
    nobody = Repository(parse_reference("127.0.0.1:1/chain/cpu"), quick(attempts=1))
    with nobody, pytest.raises(RegistryError, match="could not push"):
        push_image(engine, image_id, nobody, print)
    assert engine.images.get(f"127.0.0.1:1/chain/cpu:{pushed_tag(image_id)}")


def _command(folder: Path, *arguments: str, code: int = 0) -> dict[str, object]:
    environment = {**os.environ, PASSPHRASE_VARIABLE: "only for these tests", "DOCKER_CONFIG": "/nonexistent"}
    environment |= {"XDG_CONFIG_HOME": str(folder / "config"), "XDG_DATA_HOME": str(folder / "data")}
    done = subprocess.run(
        [sys.executable, "-m", "tooling", *arguments, "--json"],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_the_gpu_stack_is_refused_before_anything_is_done(tmp_path: Path):
    answer = _command(tmp_path, "release", "cu130", code=1)
    error = answer["error"]
    assert isinstance(error, dict)
    assert error["kind"] == "ReleaseRefusedError"
    missing = [line for line in error["details"] if line.startswith("[missing]")]
    assert {line.split()[1].split(":")[1].partition("@")[0] for line in missing} == {
        "probe", "correctness", "engine-kits", "log-triage", "throughput",
    }  # fmt: skip
    assert any("blackwell-stacks attest cu130" in line for line in error["details"])
    # Neither a key nor a registry was made for it.
    assert not any(tmp_path.rglob("*.key"))
    assert not any(tmp_path.rglob("registry.log"))


def test_evidence_of_a_cpu_does_not_stand_in_for_gpus(released: ChainResult, tmp_path: Path):
    public = tmp_path / "chain.pub"
    public.write_bytes(KEY.public.pem())
    evidence = ["--evidence", str(released.evidence), "--trust", str(public)]
    answer = _command(tmp_path, "release", "cu130", *evidence, code=1)
    error = answer["error"]
    assert isinstance(error, dict)
    assert sum("device cpu never stands in for cuda" in line for line in error["details"]) == 3
