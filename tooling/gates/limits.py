"""The thresholds of the throughput and power rules, read from `limits.yaml`."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

import yaml
from pydantic import Field

from tooling.records import Record


class PowerLimits(Record):
    """Thresholds of the power rule; what each means is said beside its value in `limits.yaml`."""

    busy_percent: float = Field(gt=0, le=100)
    cold_share_of_limit: float = Field(gt=0, lt=1)
    cold_share_of_healthy: float = Field(gt=0, lt=1)
    min_concurrency: int = Field(ge=1)
    idle_percent: float = Field(gt=0, lt=100)
    energy_ratio: float = Field(gt=1)
    cooling_c: float = Field(gt=0)
    min_samples: int = Field(ge=1)


class ThroughputLimits(Record):
    """Thresholds of the throughput gate; what each means is said beside its value in `limits.yaml`."""

    counter_tolerance: float = Field(gt=0, lt=1)
    calibration_share: float = Field(gt=0, lt=1)
    calibration_headroom: float = Field(ge=1)
    cached_share: float = Field(gt=0, lt=1)
    cached_tokens_per_request: float = Field(ge=0)
    freeze_ms: float = Field(gt=0)
    freeze_ratio: float = Field(gt=1)
    window_cv: float = Field(gt=0, lt=1)
    p90_requests: int = Field(ge=1)
    p99_requests: int = Field(ge=1)


class Limits(Record):
    """All thresholds."""

    power: PowerLimits
    throughput: ThroughputLimits


@lru_cache(maxsize=1)
def default_limits() -> Limits:
    """The thresholds that ship with the package."""
    text = resources.files("tooling.gates").joinpath("limits.yaml").read_text(encoding="utf-8")
    return Limits.model_validate(yaml.safe_load(text))
