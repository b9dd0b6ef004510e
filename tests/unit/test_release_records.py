"""Schemas do not drift, and what was signed before still verifies."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from pydantic import ValidationError

from tests.unit.release_examples import (
    CPU,
    CPU_POLICY,
    DIGEST,
    FACTS,
    KEY,
    NOW,
    ago,
    build_run,
    gate_run,
    gpu_hardware,
    signed,
)
from tooling.attest.gate import TestResult
from tooling.attest.hardware import Hardware
from tooling.attest.provenance import InputKind, Provenance
from tooling.attest.sbom import (
    DebianPackage,
    PackageList,
    PythonPackage,
    parse_dpkg_status,
    sbom_statement,
)
from tooling.attest.statement import StatementError, parse_statement
from tooling.errors import InputError
from tooling.gates.records import Verdict
from tooling.release import schema
from tooling.release.evidence import name_attestations
from tooling.release.policy import assess
from tooling.release.records import ChannelEntry, ReleaseRecord
from tooling.sign.bundle import verify
from tooling.sign.keys import Trust

RECORDS = Path(__file__).parents[1] / "records"
OLD = sorted(RECORDS.glob("v*/*.sigstore.json"))


@pytest.mark.parametrize("name", schema.schemas())
def test_the_committed_schemas_are_the_generated_ones(name: str):
    committed = (schema.DIRECTORY / name).read_text()
    assert committed == schema.render(schema.schemas()[name]), "run: python -m tooling.release.schema"


def test_no_schema_file_is_left_over():
    assert {path.name for path in schema.DIRECTORY.iterdir()} == set(schema.schemas())


def _release_record() -> ReleaseRecord:
    evidence = signed(build_run(), gate_run())
    return ReleaseRecord(
        name="cpu-0.2.9-20261129-aaaaaaaaaaaa",
        stack="cpu",
        engine_version="0.2.9",
        created=NOW.isoformat(),
        policy=CPU_POLICY,
        facts=FACTS,
        assessment=assess(CPU_POLICY, DIGEST, evidence, FACTS, now=NOW),
        attestations=name_attestations(evidence),
        tool_version="0.1.0",
    )


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("statement", json.loads(gate_run().payload())),
        ("gate", gate_run(verdict=Verdict.FAIL, hardware=gpu_hardware()).predicate),
        ("provenance", build_run(drifted=("libc6",)).predicate),
        ("release", _release_record().model_dump(mode="json")),
        ("policy", CPU_POLICY.model_dump(mode="json")),
    ],
)
def test_somebody_elses_validator_accepts_our_records(name: str, document: Any):
    rules = schema.schemas()[f"{name}.schema.json"]
    jsonschema.Draft202012Validator.check_schema(rules)
    jsonschema.validate(document, rules)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "surprise": 1}, rules)


def test_there_are_old_records():
    kinds = {path.name.split("-")[0] for path in OLD}
    assert kinds >= {"correctness", "provenance", "sbom", "release", "channel"}


@pytest.mark.parametrize("path", OLD, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_old_record_still_verifies(path: Path):
    found = verify(path.read_bytes(), Trust.load(path.parent))
    kinds = {kind.PREDICATE_TYPE: kind for kind in (TestResult, Provenance, ReleaseRecord, ChannelEntry)}
    kind = kinds.get(found.statement.predicate_type)
    if kind is None:
        assert path.name.startswith("sbom")
        return
    predicate = found.statement.read(kind)
    assert _holds(predicate.model_dump(mode="json"), found.statement.predicate)


def _holds(read: Any, was_signed: Any) -> bool:
    """Whether everything that was signed is still read; later fields have their defaults beside it."""
    if isinstance(was_signed, dict):
        return all(name in read and _holds(read[name], value) for name, value in was_signed.items())
    if isinstance(was_signed, list):
        return len(read) == len(was_signed) and all(map(_holds, read, was_signed))
    return bool(read == was_signed)


def test_a_field_that_is_read_differently_than_it_was_signed_is_found():
    assert _holds({"a": [1], "new": 0}, {"a": [1]})
    for changed in ({}, {"a": [2]}, {"a": [1, 2]}):
        assert not _holds(changed, {"a": [1]})


def test_a_gate_statement_holds_numbers_thresholds_and_hardware():
    predicate = gate_run(hardware=gpu_hardware(), limitations=("x",)).read(TestResult)
    assert (predicate.result, predicate.passed_tests, predicate.failed_tests) == ("PASSED", ("answers",), ())
    check = predicate.measured.result.checks[0]
    assert (check.value, check.threshold, check.unit) == (3740.0, 3000, "tok/s")
    assert predicate.configuration[0].digest.sha256 == predicate.measured.result.configuration_sha256
    raw = gate_run().predicate
    assert {"result", "configuration", "passedTests", "urn:blackwell-stacks:measured:v1"} <= set(raw)


@pytest.mark.parametrize(
    ("field", "value"), [("result", "PASSED"), ("passedTests", ["answers"]), ("failedTests", [])]
)
def test_a_short_form_that_says_other_things_than_the_numbers_is_refused(field: str, value: Any):
    statement = gate_run(verdict=Verdict.INCONCLUSIVE)
    assert statement.predicate["result"] == "FAILED"
    forged = statement.model_copy(update={"predicate": {**statement.predicate, field: value}})
    with pytest.raises(StatementError, match="does not have the shape"):
        forged.read(TestResult)


def test_a_build_statement_names_every_pinned_input():
    predicate = build_run(drifted=("libc6",)).read(Provenance)
    assert predicate.stack == "cpu"
    assert predicate.drifted_packages == ("libc6",)
    assert [item.name for item in predicate.inputs(InputKind.PATCH)] == ["images/patches/0001.patch"]
    assert predicate.inputs(InputKind.KERNEL) == ()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"{}",
        gate_run().payload().replace(b"Statement/v1", b"Statement/v0.1"),
        gate_run().payload().replace(b'"sha256":"aaaa', b'"sha512":"aaaa'),
    ],
)
def test_what_is_no_statement_is_one_clear_error(payload: bytes):
    with pytest.raises(StatementError):
        parse_statement(payload)


@pytest.mark.parametrize("changes", [{"gpus": ()}, {"driver": ""}, {"device": "cpu"}])
def test_hardware_that_contradicts_itself_cannot_be_written(changes: dict[str, Any]):
    with pytest.raises(ValidationError):
        Hardware.model_validate({**gpu_hardware().model_dump(), **changes})


def test_hardware_is_described_in_one_line():
    assert CPU.describe() == "Example CPU (cpu-x86-64)"
    assert gpu_hardware(simulated=True).describe().endswith("SIMULATED")


DPKG = """Package: libc6
Status: install ok installed
Version: 2.36-9+deb12u10
Architecture: amd64
Description: GNU C Library
 Package: not-a-package

Package: gone
Status: deinstall ok config-files
Version: 1
Architecture: all

Package: base-files
Version: 12.4
Architecture: amd64
"""


def test_installed_debian_packages_are_read():
    assert [(item.name, item.version) for item in parse_dpkg_status(DPKG)] == [
        ("libc6", "2.36-9+deb12u10"),
        ("base-files", "12.4"),
    ]


@pytest.mark.parametrize("text", ["", "\n\n", "Package: x\nStatus: deinstall ok config-files", "Package: x"])
def test_a_dpkg_status_without_packages_is_an_error(text: str):
    with pytest.raises(InputError):
        parse_dpkg_status(text)


PACKAGES = PackageList(
    python=(PythonPackage(name="torch", version="2.14.1+cu130"), PythonPackage(name="a", version="1")),
    debian=(DebianPackage(name="libstdc++6", version="12.2.0-14", architecture="amd64"),),
)


def test_the_sbom_is_valid_cyclonedx_and_the_same_every_time():
    statement = sbom_statement(PACKAGES, image="test/image", digest=DIGEST)
    assert statement.payload() == sbom_statement(PACKAGES, image="test/image", digest=DIGEST).payload()
    problem = JsonStrictValidator(SchemaVersion.V1_5).validate_str(json.dumps(statement.predicate))
    assert problem is None
    purls = [item["purl"] for item in statement.predicate["components"]]
    assert purls == [
        "pkg:pypi/a@1",
        "pkg:pypi/torch@2.14.1%2Bcu130",
        "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14?arch=amd64",
    ]


def test_an_sbom_of_nothing_is_an_error():
    with pytest.raises(InputError, match="empty"):
        sbom_statement(PackageList(), image="x", digest=DIGEST)


def test_the_channel_log_begins_without_predecessor_and_goes_on_with_one():
    common = {"channel": "stable", "release": "x", "created": ago()}
    for sequence, previous in ((1, "a" * 64), (2, None)):
        with pytest.raises(ValidationError, match="no predecessor"):
            ChannelEntry(sequence=sequence, previous_sha256=previous, **common)
    assert KEY.id  # the examples' key is made anew each time; the old records keep theirs
