"""Engines as processes of this machine: started side by side, attached to by the product, ended at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from tests.gpu.engine.assemble import ROOT, load_facts
from tooling.boot import attach
from tooling.boot.readiness import Patience
from tooling.console import say
from tooling.errors import CheckError, ToolkitError
from tooling.records import Record
from tooling.triage import triage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.boot import Endpoint
    from tooling.triage import TriageReport

TINY = ROOT / "stacks" / "models" / "tiny"
#: First port of the engines, and of their process groups' rendezvous.
_PORT, _RENDEZVOUS = 31000, 32000
_STOP_S = 15.0
_POLL_S = 0.3
#: A server of another engine that takes the same model, for rehearsals without a GPU.
_REHEARSAL = """
import sys, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.model_alias, p.hostnames, p.port = sys.argv[1], {"tiny"}, ["127.0.0.1"], int(sys.argv[2])
p.n_ctx, p.n_parallel, p.n_threads_http = 36864, 4, 72
p.use_jinja, p.endpoint_metrics, p.warmup = True, True, False
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(p)
print("LISTENING", server.listening_address, flush=True)
import time
time.sleep(3600)
"""


class Spec(Record):
    """One engine to start.

    Attributes:
        name: Of the engine within the run.
        changes: Serve arguments other than those of `facts.yaml`; None takes one away, "" is a switch.
        model: Folder of the model.
        home: Its home folder, where its compile caches are; engines with the same one share them.
        before: Folders put before the carried one on its module path.
        environment: Variables of its own.
    """

    name: str
    changes: dict[str, str | None] = Field(default_factory=dict)
    model: Path = TINY
    home: str = ""
    before: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)


def serve_arguments(changes: Mapping[str, str | None] | None = None) -> list[str]:
    """Serve arguments of the healthy engine, with changes."""
    facts = load_facts()
    words: dict[str, str | None] = {name: str(value) for name, value in facts.serve.items()}
    words |= dict.fromkeys(facts.switches, "")
    words |= changes or {}
    found = []
    for name, value in words.items():
        if value is not None:
            found += [f"--{name}", value] if value else [f"--{name}"]
    return found


def environment(home: Path, site: Path, before: Sequence[str] = ()) -> dict[str, str]:
    """Variables of an engine: its own home, the carried packages first."""
    path = os.pathsep.join([*before, str(site)])
    inductor = {"TORCHINDUCTOR_CACHE_DIR": str(home / "inductor")}
    # Our own cache is no place for the engine's.
    mine = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
    return {**mine, **load_facts().environment, **inductor, "HOME": str(home), "PYTHONPATH": path}


class Engine:
    """One engine.

    Args:
        spec: What it is.
        number: Makes its ports its own.
        folder: For logs and homes.
        site: The carried packages.
        rehearsal: Start the other engine, on a CPU.
    """

    def __init__(self, spec: Spec, number: int, folder: Path, site: Path, *, rehearsal: bool) -> None:
        self.spec = spec
        self.port = _PORT + number
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{spec.name}.log"
        self.home = folder / "homes" / (spec.home or spec.name)
        self.home.mkdir(parents=True, exist_ok=True)
        self.environment = environment(self.home, site, spec.before) | spec.environment
        self.arguments = serve_arguments(spec.changes)
        self.started = time.monotonic()
        self.ready_after_s = 0.0
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command(rehearsal=rehearsal, number=number),
                env=None if rehearsal else self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _command(self, *, rehearsal: bool, number: int) -> list[str]:
        if rehearsal:
            return [sys.executable, "-c", _REHEARSAL, str(self.spec.model / "tiny.gguf"), str(self.port)]
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--nccl-port", str(_RENDEZVOUS + number)]
        model = ["--model-path", str(self.spec.model), "--served-model-name", "tiny"]
        return [sys.executable, "-m", "sglang.launch_server", *model, *place, *self.arguments]

    def attach(self, evidence: Path, ready_s: float = 240.0) -> Endpoint:
        """Wait for its first answer, through the product's attach mode.

        Raises:
            BootError: It does not answer.
        """
        self._wait_for_port(ready_s)
        patience = Patience(ready_s=ready_s, answer_s=60.0)
        endpoint = attach(
            self.url, evidence=evidence, log=self.log, engine="sglang", version="0.5.16", patience=patience
        )
        if not self.ready_after_s:
            self.ready_after_s = round(time.monotonic() - self.started, 1)
            say(f"{self.spec.name}: ready after {self.ready_after_s} s")
        return endpoint

    def _wait_for_port(self, limit_s: float) -> None:
        """Until something listens: attaching alone would not see that the process has ended.

        Raises:
            CheckError: It ended before.
        """
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if self.process.poll() is not None:
                report = self.triage(f"exit code {self.process.returncode}")
                raise CheckError(
                    f"{self.spec.name} ended with exit code {self.process.returncode}: {report.diagnosis}",
                    where=str(self.log),
                    fix=report.advice,
                    details=self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:],
                )
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(_POLL_S)

    def wait_for_end(self, limit_s: float) -> int | None:
        """Exit code of an engine that is expected to die; None if it still lives."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(limit_s)
        return None

    def triage(self, died: str = "") -> TriageReport:
        """What its log says."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return triage(lines, engine="sglang", version="0.5.16", one_boot=True, died=died)

    def stop(self) -> None:
        """End it and all that it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Fleet:
    """The engines of a run.

    Args:
        folder: For logs and homes.
        site: The carried packages.
        rehearsal: Start the other engine, on a CPU.
    """

    def __init__(self, folder: Path, site: Path, *, rehearsal: bool) -> None:
        self.folder, self._site, self.rehearsal = folder, site, rehearsal
        self._engines: dict[str, Engine] = {}
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._started = 0

    def start(self, *specs: Spec) -> None:
        """Start engines; nobody waits for them yet."""
        for spec in specs:
            if spec.name not in self._engines:
                self._engines[spec.name] = Engine(
                    spec, self._started, self.folder, self._site, rehearsal=self.rehearsal
                )
                self._started += 1

    def __contains__(self, name: str) -> bool:
        """Whether an engine of this name was started."""
        return name in self._engines

    def __getitem__(self, name: str) -> Engine:
        """An engine by name.

        Raises:
            ToolkitError: It was not started.
        """
        if name not in self._engines:
            raise ToolkitError(f"engine {name} was not started", fix="run the stage that starts it")
        return self._engines[name]

    def helper(self, code: str, *words: str) -> subprocess.Popen[bytes]:
        """A Python process beside the engines, with the machine's torch; ended with them."""
        process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE)
        self._helpers.append(process)
        return process

    def stop(self, *names: str) -> None:
        """Stop some engines, or all, and the helpers with the last."""
        chosen = [self._engines.pop(name) for name in (names or tuple(self._engines)) if name in self._engines]
        for engine in chosen:
            with suppress(ProcessLookupError):
                os.killpg(engine.process.pid, signal.SIGTERM)
        for engine in chosen:
            engine.stop()
        if not self._engines:
            for helper in self._helpers:
                helper.kill()
                helper.wait()
            self._helpers.clear()

    def logs(self) -> list[Path]:
        """Logs of all engines that were started."""
        return sorted(self.folder.glob("*.log"))
