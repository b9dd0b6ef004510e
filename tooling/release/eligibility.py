"""Which gate runs count for a requirement: the right machine, driver, time, configuration and checks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tooling.attest.hardware import Device, Hardware
from tooling.gates.records import SIMULATION
from tooling.release.records import GateRequirement, Place, ReleasePolicy, instant

if TYPE_CHECKING:
    from tooling.attest.gate import TestResult


@dataclass(frozen=True)
class GateEvidence:
    """A gate's statement, read.

    Attributes:
        result: The predicate.
        payload_sha256: Hash of the signed bytes.
        digest: The image it is about.
    """

    result: TestResult
    payload_sha256: str
    digest: str

    @property
    def ended(self) -> datetime:
        """When the gate ended."""
        return instant(self.result.measured.result.ended)

    def describe(self) -> str:
        """Which run this is, for people."""
        measured = self.result.measured
        return f"run of {measured.result.ended} on {measured.hardware.describe()}"


def why_not(
    policy: ReleasePolicy,
    requirement: GateRequirement,
    hardware_class: str,
    gate: GateEvidence,
    now: datetime,
) -> str:
    """Why a run does not count for a requirement; empty when it does."""
    measured = gate.result.measured
    result = measured.result
    reasons = (
        "a simulation played the hardware" if SIMULATION in result.limitations else "",
        hardware_reason(policy, measured.hardware) if requirement.place is Place.TARGET else "",
        f"machine of class {measured.hardware.hardware_class}, not {hardware_class}"
        if hardware_class and measured.hardware.hardware_class != hardware_class
        else "",
        _time_reason(policy, requirement, result.started, result.ended, now),
        "it was told other things (configuration hash) than the policy asks for"
        if requirement.configuration_sha256 not in {None, result.configuration_sha256}
        else "",
        _missing_checks(requirement, {check.name for check in result.checks}),
        f"it covers {len(set(measured.boot_ids))} boots, not {requirement.minimum_boots}"
        if len(set(measured.boot_ids)) < requirement.minimum_boots
        else "",
    )
    return next((reason for reason in reasons if reason), "")


def hardware_reason(policy: ReleasePolicy, hardware: Hardware) -> str:
    """Why a machine is not the target; empty when it is."""
    if hardware.device is not policy.device:
        return f"device {hardware.device.value} never stands in for {policy.device.value}"
    if hardware.simulated:
        return "a simulation played the hardware"
    if policy.device is Device.CPU:
        return ""
    strange = sorted({gpu.compute_capability for gpu in hardware.gpus} - set(policy.compute_capabilities))
    if strange:
        return f"compute capability {', '.join(strange)}, not {' or '.join(policy.compute_capabilities)}"
    return _driver_reason(policy, hardware.driver)


def _driver_reason(policy: ReleasePolicy, text: str) -> str:
    """Why a driver is out of the policy's range; empty when it is in it."""
    try:
        driver = version(text)
    except ValueError:
        return f"driver {text!r} is no version"
    if policy.driver_min and driver < version(policy.driver_min):
        return f"driver {text} is older than {policy.driver_min}"
    if policy.driver_below and driver >= version(policy.driver_below):
        return f"driver {text} is not below {policy.driver_below}"
    return ""


def version(text: str) -> tuple[int, ...]:
    """A dotted driver version as numbers, without trailing zeros, so that 580 and 580.0 are equal.

    Raises:
        ValueError: It is none.
    """
    numbers = [int(part) for part in text.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _time_reason(
    policy: ReleasePolicy, requirement: GateRequirement, started: str, ended: str, now: datetime
) -> str:
    try:
        begin, end = instant(started), instant(ended)
    except ValueError as error:
        return f"its time cannot be read: {error}"
    days = requirement.max_age_days or policy.max_age_days
    if begin > end:
        return "it ended before it began"
    if end > now + timedelta(seconds=policy.clock_skew_s):
        return f"it ended at {ended}, which is in the future: a clock is wrong"
    if now - end > timedelta(days=days):
        return f"it is {(now - end) / timedelta(days=1):.1f} days old, limit {days:g}"
    return ""


def _missing_checks(requirement: GateRequirement, present: set[str]) -> str:
    missing = sorted(set(requirement.checks) - present)
    return f"it lacks the checks {', '.join(missing)}" if missing else ""
