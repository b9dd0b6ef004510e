"""From gates that ran to signed evidence: one statement a gate, each with the boots that it saw."""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import version
from typing import TYPE_CHECKING

from tooling.attest.gate import gate_statement
from tooling.errors import CheckError

if TYPE_CHECKING:
    from tooling.attest.hardware import Hardware
    from tooling.attest.statement import Statement
    from tooling.gates.records import GateResult
    from tooling.verify.record import VerifyRecord

#: The gate that sees all boots together, and those that need none.
_OVER_ALL_BOOTS, _WITHOUT_BOOT = "throughput", {"arguments", "probe"}


def statement_of(
    result: GateResult, *, image: str, digest: str, hardware: Hardware, boot_ids: tuple[str, ...] = ()
) -> Statement:
    """The statement of one gate, with this toolkit's version."""
    return gate_statement(
        result,
        image=image,
        digest=digest,
        hardware=hardware,
        tool_version=version("blackwell-stacks"),
        boot_ids=boot_ids,
    )


def verify_statements(
    record: VerifyRecord, *, image: str, image_id: str, digest: str, hardware: Hardware
) -> list[Statement]:
    """The statements of a verification.

    Args:
        record: What ran.
        image: Repository, for people.
        image_id: The engine's id of the image whose manifest has the digest.
        digest: Digest of that manifest.
        hardware: The machine.

    Raises:
        CheckError: A boot was one of another image.
    """
    strange = [boot for boot in record.boots if boot.image_id != image_id]
    if strange or not record.boots:
        raise CheckError(
            "the gates did not run on this image",
            where=f"{image}@{digest}",
            details=[f"boot {boot.boot_id} ran {boot.image_id}" for boot in strange] or ["there was no boot"],
            fix="run them again",
        )
    every = tuple(boot.boot_id for boot in record.boots)
    seen: defaultdict[str, int] = defaultdict(int)
    statements = []
    for gate in record.gates:
        boots: tuple[str, ...] = every
        if gate.gate in _WITHOUT_BOOT:
            boots = ()
        elif gate.gate != _OVER_ALL_BOOTS:
            boots = every[seen[gate.gate] : seen[gate.gate] + 1]
        seen[gate.gate] += 1
        statements.append(statement_of(gate, image=image, digest=digest, hardware=hardware, boot_ids=boots))
    return statements
