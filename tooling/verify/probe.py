"""The probe as a gate: before anything is booted, what the GPUs of this machine really do in this image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling import console
from tooling.gates.records import Evidence
from tooling.probe.collect import WORKSPACE_MIB, collect, run_probe, with_host_facts
from tooling.probe.parse import read_document
from tooling.probe.report import judge
from tooling.records import sha256_of_file

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.gates.records import GateResult


def probe_gate(image: str, evidence: Path) -> GateResult:
    """Run the probe in a container of the image, with all GPUs and the grants that an engine gets.

    Args:
        image: Its id.
        evidence: Folder for the whole report (`probe.json`).

    Returns:
        The result of the gate `probe`; its evidence names the report by hash.

    Raises:
        EngineError: Docker cannot give GPUs to a container here.
        CommandError: The probe gave no document.
    """
    outside = collect()
    inside = run_probe(image, ["--workspace-mib", str(WORKSPACE_MIB)], console.say)
    report = judge(read_document(with_host_facts(inside, outside), where=image))
    path = evidence / "probe.json"
    path.write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    kept = Evidence(path=path.name, sha256=sha256_of_file(path))
    return report.result.model_copy(update={"evidence": (*report.result.evidence, kept)})
