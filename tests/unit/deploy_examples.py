"""A verified release, its image and a host, for the tests of deploys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.unit.release_examples import CPU as CPU_HARDWARE
from tests.unit.release_examples import (
    CPU_POLICY,
    DIGEST,
    FACTS,
    GPU_POLICY,
    NOW,
    build_run,
    gate_run,
    gpu_hardware,
    signed,
)
from tooling.attest.hardware import Device
from tooling.deploy.image import ImageFacts, LayerFacts
from tooling.deploy.inventory import GpuGroup, Host, Model, Workload
from tooling.deploy.preflight import Seen, SeenEngine, SeenModel
from tooling.deploy.request import Wanted
from tooling.release.evidence import name_attestations
from tooling.release.policy import assess
from tooling.release.records import ReleasePolicy, ReleaseRecord
from tooling.release.verify import Verification
from tooling.stack import load_stack

ROOT = Path(__file__).resolve().parents[2]
CU130, CPU = load_stack("cu130", ROOT).stack, load_stack("cpu", ROOT).stack
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = Model(id="Qwen/Qwen3-32B", revision=COMMIT)
LAYERS = tuple(
    LayerFacts(diff_id=f"sha256:{mark * 64}", digest=f"sha256:{mark * 63}0", compressed=size, unpacked=3 * size)
    for mark, size in (("1", 5_000), ("2", 2_000), ("3", 10))
)
IMAGE = ImageFacts(
    digest=DIGEST,
    image_id="sha256:" + "c" * 64,
    platform="linux/amd64",
    layers=LAYERS,
    entry_point=("/usr/bin/tini", "-g", "--", "/opt/stack/bin/python", "/opt/stack/runtime/entrypoint.py"),
)


def release(stack: str = "cu130", policy: ReleasePolicy = GPU_POLICY) -> Verification:
    """A release that its evidence makes qualified, or less when the policy is met by less."""
    hardware = CPU_HARDWARE if policy.device is Device.CPU else gpu_hardware()
    runs = [gate_run(requirement.gate, hardware=hardware) for requirement in policy.gates]
    evidence = signed(build_run(), *runs)
    facts = FACTS.model_copy(update={"census_worse": ()})
    record = ReleaseRecord(
        name=f"{stack}-0.5.23-{NOW:%Y%m%d}-{DIGEST[7:19]}",
        stack=stack,
        engine_version="0.5.23",
        created=(datetime.now(UTC) - timedelta(minutes=1)).isoformat(),
        policy=policy,
        facts=facts,
        assessment=assess(policy, DIGEST, evidence, facts, now=NOW),
        attestations=name_attestations(evidence),
        tool_version="0.1.0",
    )
    return Verification(
        source="registry.example:5000/team/cu130", digest=DIGEST, record_sha256="9" * 64, key_id="8" * 64,
        release=record,
    )  # fmt: skip


def cpu_release() -> Verification:
    return release("cpu", CPU_POLICY)


def wanted(**changes: Any) -> Wanted:
    fields: dict[str, Any] = {
        "reference": "registry.example:5000/team/cu130",
        "release": release(),
        "image": IMAGE,
        "stack": CU130,
    }
    return Wanted(**{**fields, **changes})


GROUP = GpuGroup(name="numa0", gpus=("0", "1", "2", "3"))
HOST = Host(name="box", model_cache="/srv/hf", groups=(GROUP,))
WORKLOAD = Workload(model=MODEL, arguments=("--tp=4",), environment_files=("/etc/hf.env",))
REPOSITORY = "/srv/hf/hub/models--Qwen--Qwen3-32B"


def seen(**changes: Any) -> Seen:
    fields: dict[str, Any] = {
        "python": "3.11.2",
        "machine": "x86_64",
        "user": 0,
        "engine": SeenEngine(version="28.1.0", api="1.49", root="/var/lib/docker", cdi=("/etc/cdi",)),
        "free": 100 * 10**9,
        "model": SeenModel(path=f"{REPOSITORY}/snapshots/{COMMIT}", repository=REPOSITORY, revisions=(COMMIT,)),
    }
    return Seen(**{**fields, **changes})
