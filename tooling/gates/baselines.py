"""Baselines: files that say what a stack once did on a host, and for which pins that holds.

One file a host and model. The pins inside (client build, plan, driver, model digest, engine arguments, ...)
must be those of the run that wants to compare; a baseline of other pins is stale and says what differs. The
best value ever seen on the host survives every re-recording, so that a baseline cannot creep downhill.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from tooling.errors import InputError
from tooling.gates.verdict import Better, Boot, Metric
from tooling.records import Record, now, sha256_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SCHEMA = 1


class HostFingerprint(Record):
    """The hardware that a number belongs to; the driver is a pin, so that best-ever values outlive an upgrade.

    Attributes:
        gpus: Name of each GPU in order; empty on a CPU host.
        cpu: Model name of the processor.
        cores: Processors that the engine may use.
        topology: Hash or short name of how the GPUs are connected; empty with fewer than two.
    """

    gpus: tuple[str, ...] = ()
    cpu: str
    cores: int = Field(ge=1)
    topology: str = ""

    @property
    def key(self) -> str:
        """Twelve hex digits."""
        return sha256_of(self)[:12]


class MetricBaseline(Record):
    """The boots behind one metric."""

    metric: Metric
    boots: tuple[Boot, ...] = Field(min_length=1)


class BestEver(Record):
    """The best mean over the boots of one run, per metric."""

    metric: str
    value: float = Field(gt=0)
    recorded: str
    subject: str


class Baseline(Record):
    """What one host once did with one model.

    Attributes:
        schema_version: Format of this file.
        host: The hardware.
        model: Name of the model.
        pins: What must be equal for a comparison.
        subject: What was measured, e.g. an image digest.
        recorded: ISO 8601, UTC.
        metrics: The boots, by metric.
        aa_cv: The host's A/A spread where it was measured.
        best_ever: Best values, also from earlier recordings with other pins.
    """

    schema_version: int = SCHEMA
    host: HostFingerprint
    model: str
    pins: dict[str, str]
    subject: str
    recorded: str
    metrics: tuple[MetricBaseline, ...] = Field(min_length=1)
    aa_cv: float | None = Field(default=None, ge=0)
    best_ever: tuple[BestEver, ...] = ()

    def boots_of(self, metric: str) -> tuple[Boot, ...]:
        """Stored boots of a metric, marked as of another day; empty when it was never recorded."""
        for entry in self.metrics:
            if entry.metric.name == metric:
                return tuple(boot.model_copy(update={"fresh": False}) for boot in entry.boots)
        return ()

    def best_of(self, metric: str) -> float | None:
        """Best value ever of a metric."""
        return next((best.value for best in self.best_ever if best.metric == metric), None)


class Match(StrEnum):
    """How a stored baseline fits a run."""

    FOUND = "found"
    MISSING = "missing"
    STALE = "stale"


class Lookup(Record):
    """The answer to a search for a baseline.

    Attributes:
        match: Whether it may be compared with.
        message: One sentence for people.
        baseline: The record; also given when stale, since its best-ever values still hold.
        differences: The pins that differ, one line each.
    """

    match: Match
    message: str
    baseline: Baseline | None = None
    differences: tuple[str, ...] = ()

    def boots_of(self, metric: str) -> tuple[Boot, ...]:
        """Boots that may be compared with; none unless FOUND."""
        return self.baseline.boots_of(metric) if self.baseline and self.match is Match.FOUND else ()

    def best_of(self, metric: str) -> float | None:
        """Best value ever, whatever the pins were."""
        return self.baseline.best_of(metric) if self.baseline else None


def pin_differences(stored: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """One line a pin that is not the same on both sides, in alphabetical order."""
    return tuple(
        f"{name}: baseline {stored.get(name, 'has none')}, this run {wanted.get(name, 'has none')}"
        for name in sorted({*stored, *wanted})
        if stored.get(name) != wanted.get(name)
    )


def baseline_path(folder: Path, host: HostFingerprint, model: str) -> Path:
    """Where the baseline of a host and model lies."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", model).strip("-").lower()[:40] or "model"
    return folder / f"{host.key}-{slug}-{sha256_of(model.encode())[:8]}.json"


def read_baseline(path: Path) -> Baseline:
    """Read one file.

    Raises:
        InputError: It is not a baseline.
    """
    try:
        return Baseline.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"this is not a usable baseline: {first['msg']}",
            where=f"{path}: {'.'.join(str(part) for part in first['loc'])}",
            fix="delete it and record a new one",
        ) from error


def find_baseline(folder: Path, host: HostFingerprint, model: str, pins: Mapping[str, str]) -> Lookup:
    """Look for the baseline of a host and model whose pins are those of this run.

    Raises:
        InputError: There is a file and it is damaged.
    """
    path = baseline_path(folder, host, model)
    if not path.is_file():
        return Lookup(
            match=Match.MISSING, message=f"no baseline of {model} on this host (looked for {path.name})"
        )
    baseline = read_baseline(path)
    if baseline.host != host or baseline.model != model:
        raise InputError("a baseline of another host or model lies under this name", where=str(path))
    differences = pin_differences(baseline.pins, pins)
    if differences:
        return Lookup(
            match=Match.STALE,
            message=f"the baseline of {baseline.recorded} is stale: {len(differences)} pins differ",
            baseline=baseline,
            differences=differences,
        )
    return Lookup(
        match=Match.FOUND, message=f"baseline of {baseline.recorded}, {baseline.subject}", baseline=baseline
    )


def updated_best(
    earlier: Sequence[BestEver], metrics: Sequence[MetricBaseline], recorded: str, subject: str
) -> tuple[BestEver, ...]:
    """Best-ever values after a recording: the better of old and new, never forgotten."""
    best = {entry.metric: entry for entry in earlier}
    for entry in metrics:
        values = [boot.value for boot in entry.boots if boot.value > 0]
        if not values:
            continue
        mean = sum(values) / len(values)
        old = best.get(entry.metric.name)
        improves = old is None or (
            mean > old.value if entry.metric.better is Better.HIGHER else mean < old.value
        )
        if improves:
            best[entry.metric.name] = BestEver(
                metric=entry.metric.name, value=mean, recorded=recorded, subject=subject
            )
    return tuple(best[name] for name in sorted(best))


def record_baseline(
    folder: Path,
    host: HostFingerprint,
    model: str,
    pins: Mapping[str, str],
    metrics: Sequence[MetricBaseline],
    *,
    subject: str,
    aa_cv: float | None = None,
) -> Path:
    """Write the baseline of a host and model, in place of an earlier one whose best-ever values it takes over.

    Raises:
        InputError: A boot of 0 would become the baseline, or the earlier file is damaged.
    """
    empty = [entry.metric.name for entry in metrics if any(boot.value <= 0 for boot in entry.boots)]
    if empty:
        raise InputError(f"a boot with {empty[0]} of 0 cannot become a baseline", fix="fix the engine first")
    path = baseline_path(folder, host, model)
    earlier = read_baseline(path).best_ever if path.is_file() else ()
    recorded = now()
    baseline = Baseline(
        host=host,
        model=model,
        pins=dict(sorted(pins.items())),
        subject=subject,
        recorded=recorded,
        metrics=tuple(metrics),
        aa_cv=aa_cv,
        best_ever=updated_best(earlier, metrics, recorded, subject),
    )
    folder.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".json.new")
    draft.write_text(baseline.model_dump_json(indent=2) + "\n", encoding="utf-8")
    os.replace(draft, path)  # noqa: PTH105  # atomic by contract
    return path
