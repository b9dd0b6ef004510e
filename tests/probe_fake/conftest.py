"""The real probe and the real bindings on a stand-in for the driver that plays what a scenario says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.fake_gpu.build import build
from tooling.probe.parse import read_document
from tooling.probe.report import judge

if TYPE_CHECKING:
    from tooling.gates.records import Check
    from tooling.probe.records import ProbeReport

RUNTIME = Path(__file__).parents[2] / "images" / "runtime"


@dataclass(frozen=True)
class Played:
    """One run of the probe.

    Attributes:
        code: Exit code.
        out: What it printed.
        err: Its progress.
    """

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.out))

    def rungs(self, **labels: Any) -> list[dict[str, Any]]:
        rungs = self.document["rungs"]
        return [rung for rung in rungs if all(rung.get(key) == value for key, value in labels.items())]

    def outcomes(self, **labels: Any) -> set[str]:
        return {rung["outcome"] for rung in self.rungs(**labels)}

    def report(self, image: dict[str, Any] | None = None, **host: dict[str, Any]) -> ProbeReport:
        """Judge it as the toolkit does; `host` replaces what it cannot play: the machine itself."""
        document = self.document
        if image:
            document["image"] = image
        for section, values in host.items():
            document["host"][section].update(values)
        return judge(read_document(json.dumps(document), where="simulation"))


def check(report: ProbeReport, name: str) -> Check:
    (found,) = [each for each in report.result.checks if each.name == name]
    return found


class Play(Protocol):
    """Runs the probe, or another program of the image, in a scenario."""

    def __call__(self, scenario: str, *options: str, program: str = "probe.py") -> Played: ...


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fake-gpu"))


@pytest.fixture(scope="session")
def play(libraries: Path) -> Play:
    def run(scenario: str, *options: str, program: str = "probe.py") -> Played:
        file = libraries / "scenario.txt"
        file.write_text(scenario)
        environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), "FAKE_GPU_SCENARIO": str(file)}
        done = subprocess.run(
            [sys.executable, str(RUNTIME / program), *options],
            env=environment, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return Played(done.returncode, done.stdout, done.stderr)

    return run
