"""The attestation of one gate: the vetted test-result predicate, and beside it what was really measured."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from tooling.attest.hardware import Hardware
from tooling.attest.statement import DigestSet, Predicate, ResourceDescriptor, Statement, WireRecord
from tooling.gates.records import GateResult, Verdict
from tooling.records import Record


class Measured(Record):
    """The numbers behind a test result; the vetted predicate has room for names only.

    Attributes:
        result: The gate's own record: checks with values, units and thresholds, verdict, limitations, hashes
            of the configuration and of the raw logs, start and end.
        hardware: What it ran on.
        boot_ids: The boots that were measured; empty for a gate that looks at the image alone.
        tool_version: Version of this toolkit.
    """

    result: GateResult
    hardware: Hardware
    boot_ids: tuple[str, ...] = ()
    tool_version: str = Field(min_length=1)


class TestResult(WireRecord, Predicate):
    """in-toto `test-result/v0.1`, with the measured part as an extension that other readers ignore.

    The short form is derived from the measured part and cannot contradict it.
    """

    __test__: ClassVar[bool] = False  # pytest: this is no test class
    PREDICATE_TYPE: ClassVar[str] = "https://in-toto.io/attestation/test-result/v0.1"

    model_config = ConfigDict(**WireRecord.model_config)

    result: Literal["PASSED", "WARNED", "FAILED"]
    configuration: tuple[ResourceDescriptor, ...] = Field(min_length=1)
    passed_tests: tuple[str, ...] = ()
    warned_tests: tuple[str, ...] = ()
    failed_tests: tuple[str, ...] = ()
    measured: Measured = Field(alias="urn:blackwell-stacks:measured:v1")

    @model_validator(mode="after")
    def _short_form_is_derived(self) -> Self:
        if (self.result, self.configuration, self.passed_tests, self.failed_tests) != _short_form(
            self.measured.result
        ):
            raise ValueError("the short test result does not agree with what was measured")
        return self

    @classmethod
    def of(cls, measured: Measured) -> Self:
        """Derive the whole predicate from what was measured."""
        result, configuration, passed, failed = _short_form(measured.result)
        return cls(
            result=result,
            configuration=configuration,
            passed_tests=passed,
            failed_tests=failed,
            measured=measured,
        )


_ShortForm = tuple[
    Literal["PASSED", "FAILED"], tuple[ResourceDescriptor, ...], tuple[str, ...], tuple[str, ...]
]


def _short_form(result: GateResult) -> _ShortForm:
    """What the vetted fields must say; whatever is not PASS keeps a release from existing, so it FAILED."""
    configuration = ResourceDescriptor(
        name=f"configuration of gate {result.gate}", digest=DigestSet(sha256=result.configuration_sha256)
    )
    passed = tuple(check.name for check in result.checks if check.verdict is Verdict.PASS)
    failed = tuple(check.name for check in result.checks if check.verdict is not Verdict.PASS)
    return ("PASSED" if result.verdict is Verdict.PASS else "FAILED", (configuration,), passed, failed)


def gate_statement(
    result: GateResult,
    *,
    image: str,
    digest: str,
    hardware: Hardware,
    tool_version: str,
    boot_ids: tuple[str, ...] = (),
) -> Statement:
    """The statement of one gate about one image.

    Args:
        result: The gate's record.
        image: Repository or file that holds the image, for people.
        digest: Digest of the image manifest, `sha256:<64 hex>`.
        hardware: What the gate ran on.
        tool_version: Version of this toolkit.
        boot_ids: The boots that were measured.
    """
    measured = Measured(result=result, hardware=hardware, boot_ids=boot_ids, tool_version=tool_version)
    return Statement.about(image, digest, TestResult.of(measured))
