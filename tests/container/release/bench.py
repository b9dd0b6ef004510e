"""An image in a registry with signed evidence in a directory, ready to be released."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tests.container.release.images import push_image
from tests.unit.release_examples import CPU_POLICY, FACTS, KEY, NOW, TRUST, build_run, gate_run
from tooling.release.evidence import write_evidence
from tooling.release.publish import Released, ReleaseRequest, release

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.attest.statement import Statement
    from tooling.registry.manifest import Manifest
    from tooling.registry.repository import Repository
    from tooling.sign.keys import SigningKey


@dataclass
class Bench:
    """An image with evidence in a directory."""

    repository: Repository
    image: Manifest
    evidence: Path

    def add(self, *statements: Statement, key: SigningKey = KEY) -> None:
        for statement in statements:
            write_evidence(statement, key, self.evidence)

    def request(self, **changes: object) -> ReleaseRequest:
        request = ReleaseRequest(
            stack="cpu",
            engine_version="0.2.9",
            policy=CPU_POLICY,
            tool_version="0.1.0",
            evidence=self.evidence,
            facts=FACTS,
        )
        return replace(request, **changes)  # type: ignore[arg-type]

    def release(self, request: ReleaseRequest | None = None, *, later: timedelta = timedelta(0)) -> Released:
        return release(
            request or self.request(),
            self.repository,
            self.image.digest,
            key=KEY,
            trust=TRUST,
            now=NOW + later,
        )


def make_bench(repository: Repository, evidence: Path, text: str = "one", layers: int = 1) -> Bench:
    bench = Bench(repository, push_image(repository, text, layers=layers), evidence)
    bench.add(build_run(digest=bench.image.digest), gate_run(digest=bench.image.digest))
    return bench
