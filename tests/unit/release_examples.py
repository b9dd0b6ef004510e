"""Evidence for the tests of releases: gate runs, builds, policies, all about one made-up image."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tooling.attest.gate import gate_statement
from tooling.attest.hardware import Device, Gpu, Hardware
from tooling.attest.provenance import BuildFacts, BuildInput, InputKind, build_statement
from tooling.gates.records import Check, GateResult, Verdict, worst
from tooling.release.records import GateRequirement, Place, ReleaseFacts, ReleasePolicy, Waiver
from tooling.sign.bundle import Signed, sign, verify
from tooling.sign.keys import SigningKey, Trust

if TYPE_CHECKING:
    from tooling.attest.statement import Statement

DIGEST = "sha256:" + "a" * 64
OTHER_DIGEST = "sha256:" + "b" * 64
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
KEY = SigningKey.generate()
TRUST = Trust((KEY.public,))
FACTS = ReleaseFacts(unjudged_arch_gates=())

CPU = Hardware(
    device=Device.CPU, hardware_class="cpu-x86-64", fingerprint_sha256="c" * 64, cpu="Example CPU", kernel="6.1"
)


def gpu_hardware(**changes: Any) -> Hardware:
    gpu = Gpu(name="NVIDIA RTX PRO 6000 Blackwell", compute_capability="12.0", memory_bytes=96 * 2**30)
    fields: dict[str, Any] = {
        "device": Device.CUDA,
        "hardware_class": "rtx-pro-6000-x8",
        "fingerprint_sha256": "d" * 64,
        "gpus": (gpu,) * 8,
        "driver": "580.95.05",
    }
    return Hardware(**{**fields, **changes})


def ago(**delta: float) -> str:
    return (NOW - timedelta(**delta)).isoformat()


def gate_run(
    gate: str = "correctness",
    verdict: Verdict = Verdict.PASS,
    *,
    digest: str = DIGEST,
    hardware: Hardware = CPU,
    ended: str | None = None,
    started: str | None = None,
    value: float = 3740.0,
    boots: tuple[str, ...] = ("boot-1",),
    limitations: tuple[str, ...] = (),
    configuration: str = "e" * 64,
) -> Statement:
    check = Check(
        name="answers", verdict=verdict, seen="96 of 96 right", value=value, unit="tok/s", threshold=3000
    )
    result = GateResult(
        gate=gate,
        verdict=worst([verdict]),
        checks=(check,),
        limitations=limitations,
        configuration_sha256=configuration,
        started=started or ago(hours=2),
        ended=ended or ago(hours=1),
    )
    return gate_statement(
        result, image="test/image", digest=digest, hardware=hardware, tool_version="0.1.0", boot_ids=boots
    )


def build_run(*, digest: str = DIGEST, drifted: tuple[str, ...] = ()) -> Statement:
    facts = BuildFacts(
        stack="cpu",
        engine="xllamacpp",
        engine_version="0.2.9",
        inputs=(
            BuildInput(kind=InputKind.BASE, name="bookworm", sha256="1" * 64),
            BuildInput(kind=InputKind.LOCK, name="stacks/cpu.lock.txt", sha256="2" * 64),
            BuildInput(kind=InputKind.PATCH, name="images/patches/0001.patch", sha256="3" * 64),
        ),
        drifted_packages=drifted,
        source_commit="f" * 40,
        builder={"docker": "20.10.24"},
        tool_version="0.1.0",
        started=ago(hours=4),
        ended=ago(hours=3),
    )
    return build_statement(facts, image="test/image", digest=digest)


def signed(*statements: Statement, key: SigningKey = KEY) -> list[Signed]:
    trust = Trust((key.public,))
    return [verify(sign(statement, key), trust) for statement in statements]


CPU_POLICY = ReleasePolicy(device=Device.CPU, gates=(GateRequirement(gate="correctness"),))
GPU_POLICY = ReleasePolicy(
    device=Device.CUDA,
    compute_capabilities=("12.0",),
    gates=(
        GateRequirement(gate="census", place=Place.IMAGE),
        GateRequirement(gate="correctness"),
        GateRequirement(gate="throughput", hardware_classes=("rtx-pro-6000-x8",)),
    ),
    driver_min="580.65.06",
    driver_below="600",
)


def waiver(requirement: str, **changes: Any) -> Waiver:
    fields: dict[str, Any] = {
        "requirement": requirement,
        "reason": "no machine of this class is free before the fair",
        "by": "A. Releaser",
        "dated": ago(days=1),
        "expires": ago(days=-10),
    }
    return Waiver(**{**fields, **changes})
