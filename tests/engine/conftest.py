"""A real engine (llama.cpp as a wheel) on loopback with the committed tiny model or a damaged copy of it."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
import requests

from tests.models.damage import damage_gguf
from tooling.gates.correctness import Endpoint, Profile, Tier, load_profile, run_correctness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tooling.gates.correctness import Baseline
    from tooling.gates.records import GateResult

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "stacks" / "models" / "tiny"
SERVE = """
import sys, time, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.model_alias, p.hostnames, p.port = sys.argv[1], {"tiny"}, ["127.0.0.1"], 0
p.n_ctx, p.n_parallel, p.n_threads_http = 36864, 4, 72
p.use_jinja, p.endpoint_metrics, p.warmup = True, True, False
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(p)
print("LISTENING", server.listening_address, flush=True)
sys.stdin.read()
"""
START_S = 60


class Gate(Protocol):
    """Runs the gate against a URL, T0 unless told otherwise."""

    def __call__(
        self,
        url: str,
        tier: Tier = Tier.T0,
        *,
        profile: Profile | None = None,
        baseline: Baseline | None = None,
    ) -> GateResult: ...


@contextmanager
def serve(model: Path, log: Path) -> Iterator[str]:
    """The URL of an engine that serves a GGUF file while the block runs."""
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-c", SERVE, str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = next((x for x in process.stdout if x.startswith(b"LISTENING")), b"")
            assert line, f"the engine did not start:\n{log.read_text(errors='replace')[-2000:]}"
            url = line.decode().split()[1]
            _await_ready(url)
            yield url
        finally:
            process.kill()


def _await_ready(url: str) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if requests.get(f"{url}/health", timeout=5).status_code == requests.codes.ok:
            return
        time.sleep(0.05)
    raise AssertionError("the engine was not ready in time")


@pytest.fixture(scope="session")
def tiny() -> Profile:
    """The committed profile."""
    return load_profile(str(MODEL / "profile.yaml"))


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The undamaged model, served."""
    with serve(MODEL / "tiny.gguf", tmp_path_factory.mktemp("engine") / "engine.log") as url:
        yield url


@pytest.fixture
def damaged(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a damaged copy of the model."""

    def make(kind: str) -> Path:
        damage_gguf(MODEL / "tiny.gguf", kind, tmp_path / f"{kind}.gguf")
        return tmp_path / f"{kind}.gguf"

    return make


@pytest.fixture
def gate(tmp_path: Path, tiny: Profile) -> Gate:
    """The gate with its evidence in a folder of the test."""

    def run(
        url: str, tier: Tier = Tier.T0, *, profile: Profile | None = None, baseline: Baseline | None = None
    ) -> GateResult:
        return run_correctness(Endpoint(url), profile or tiny, tier, baseline, evidence=tmp_path / "evidence")

    return run
