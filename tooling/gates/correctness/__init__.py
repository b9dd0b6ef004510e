"""Correctness gate: does a running engine answer as its model must? At any length, under load, and finite."""

from tooling.gates.correctness.baseline import Baseline, load_baselines
from tooling.gates.correctness.battery import run_correctness
from tooling.gates.correctness.client import Endpoint
from tooling.gates.correctness.profile import Profile, Tier, load_profile

__all__ = ["Baseline", "Endpoint", "Profile", "Tier", "load_baselines", "load_profile", "run_correctness"]
