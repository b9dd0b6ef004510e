"""The gate `engine-kits`: what the engine's authors ask of a build in their own CI, asked of this boot."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from tooling.errors import CheckError
from tooling.gates.records import Check, GateResult, Verdict, worst
from tooling.records import Record, now, sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

GATE = "engine-kits"


class Kit(Record):
    """One kit.

    Attributes:
        file: Under the engine's package.
        mixin: Class in it whose `test_` methods are the probes.
    """

    file: str
    mixin: str


class EngineKits(Record):
    """The kits of one engine and the package that they lie in."""

    package: str
    kits: tuple[Kit, ...] = Field(min_length=1)


class Probe(Record):
    """What one probe of a kit said."""

    name: str
    outcome: Literal["passed", "failed", "skipped"]
    message: str
    seconds: float


class KitReport(Record):
    """What the container said of one kit: its probes, or why it could not be run."""

    kit: str
    probes: tuple[Probe, ...] = ()
    error: str = ""


_REPORTS = TypeAdapter(tuple[KitReport, ...])


@cache
def _known() -> dict[str, EngineKits]:
    text = resources.files(__package__).joinpath("kits.yaml").read_text(encoding="utf-8")
    return {engine: EngineKits.model_validate(kits) for engine, kits in yaml.safe_load(text).items()}


def kits_of(engine: str) -> EngineKits | None:
    """The kits that an engine ships; None for one that ships none."""
    return _known().get(engine)


def kit_command(kits: EngineKits, *, python: str, url: str, model: str) -> list[str]:
    """The command that runs the kits inside the container.

    Args:
        kits: What to run.
        python: Interpreter in the image.
        url: Base of the engine's interface as seen from inside the container.
        model: Name under which it serves.
    """
    script = resources.files(__package__).joinpath("in_container.py").read_text(encoding="utf-8")
    asked = {
        "package": kits.package,
        "url": url,
        "model": model,
        "kits": [kit.model_dump() for kit in kits.kits],
    }
    return [python, "-c", script, json.dumps(asked)]


def parse_reports(exit_code: int, stdout: str, stderr: str) -> tuple[KitReport, ...]:
    """What the container printed.

    Raises:
        CheckError: It printed no report.
    """
    try:
        if exit_code == 0:
            return _REPORTS.validate_json(stdout)
    except ValidationError as error:
        stderr = f"{stderr}\n{error.errors()[0]['msg']}"
    raise CheckError(
        f"the engine's kits could not be run (exit code {exit_code})",
        fix="run the gate again; if it stays, read the lines above",
        details=stderr.strip().splitlines()[-4:],
    )


def judge_kits(
    asked: Sequence[Kit], reports: Sequence[KitReport], unsuitable: Mapping[str, str]
) -> tuple[list[Check], list[str]]:
    """One check a kit, and what was left out.

    Args:
        asked: The kits that should have run.
        reports: What came back.
        unsuitable: Probe -> why this model cannot be held to it.

    Returns:
        The checks (none of a kit whose probes are all excused), and a limitation for every probe that does not
        count.
    """
    by_name = {report.kit: report for report in reports}
    checks, limitations = [], []
    for kit in asked:
        report = by_name.get(kit.mixin, KitReport(kit=kit.mixin, error="the container said nothing of it"))
        counted = [probe for probe in report.probes if probe.name not in unsuitable]
        limitations += [
            f"{kit.mixin}.{probe.name} does not count ({probe.outcome}): {unsuitable[probe.name]}"
            for probe in report.probes
            if probe.name in unsuitable
        ]
        if counted or report.error or not report.probes:
            checks.append(_judge(report, counted))
    if not checks:
        checks.append(
            Check(
                name="kits",
                verdict=Verdict.FAIL,
                seen="the profile excuses every probe of every kit: nothing was checked",
            )
        )
    stray = sorted(set(unsuitable) - {probe.name for report in reports for probe in report.probes})
    if stray:
        checks.append(
            Check(
                name="unsuitable-probes",
                verdict=Verdict.FAIL,
                seen=f"the profile excuses probes that no kit has: {', '.join(stray)}",
            )
        )
    return checks, limitations


def _judge(report: KitReport, counted: Sequence[Probe]) -> Check:
    passed = [probe for probe in counted if probe.outcome == "passed"]
    others = [f"{probe.name}: {probe.outcome}, {probe.message}" for probe in counted if probe not in passed]
    failed = any(probe.outcome == "failed" for probe in counted)
    if report.error:
        verdict, seen = Verdict.FAIL, "it could not be run"
        others = [report.error]
    elif not counted:
        verdict, seen = Verdict.FAIL, "it has no probes: nothing was checked"
    else:
        verdict = Verdict.FAIL if failed else Verdict.PASS if not others else Verdict.INCONCLUSIVE
        seen = f"{len(passed)} of {len(counted)} probes passed"
    return Check(
        name=report.kit,
        verdict=verdict,
        seen=seen,
        value=float(len(passed)),
        unit="probes",
        threshold=float(len(counted)),
        details=tuple(others),
    )


def engine_kits_gate(
    execute: Callable[[list[str]], tuple[int, str, str]],
    kits: EngineKits,
    *,
    python: str,
    url: str,
    model: str,
    unsuitable: Mapping[str, str],
) -> GateResult:
    """Run an engine's own kits in the container that it runs in.

    Args:
        execute: Runs a command in the container; gives its exit code, stdout and stderr.
        kits: What to run.
        python: Interpreter in the image.
        url: Base of the engine's interface as seen from inside the container.
        model: Name under which it serves.
        unsuitable: Probe -> why this model cannot be held to it.

    Raises:
        CheckError: Nothing could be run.
    """
    started = now()
    reports = parse_reports(*execute(kit_command(kits, python=python, url=url, model=model)))
    checks, limitations = judge_kits(kits.kits, reports, unsuitable)
    configuration: dict[str, Any] = {"kits": sha256_of(kits), "unsuitable": dict(unsuitable)}
    return GateResult(
        gate=GATE,
        verdict=worst(check.verdict for check in checks),
        checks=tuple(checks),
        limitations=tuple(limitations),
        configuration_sha256=sha256_of(configuration),
        started=started,
        ended=now(),
    )
