"""Two GPUs, one model: split over both with this project's kernels in the engine, against one GPU without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.gpu.engine.assemble import ROOT
from tests.gpu.engine.comparing import compare_boots, difference, greedy
from tests.gpu.engine.process import TINY, Spec
from tests.gpu.engine.stages import failures
from tests.models.widened import widen
from tooling.gates.correctness import Endpoint, Tier, load_profile, run_correctness
from tooling.gates.dispatch_counters import dispatch_gate, read_counters
from tooling.gates.records import Verdict
from tooling.records import now
from tooling.triage import Outcome
from tooling.verify.boots import server_info

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gpu.engine.stages import Context, Findings

ONE, SPLIT, OURS = "tp1", "tp2", "tp2-kernels"
FEATURES = ("allreduce", "allreduce-rmsnorm")
#: The engine's own ways around NCCL are off, so that what is compared is NCCL and ours.
_SPLIT = {
    "tp-size": "2",
    "disable-custom-all-reduce": "",
    "enforce-disable-flashinfer-allreduce-fusion": "",
}
#: Sums of two halves are rounded once more than one sum; bfloat16 has 8 bits.
_APART = 0.25


def prepare(context: Context, found: Findings) -> None:
    """Start the three engines, and wait for all."""
    model = context.work / "wide"
    widen(TINY, model)
    asked = {
        "BLACKWELL_KERNELS_ALLREDUCE": "1",
        "BLACKWELL_KERNELS_ALLREDUCE_RMSNORM": "1",
        "BLACKWELL_KERNELS_STRICT": "1",
        "BLACKWELL_KERNELS_COUNTERS": str(counters(context)),
        "BLACKWELL_KERNELS_CACHE": str(context.work / "plans"),
    }
    context.fleet.start(
        Spec(name=ONE, model=model),
        Spec(name=SPLIT, model=model, changes=_SPLIT),
        Spec(name=OURS, model=model, changes=_SPLIT, environment=asked),
    )
    for name in (ONE, SPLIT, OURS):
        with context.fleet[name].attach(context.work / "boots") as endpoint:
            found.expect(f"{name}: the first answer has text", bool(endpoint.facts.answer.text), name)
        found.figures[f"{name} ready_s"] = context.fleet[name].ready_after_s
    size = int((server_info(context.fleet[OURS].url) or {}).get("tp_size") or 0)
    found.expect("the engine says that it is split over two", size == 2, size)


def counters(context: Context) -> Path:
    """Where the plugin's counter files are."""
    return context.work / "counters"


def kernels(context: Context, found: Findings) -> None:
    """Answers as with one GPU and as with NCCL, and launches of our kernels on both ranks."""
    started, before = now(), read_counters(counters(context))
    answers = {name: greedy(context.fleet[name].url) for name in (ONE, SPLIT, OURS)}
    for base in (ONE, SPLIT):
        texts, apart = difference(answers[base], answers[OURS])
        found.expect(f"the answers of {base}", texts, [answer["text"] for answer in answers[OURS]])
        found.expect(
            f"log-probabilities near those of {base}", apart <= _APART, f"largest difference {apart:.3g}"
        )
    gate = run_correctness(
        Endpoint(context.fleet[OURS].url, "tiny"),
        load_profile("tiny", ROOT / "stacks" / "models"),
        Tier.T1,
        evidence=context.work / "correctness-kernels",
        boot=OURS,
    )
    found.gates["correctness"] = gate
    found.expect("correctness passes", gate.verdict is Verdict.PASS, failures(gate))
    after = read_counters(counters(context))
    proof = dispatch_gate(FEATURES, before, after, ranks=2, started=started)
    found.gates["dispatch"] = proof
    found.expect("our kernels ran on both ranks", proof.verdict is Verdict.PASS, failures(proof))
    found.notes += [f"{check.name}: {check.seen}" for check in proof.checks]
    found.notes += [line for check in proof.checks for line in check.details]
    report = context.fleet[OURS].triage()
    found.expect("its log has nothing fatal", report.outcome is not Outcome.FAIL, report.diagnosis)


def speed(context: Context, found: Findings) -> None:
    """NCCL and ours in turn, by the verdict rule; over whatever joins these GPUs."""
    measured = {}
    order = (SPLIT, OURS, OURS, SPLIT, SPLIT, OURS)
    names: dict[str, list[str]] = {SPLIT: [], OURS: []}
    for engine in order:
        name = f"{engine} {len(names[engine]) + 1}"
        names[engine].append(name)
        gate, measured[name] = context.measure(engine)
        found.gates[name], found.throughput[name] = gate, measured[name]
    for metric, comparison in compare_boots(measured, names[SPLIT], names[OURS]).items():
        found.notes.append(f"our kernels against NCCL, {metric}: {comparison.verdict}: {comparison.seen}")
        found.expect(f"{metric} does not fall", comparison.verdict is not Verdict.FAIL, comparison.seen)
    found.notes.append("three loads of one boot each: spreads between boots are not in it")
