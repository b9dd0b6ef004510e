"""What a stack requires of its device code, as data, and the verdict on each rule."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from tooling.census.architecture import parse_architecture, version_key
from tooling.census.reader.scan import matches
from tooling.census.records import Service
from tooling.errors import InputError
from tooling.gates.records import Check, Verdict
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tooling.census.architecture import Architecture
    from tooling.census.records import CensusRecord, Coverage, Library


class Expectation(StrEnum):
    """What a rule says of the files it matches."""

    #: Machine code that runs on the target.
    SASS = "sass"
    #: Machine code, or PTX that the driver can compile for it.
    CODE = "code"
    #: Neither: known, with a reason, so that nobody routes work there.
    ABSENT = "absent"


class Rule(Record):
    """One requirement.

    Attributes:
        name: Library or kernel family, e.g. `attention kernels of sgl_kernel`.
        files: Shell patterns of paths, matched against the end of a path from a folder's name on; `*` also
            matches `/`.
        expect: What the files must have for the target.
        reason: Why; required for `absent`.
        devices: Compute capabilities that it is about; empty means every target of the stack.
        at_least: How many files must match.
    """

    name: str = Field(min_length=1)
    files: tuple[str, ...] = Field(min_length=1)
    expect: Expectation
    reason: str = ""
    devices: tuple[str, ...] = ()
    at_least: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _absence_has_a_reason(self) -> Self:
        if self.expect is Expectation.ABSENT and not self.reason:
            raise ValueError(f"rule {self.name!r} says that code is absent and not why")
        return self


class CensusRules(Record):
    """The rules of a stack.

    Attributes:
        rules: At least one.
        driver: The least driver that the stack promises to run with; code that is PTX only is held against it.
        unreadable: Patterns of files that may be unreadable, each with the reason.
    """

    rules: tuple[Rule, ...] = Field(min_length=1)
    driver: str = ""
    unreadable: dict[str, str] = Field(default_factory=dict)

    @field_validator("driver")
    @classmethod
    def _driver_is_a_version(cls, driver: str) -> str:
        if driver and not all(part.isdigit() for part in driver.split(".")):
            raise ValueError(f"driver {driver!r} is not a version, write it like 580.65.06")
        return driver


def load_rules(path: Path) -> CensusRules:
    """Read the rules from a YAML file.

    Raises:
        InputError: The file is missing or says something that cannot be a rule.
    """
    try:
        return CensusRules.model_validate(yaml.safe_load(path.read_text("utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"the census rules cannot be read: {error}", where=str(path)) from error
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise InputError("the census rules are not valid", where=str(path), details=problems) from error


def judge(record: CensusRecord, rules: CensusRules, devices: Iterable[str]) -> tuple[Check, ...]:
    """One check a rule and target, and those that need no rule.

    Args:
        record: The census.
        rules: The stack's.
        devices: The stack's targets, e.g. `12.0`.

    Raises:
        InputError: No target was named, or one is not an architecture.
    """
    targets = [parse_architecture(device) for device in devices]
    if not targets:
        raise InputError("no target architecture", fix="name at least one, e.g. 12.0")
    checks = [*basic_checks(record, rules.unreadable)]
    for target in targets:
        checks.extend(_of_rule(record, rule, target, rules.driver) for rule in _about(rules, target))
        checks.append(_unexplained(record, rules, target))
    return tuple(checks)


def basic_checks(record: CensusRecord, unreadable: Iterable[str] = ()) -> tuple[Check, ...]:
    """The checks that need no rules: device code was found, and every library was read.

    Args:
        record: The census.
        unreadable: Patterns of files that may be unreadable.
    """
    return _libraries_found(record), _all_read(record, unreadable)


def _about(rules: CensusRules, target: Architecture) -> Iterator[Rule]:
    for rule in rules.rules:
        if not rule.devices or target.capability in {
            parse_architecture(item).capability for item in rule.devices
        }:
            yield rule


def _libraries_found(record: CensusRecord) -> Check:
    found = len(record.with_device_code())
    return Check(
        name="libraries-with-device-code",
        verdict=Verdict.PASS if found else Verdict.FAIL,
        seen=f"{found} of {len(record.libraries)} libraries carry device code"
        if found
        else "no library carries device code: nothing was checked",
        value=found,
        threshold=1,
    )


def _all_read(record: CensusRecord, unreadable: Iterable[str]) -> Check:
    allowed = tuple(unreadable)
    bad = [file for file in record.unread if not matches(file.path, allowed)]
    return Check(
        name="files-read",
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        seen=f"{len(bad)} files could not be read, so what is in them is unknown"
        if bad
        else f"every library was read, {len(record.unread)} are known to be unreadable",
        value=len(bad),
        threshold=0,
        details=tuple(f"{file.path}: {file.reason}" for file in bad),
    )


def _of_rule(record: CensusRecord, rule: Rule, target: Architecture, driver: str) -> Check:
    """The verdict on one rule for one target."""
    found = [library for library in record.libraries if matches(library.path, rule.files)]
    name = f"{rule.name} on {target.capability}"
    if len(found) < rule.at_least:
        return Check(
            name=name,
            verdict=Verdict.FAIL,
            seen=f"{len(found)} files match, {rule.at_least} expected: missing, renamed, or not read",
            value=len(found),
            threshold=rule.at_least,
            details=rule.files,
        )
    coverages = [(library, library.coverage(target)) for library in found]
    judged = [(_verdict(rule.expect, coverage, driver), library, coverage) for library, coverage in coverages]
    bad = [item for item in judged if item[0] is not Verdict.PASS]
    return Check(
        name=name,
        verdict=max((item[0] for item in judged), key=_BADNESS.index),
        seen=_seen(rule, target, bad[0][2] if bad else coverages[0][1]),
        details=tuple(
            f"{library.path}: {describe(library, coverage)}" for _, library, coverage in bad or judged
        ),
    )


_BADNESS = (Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL)


def _verdict(expect: Expectation, coverage: Coverage, driver: str) -> Verdict:
    if expect is Expectation.ABSENT:
        return Verdict.PASS if coverage.service is Service.NONE else Verdict.FAIL
    if coverage.service is Service.SASS:
        return Verdict.PASS
    if coverage.service is Service.NONE or expect is Expectation.SASS:
        return Verdict.FAIL
    if not driver:
        return Verdict.PASS
    if coverage.least_driver == "unknown":
        return Verdict.INCONCLUSIVE
    return Verdict.PASS if version_key(driver) >= version_key(coverage.least_driver) else Verdict.FAIL


def _seen(rule: Rule, target: Architecture, worst: Coverage) -> str:
    """One sentence on the worst of the matching files."""
    has = {
        Service.SASS: "machine code for it is there",
        Service.PTX: f"only PTX, compiled by driver {worst.least_driver} or newer",
        Service.NONE: "neither machine code nor PTX runs there",
    }[worst.service]
    if rule.expect is Expectation.ABSENT:
        if worst.service is Service.NONE:
            return f"known to have nothing for {target.capability}: {rule.reason}"
        return f"the rule says that nothing is there ({rule.reason}), but {has}: correct the rule"
    return f"{has}; expected {rule.expect}" + (f" ({rule.reason})" if rule.reason else "")


def describe(library: Library, coverage: Coverage) -> str:
    """What a library has, for a person."""
    if coverage.service is Service.SASS:
        return f"{coverage.sass_entries} SASS entries, {coverage.ptx_entries} PTX"
    if coverage.service is Service.PTX:
        return f"{coverage.ptx_entries} PTX entries, driver {coverage.least_driver} or newer"
    names = arch_names(library)
    return f"only {' '.join(names)}" if names else "no device code that can be loaded"


def arch_names(library: Library) -> tuple[str, ...]:
    """The targets of a library's loadable code in rising order, PTX last."""
    found = {
        (target.kind != "sass", target.kind, parse_architecture(target.arch)) for target in library.loadable()
    }
    return tuple(f"{kind.upper()} {arch}" if later else str(arch) for later, kind, arch in sorted(found))


def _unexplained(record: CensusRecord, rules: CensusRules, target: Architecture) -> Check:
    """Libraries with device code, none of it for the target, that no rule explains."""
    known = [pattern for rule in _about(rules, target) for pattern in rule.files]
    bad = [
        (library, coverage)
        for library in record.with_device_code()
        if not matches(library.path, known) and (coverage := library.coverage(target)).service is Service.NONE
    ]
    return Check(
        name=f"no unexplained gap on {target.capability}",
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        seen=f"{len(bad)} libraries with device code have none for {target.capability}, and no rule says why"
        if bad
        else "every library with device code has some for the target, or a rule says why not",
        value=len(bad),
        threshold=0,
        details=tuple(f"{library.path}: {describe(library, coverage)}" for library, coverage in bad),
    )
