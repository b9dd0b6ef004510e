"""The healthy engine: booted, held against the gates, its kernels and compilers watched, booted A B B A."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.gpu.engine.assemble import ROOT
from tests.gpu.engine.comparing import compare_boots, greedy, spreads
from tests.gpu.engine.machine import sm_clock
from tests.gpu.engine.process import Spec
from tests.gpu.engine.records import Expectation
from tooling.console import say
from tooling.gates.correctness import Tier
from tooling.gates.dispatch import dispatch_gate, profile_engine, read_traces
from tooling.gates.jit import JitWatch, Phase, cache_folders, jit_gate
from tooling.gates.records import Verdict
from tooling.gates.throughput.gate import run_throughput
from tooling.gates.throughput.plan import Endpoint as Load
from tooling.gates.throughput.plan import ThroughputPlan
from tooling.records import now
from tooling.verify import verify_attached

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gpu.engine.process import Fleet
    from tooling.gates.records import GateResult
    from tooling.gates.throughput.plan import Throughput

#: Six boots of the same thing, in the order in which they are measured.
A, B = ("a1", "a2", "a3"), ("b1", "b2", "b3")
ORDER = ("a1", "b1", "b2", "a2", "a3", "b3")


@dataclass
class Findings:
    """What a stage puts down.

    Attributes:
        expectations: What had to come out.
        gates: Results of gates.
        throughput: Measurements.
        figures: Numbers.
        notes: Lines for people.
    """

    expectations: list[Expectation] = field(default_factory=list)
    gates: dict[str, GateResult] = field(default_factory=dict)
    throughput: dict[str, Throughput] = field(default_factory=dict)
    figures: dict[str, float | str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def expect(self, what: str, met: bool, seen: object) -> None:
        """Put an expectation down and say it."""
        self.expectations.append(Expectation(what=what, met=bool(met), seen=str(seen)))
        say(f"{'as expected' if met else 'UNEXPECTED'}: {what}: {seen}")


@dataclass
class Plans:
    """The loads of a run."""

    tier: Tier
    sweep: ThroughputPlan
    short: ThroughputPlan


#: For the GPU: the sweep once, then the same two levels for every boot that is compared.
GPU_PLANS = Plans(
    tier=Tier.T1,
    sweep=ThroughputPlan(
        concurrencies=(1, 8, 32, 128, 256), windows=2, calibration_s=2.0, open_loop_requests=128,
        stall_s=20, window_limit_s=60,
    ),
    short=ThroughputPlan(
        concurrencies=(1, 64), windows=3, requests_per_stream=6, open_loop_share=0, calibrate=False,
        stall_s=30, window_limit_s=90,
    ),
)  # fmt: skip
#: For a rehearsal on slow cores.
REHEARSAL_PLANS = Plans(
    tier=Tier.T0,
    sweep=ThroughputPlan(
        concurrencies=(1, 4), input_words=12, output_tokens=16, windows=1, requests_per_stream=1,
        calibration_s=1.0, open_loop_requests=4, freeze_ms=20000,
    ),
    short=ThroughputPlan(
        concurrencies=(1, 4), input_words=12, output_tokens=16, windows=1, requests_per_stream=2,
        open_loop_share=0, calibrate=False, freeze_ms=20000,
    ),
)  # fmt: skip


@dataclass
class Context:
    """What the stages of a run share.

    Attributes:
        fleet: The engines.
        out: Folder for what is kept.
        work: Folder for what is not.
        plans: The loads.
        healthy: Measurements of healthy boots, by engine.
        answers: Greedy answers of a healthy engine.
        watch: The first boot's watch, until it is judged.
    """

    fleet: Fleet
    out: Path
    work: Path
    plans: Plans
    healthy: dict[str, Throughput] = field(default_factory=dict)
    answers: list[dict[str, object]] = field(default_factory=list)
    watch: JitWatch | None = None
    watch_started: str = ""

    def measure(self, name: str, *, healthy_w: float | None = None) -> tuple[GateResult, Throughput]:
        """The short load on an engine."""
        say(f"{name}: short load")
        return run_throughput(
            Load(url=self.fleet[name].url, model="tiny"),
            self.plans.short,
            boot_id=name,
            healthy_w=healthy_w,
            baseline_j_per_token=joules_per_token(self.healthy.get(A[0])),
            say=say,
        )


def joules_per_token(measured: Throughput | None) -> float | None:
    """Energy per token at the highest level of a healthy boot."""
    windows = measured.at(measured.plan.concurrencies[-1]) if measured else ()
    joules = [window.energy_j for window in windows if window.energy_j is not None]
    return sum(joules) / sum(window.output_tokens for window in windows) if joules else None


def watts(measured: Throughput) -> float | None:
    """Mean power at the highest level."""
    loads = [load for window in measured.at(measured.plan.concurrencies[-1]) for load in window.gpus]
    known = [load.power_w for load in loads if load.power_w is not None]
    return statistics.fmean(known) if known else None


def boot(context: Context, found: Findings) -> None:
    """Start six engines at once, one of them watched from its first moment, and wait for all."""
    context.fleet.start(Spec(name=A[0]))
    first = context.fleet[A[0]]
    context.watch_started = now()
    context.watch = JitWatch(first.process.pid, cache_folders(first.environment), boot_id=A[0], warm=False)
    context.watch.start()  # stopped in `compilers`
    context.fleet.start(*(Spec(name=name) for name in (*A[1:], *B)))
    with first.attach(context.work / "boots") as endpoint:
        context.watch.serving()
        found.expect("the first answer has text", bool(endpoint.facts.answer.text), endpoint.facts.answer.text)
    for name in (*A[1:], *B):
        context.fleet[name].attach(context.work / "boots").close()
    found.figures |= {f"{name} ready_s": context.fleet[name].ready_after_s for name in (*A, *B)}


def healthy(context: Context, found: Findings) -> None:
    """Correctness T0 and T1 and the sweep on the first engine, through `verify_attached`."""
    engine = context.fleet[A[0]]
    record = verify_attached(
        engine.url,
        ROOT,
        log=engine.log,
        engine="sglang",
        version="0.5.16",
        arguments=() if context.fleet.rehearsal else engine.arguments,
        profile="tiny",
        tier=context.plans.tier,
        plan=context.plans.sweep,
        output=context.work / "healthy",
    )
    (context.out / "verify.json").write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    gates = {gate.gate: gate for gate in record.gates}
    found.gates |= gates
    found.throughput[A[0]] = record.throughput[0]
    found.figures["sm clock after the sweep, MHz"] = sm_clock() or "unknown"
    for name in ("correctness", "log-triage"):
        found.expect(f"{name} passes", gates[name].verdict is Verdict.PASS, failures(gates[name]))
    # Without a baseline it cannot pass, and a model this small may not be able to warm a GPU.
    found.expect(
        "throughput does not fail",
        gates["throughput"].verdict is not Verdict.FAIL,
        failures(gates["throughput"]),
    )
    context.answers = greedy(engine.url)


def dispatch(context: Context, found: Findings) -> None:
    """Kernels that really ran against what is requested."""
    engine, started = context.fleet[A[0]], now()
    traces = profile_engine(engine.url, "tiny", context.work / "traces")
    trace = read_traces(traces)
    result = dispatch_gate(trace, arguments=engine.arguments, environment={}, started=started)
    found.gates["dispatch"] = result
    found.figures |= {f"calls of {name}": float(count) for name, count in trace.calls.items()}
    found.notes += [
        f"{kernel.launches} x {kernel.name[:160]}, {kernel.time_us:.0f} us" for kernel in trace.kernels
    ]
    found.expect("what was requested ran", result.verdict is Verdict.PASS, failures(result))
    other = [word if word != "triton" else "flashinfer" for word in engine.arguments]
    wrong = dispatch_gate(trace, arguments=other, environment={}, started=started)
    found.gates["dispatch-wrong-request"] = wrong
    found.expect("a backend that did not run fails", wrong.verdict is Verdict.FAIL, failures(wrong))


def compilers(context: Context, found: Findings) -> None:
    """What the first engine compiled from its start to the last token so far, with cold caches."""
    assert context.watch is not None
    context.watch.stop()
    observation = context.watch.observation()
    result = jit_gate(observation, started=context.watch_started)
    found.gates["jit-cold"] = result
    found.notes += [
        f"{run.at_s} s {run.phase}: {run.program} {run.target}" for run in observation.compilers[:40]
    ]
    late = [change for change in observation.changes if change.phase is Phase.SERVING and change.code]
    named = all(change.kernels for change in late)
    # With cold caches, kernels of rare requests may be missing at the first answer: the gate must say which.
    caught = result.verdict is Verdict.FAIL and bool(late) and named
    found.notes += [f"{change.cache} while serving: {', '.join(change.kernels)}" for change in late]
    found.expect(
        "nothing compiled while serving, or the gate fails and names the kernels",
        result.verdict is Verdict.PASS or caught,
        failures(result),
    )


def abba(context: Context, found: Findings) -> None:
    """Equal boots in the order A B B A A B: the verdict must not be FAIL."""
    power = None
    for name in ORDER:
        gate, measured = context.measure(name, healthy_w=power)
        power = power or watts(measured)
        context.healthy[name] = measured
        found.gates[name], found.throughput[name] = gate, measured
        cold = [
            check.seen for check in gate.checks if check.name == "power" and check.verdict is not Verdict.PASS
        ]
        found.expect(f"{name}: power fits the load", not cold, cold or "PASS, or no GPU")
    for metric, comparison in compare_boots(context.healthy, A, B).items():
        fine = comparison.verdict in {Verdict.PASS, Verdict.INCONCLUSIVE}
        found.expect(f"A = B does not fail by {metric}", fine, f"{comparison.verdict}: {comparison.seen}")
    found.figures |= spreads(context.healthy, ORDER)
    if power is not None:
        found.figures["power at the highest level, W"] = round(power, 1)


def failures(gate: GateResult) -> str:
    """The checks that did not pass, in one line."""
    bad = [
        f"{check.name} {check.verdict}: {check.seen}"
        for check in gate.checks
        if check.verdict is not Verdict.PASS
    ]
    return f"{gate.verdict}; {'; '.join(bad)}" if bad else str(gate.verdict)
