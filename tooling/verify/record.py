"""The record of a verification: what was booted, what every gate saw, and what nobody looked at."""

from __future__ import annotations

from pydantic import model_validator

from tooling.boot import BootFacts
from tooling.gates.records import GateResult, Verdict, worst
from tooling.gates.throughput.plan import Throughput
from tooling.records import Record


class VerifyRecord(Record):
    """One verification.

    Attributes:
        schema_version: Version of this record's shape.
        stack: Name of the stack; empty for an engine that somebody else started.
        device: `gpu` or `cpu`; what ran on a CPU qualifies nothing for a GPU.
        inputs_sha256: Hash of the image's build inputs, from its label; empty where it has none.
        boots: Every boot that the gates saw.
        baseline_boots: Boots of the image that this one was compared with, in turns with those.
        model: Folder or file of the model, as mounted, and SHA-256 by file.
        profile: Name of the model profile.
        gates: Results, at least one.
        throughput: Everything that was measured, by boot.
        verdict: The worst of the gates; derived, never typed.
        limitations: What could not be checked, one sentence each.
        started: ISO 8601, UTC.
        ended: ISO 8601, UTC.
    """

    schema_version: int = 1
    stack: str
    device: str
    inputs_sha256: str = ""
    boots: tuple[BootFacts, ...]
    baseline_boots: tuple[BootFacts, ...] = ()
    model: dict[str, str]
    profile: str
    gates: tuple[GateResult, ...]
    throughput: tuple[Throughput, ...] = ()
    verdict: Verdict
    limitations: tuple[str, ...] = ()
    started: str
    ended: str

    @model_validator(mode="after")
    def _verdict_is_the_worst(self) -> VerifyRecord:
        if self.verdict is not worst(gate.verdict for gate in self.gates):
            raise ValueError("the verdict is not the worst of the gates")
        return self
