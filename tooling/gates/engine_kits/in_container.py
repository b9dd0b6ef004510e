"""Run inside the container of a booted engine: its own unittest mixins against its own port.

Standard library only, apart from what the kits themselves import. Reads one JSON document from its first
argument and prints one: {"kit": ..., "error": ...} or {"kit": ..., "probes": [{"name", "outcome", "message",
"seconds"}]} each. A kit is loaded by its file: importing the engine's package would cost half a minute.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
import types
import unittest
from pathlib import Path
from typing import Any


class _Outcomes(unittest.TestResult):
    """Keeps what every probe said."""

    def __init__(self) -> None:
        super().__init__()
        self.probes: list[dict[str, Any]] = []
        self._began = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802  # unittest's name
        super().startTest(test)
        self._began = time.monotonic()

    def _keep(self, test: unittest.TestCase, outcome: str, message: str) -> None:
        self.probes.append(
            {
                "name": test.id().rsplit(".", 1)[-1],
                "outcome": outcome,
                "message": message[:600],
                "seconds": round(time.monotonic() - self._began, 2),
            }
        )

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._keep(test, "passed", "")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._keep(test, "failed", str(err[1]))

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._keep(test, "failed", f"{type(err[1]).__name__}: {err[1]}")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._keep(test, "skipped", reason)


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the package {name} is not in this image")
    return Path(next(iter(spec.submodule_search_locations)))


def run_kit(path: Path, mixin: str, url: str, model: str) -> list[dict[str, Any]]:
    """Run every `test_` method of a mixin and return what each said."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"this engine ships no {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    case = types.new_class(
        mixin,
        (getattr(module, mixin), unittest.TestCase),
        exec_body=lambda names: names.update(base_url=url, model=model, served_model_name=model),
    )
    outcomes = _Outcomes()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(outcomes)
    return outcomes.probes


def main() -> None:
    """Run what the argument asks for."""
    asked = json.loads(sys.argv[1])
    found = []
    for kit in asked["kits"]:
        try:
            path = _package(asked["package"]) / kit["file"]
            found.append(
                {"kit": kit["mixin"], "probes": run_kit(path, kit["mixin"], asked["url"], asked["model"])}
            )
        except (ImportError, AttributeError, OSError) as error:
            found.append({"kit": kit["mixin"], "error": f"{type(error).__name__}: {error}"})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
