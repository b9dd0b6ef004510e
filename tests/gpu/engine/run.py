"""The gate chain on a real engine on this machine's GPU: `python -m tests.gpu.engine.run --site DIR --out DIR`.

Stages run one after another, each leaves its record at once, and none begins without the time it needs.
"""

from __future__ import annotations

import argparse
import os
import signal
import tarfile
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu.engine import faults, parallel, stages
from tests.gpu.engine.assemble import Assembled
from tests.gpu.engine.machine import gpu_processes, machine_facts
from tests.gpu.engine.process import Fleet, serve_arguments
from tests.gpu.engine.records import EngineRun, Stage, Status
from tests.gpu.engine.stages import GPU_PLANS, REHEARSAL_PLANS, Context, Findings
from tooling.console import say
from tooling.records import now

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gpu.engine.records import Machine

#: Name -> what to do, seconds that it needs on a GPU, and whether a rehearsal on another engine can do it.
STAGES: dict[str, tuple[Callable[[Context, Findings], None], float, bool]] = {
    "boot": (stages.boot, 60, True),
    "healthy": (stages.healthy, 50, True),
    "dispatch": (stages.dispatch, 15, False),
    "compilers": (stages.compilers, 2, True),
    "abba": (stages.abba, 60, True),
    "prepare": (faults.prepare, 70, True),
    "weights": (faults.weights, 15, True),
    "starved": (faults.starved, 40, True),
    "switched-off": (faults.switched_off, 5, False),
    "spinning": (faults.spinning, 20, False),
    "pruned": (faults.pruned, 150, False),
    "pruned-torch": (faults.pruned_torch, 150, False),
    "flashinfer": (faults.flashinfer, 60, False),
    "held": (faults.held, 30, False),
    "parallel": (parallel.prepare, 60, False),
    "kernels": (parallel.kernels, 20, False),
    "speed": (parallel.speed, 60, False),
}
#: A later run on such a machine starts warm with these: `--caches`.
CACHES = "caches.tar.xz"
LIMITATIONS = (
    "an H200 is compute capability 9.0: nothing here speaks for SM120",
    "the model has 0.7 M parameters: launches, not arithmetic, decide its speed",
    "several engines lived on the GPU at once; those that were not measured slept",
    "windows of one to a few seconds: the spread between boots is what the verdict rests on",
    "the engine ran as a process beside the toolkit, not in a container of a stack",
)


class Run:
    """A run and its record.

    Args:
        context: What the stages share.
        record: Where the record goes.
        machine: This machine.
        environment: What was carried.
    """

    def __init__(self, context: Context, record: Path, machine: Machine, environment: Assembled | None) -> None:
        self._context, self._record = context, record
        self._machine, self._environment = machine, environment
        self._begin, self._started = time.monotonic(), now()
        self._stages: list[Stage] = []

    def elapsed(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self._begin

    def do(self, name: str, left_s: float) -> None:
        """Run one stage and write the record."""
        action, needs_s, rehearsable = STAGES[name]
        rehearsal = self._context.fleet.rehearsal
        if left_s < needs_s or (rehearsal and not rehearsable):
            why = "not with this engine" if rehearsal else f"{left_s:.0f} s are left, it needs {needs_s:.0f}"
            self._put(
                Stage(name=name, status=Status.SKIPPED, started_s=self.elapsed(), seconds=0, notes=(why,))
            )
            return
        say(f"=== {name}, {self.elapsed():.0f} s")
        begun, found, error = self.elapsed(), Findings(), ""
        try:
            action(self._context, found)
        except Exception as problem:  # noqa: BLE001  # put down whole; the other stages still have something to show
            error = "".join(traceback.format_exception(problem))
            say(error)
        met = bool(found.expectations) and all(each.met for each in found.expectations)
        status = Status.ERROR if error else (Status.AS_EXPECTED if met else Status.UNEXPECTED)
        self._put(
            Stage(
                name=name,
                status=status,
                started_s=round(begun, 1),
                seconds=round(self.elapsed() - begun, 1),
                expectations=tuple(found.expectations),
                gates=found.gates,
                throughput=found.throughput,
                figures=found.figures,
                notes=(*found.notes, *error.splitlines()[-30:]),
            )
        )

    def _put(self, stage: Stage) -> None:
        say(f"--- {stage.name}: {stage.status} in {stage.seconds:.0f} s {' '.join(stage.notes[:1])[:200]}")
        self._stages.append(stage)
        record = EngineRun(
            rehearsal=self._context.fleet.rehearsal,
            machine=self._machine,
            environment=self._environment,
            arguments=tuple(serve_arguments()),
            stages=tuple(self._stages),
            limitations=LIMITATIONS,
            started=self._started,
            ended=now(),
        )
        self._record.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")

    def succeeded(self) -> bool:
        """Every stage that ran came out as expected, and at least one ran."""
        ran = [stage.status for stage in self._stages if stage.status is not Status.SKIPPED]
        return bool(ran) and all(status is Status.AS_EXPECTED for status in ran)


def keep_logs(context: Context) -> None:
    """The engines' logs, the traces and the first engine's compile caches, compressed."""
    with tarfile.open(context.out / "logs.tar.xz", "w:xz", preset=1) as archive:
        for path in (*context.fleet.logs(), *sorted((context.work / "traces").glob("*"))):
            archive.add(path, arcname=path.name)
    home = context.work / "homes" / stages.A[0]
    if home.is_dir():
        with tarfile.open(context.out / CACHES, "w:xz", preset=1) as archive:
            archive.add(home, arcname=home.name)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--site", type=Path, required=True, help="the unpacked packages of the engine")
    parser.add_argument("--out", type=Path, required=True, help="folder for records, logs and traces")
    parser.add_argument("--work", type=Path, default=Path("/tmp/engine-run"), help="folder for the rest")  # noqa: S108
    parser.add_argument("--assembled", type=Path, help="assembled.json of what was carried")
    parser.add_argument("--caches", type=Path, help=f"{CACHES} of an earlier run")
    parser.add_argument("--stages", default=",".join(STAGES), help="by name, comma-separated, in order")
    parser.add_argument("--budget-s", type=float, default=540, help="seconds for everything")
    parser.add_argument(
        "--rehearse", action="store_true", help="another engine, on this CPU: proves the script"
    )
    options = parser.parse_args()
    unknown = [name for name in options.stages.split(",") if name not in STAGES]
    if unknown:
        parser.error(f"unknown stages: {', '.join(unknown)}; there are {', '.join(STAGES)}")
    return options


def main() -> int:
    """Run the stages; 0 when all that ran came out as expected."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    environment = Assembled.model_validate_json(options.assembled.read_bytes()) if options.assembled else None
    if options.caches:
        with tarfile.open(options.caches) as archive:
            archive.extractall(options.work / "homes", filter="data")
    plans = REHEARSAL_PLANS if options.rehearse else GPU_PLANS
    fleet = Fleet(options.work, options.site.resolve(), rehearsal=options.rehearse)
    context = Context(fleet=fleet, out=options.out, work=options.work, plans=plans)
    run = Run(context, options.out / "run.json", machine_facts(), environment)
    # A stage that hangs must not cost the records of those before it.
    guard = threading.Timer(options.budget_s, _give_up, (context,))
    guard.daemon = True
    guard.start()
    try:
        for name in options.stages.split(","):
            run.do(name, options.budget_s - run.elapsed())
            if name == "abba":
                fleet.stop()
                say(f"GPU held by {gpu_processes()} after the engines were stopped")
    finally:
        guard.cancel()
        fleet.stop()
        keep_logs(context)
    return 0 if run.succeeded() else 1


def _give_up(context: Context) -> None:
    """The budget is spent in the middle of a stage: keep the logs, end every engine and ourselves."""
    say("the time is up")
    keep_logs(context)
    context.fleet.stop()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main())
