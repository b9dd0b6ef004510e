"""What must fail on a GPU, each against the healthy engine of the same run; and what must not differ."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu.engine.assemble import ROOT, load_facts
from tests.gpu.engine.comparing import compare_boots, difference, greedy, spreads
from tests.gpu.engine.machine import free_gib
from tests.gpu.engine.process import TINY, Spec
from tests.gpu.engine.stages import A, failures, joules_per_token, watts
from tests.gpu.prune_compare import make_pruned
from tests.models.damage import damage_gguf, damage_safetensors
from tooling.errors import ToolkitError
from tooling.gates.correctness import Endpoint, Tier, load_profile, run_correctness
from tooling.gates.jit import JitWatch, cache_folders, jit_gate
from tooling.gates.power import judge_idle
from tooling.gates.records import Verdict
from tooling.gates.throughput.measure import idle_gpus
from tooling.gates.throughput.sampling import gpu_reader
from tooling.records import now
from tooling.triage.features import feature_table
from tooling.triage.gate import triage_gate
from tooling.verify.boots import server_info

if TYPE_CHECKING:
    from tests.gpu.engine.stages import Context, Findings

#: The healthy engine of this part: it starts with the caches of the first one, so nothing is left to compile.
WARM = "warm"
FLASHINFER = ("f1", "f2", "f3")
STARVED = ("starved1", "starved2")
#: A loop that does nothing on one multiprocessor: 100 % utilisation, hardly any power.
SPIN = """
import sys, time, torch
end = time.monotonic() + float(sys.argv[1])
torch.cuda._sleep(1000)
print("spinning", flush=True)
while time.monotonic() < end:
    torch.cuda._sleep(200_000_000)
    torch.cuda.synchronize()
"""
#: Takes the GPU's memory in plain allocations, all but half a GiB, and keeps it.
HOLD = """
import time, torch
kept = []
for size in (1 << 30, 1 << 27):
    try:
        while True:
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        pass
del kept[-4:]
torch.cuda.empty_cache()
print("holding", flush=True)
time.sleep(600)
"""
_PRUNE_LIMIT_S = 240


def damaged(kind: str, folder: Path) -> Path:
    """A damaged copy of the tiny model in both of its forms."""
    place = folder / f"model-{kind}"
    shutil.copytree(TINY, place, ignore=shutil.ignore_patterns("*.py", "model.safetensors", "*.gguf"))
    damage_safetensors(TINY / "model.safetensors", kind, place / "model.safetensors")
    damage_gguf(TINY / "tiny.gguf", kind, place / "tiny.gguf")
    return place


def flashinfer_engines() -> tuple[Spec, ...]:
    """The second configuration, three boots of it."""
    changes = {"attention-backend": "flashinfer"}
    return tuple(Spec(name=name, changes=changes, home="flashinfer") for name in FLASHINFER)


def prepare(context: Context, found: Findings) -> None:
    """Start everything that this part needs, side by side; the warm engine is watched from its first moment."""
    started = now()
    fleet = context.fleet
    filled = any((context.work / "homes" / A[0]).rglob("*"))
    fleet.start(Spec(name=WARM, home=A[0]))
    warm = fleet[WARM]
    watch = JitWatch(warm.process.pid, cache_folders(warm.environment), boot_id=WARM, warm=filled)
    watch.start()
    try:
        fleet.start(
            Spec(name="nan", model=damaged("nan", context.work), home="shared"),
            Spec(name="zero-v", model=damaged("zero-v", context.work), home="shared"),
            *(
                Spec(
                    name=name,
                    changes={"cuda-graph-backend-decode": "disabled", "max-running-requests": "16"},
                    home="shared",
                )
                for name in STARVED
            ),
            Spec(
                name="switched-off",
                changes={
                    "enable-flashinfer-allreduce-fusion": "",
                    "enforce-disable-flashinfer-allreduce-fusion": "",
                },
                home="shared",
            ),
            *flashinfer_engines(),
        )
        warm.attach(context.work / "boots").close()
        watch.serving()
        gate, measured = context.measure(WARM)
    finally:
        watch.stop()
    context.healthy[WARM] = measured
    observation = watch.observation()
    found.gates |= {"jit-warm": jit_gate(observation, started=started), WARM: gate}
    found.throughput[WARM] = measured
    found.figures["warm ready_s"] = warm.ready_after_s
    found.notes += [
        f"{run.at_s} s {run.phase}: {run.program} {run.target}" for run in observation.compilers[:40]
    ]
    verdict = found.gates["jit-warm"].verdict
    found.expect("its caches were filled before", filled, filled)
    found.expect("a warm boot compiles nothing", verdict is Verdict.PASS, failures(found.gates["jit-warm"]))


def weights(context: Context, found: Findings) -> None:
    """NaN and zeroed V: up, answering, and wrong."""
    for kind in ("nan", "zero-v"):
        engine = context.fleet[kind]
        try:
            endpoint = engine.attach(context.work / "boots")
        except ToolkitError as error:
            found.expect(f"{kind}: refused at readiness or by its answers", kind == "nan", error.what)
            found.notes.append(f"{kind}: {error}")
            continue
        with endpoint:
            gate = run_correctness(
                Endpoint(engine.url, "tiny"),
                load_profile("tiny", ROOT / "stacks" / "models"),
                Tier.T0,
                evidence=context.work / f"correctness-{kind}",
                boot=kind,
            )
        found.gates[f"correctness-{kind}"] = gate
        found.expect(f"{kind}: correctness fails", gate.verdict is Verdict.FAIL, failures(gate))


def starved(context: Context, found: Findings) -> None:
    """No decode graphs and few running requests against the healthy boot: a collapse."""
    base = context.healthy[WARM]
    for name in STARVED:
        context.fleet[name].attach(context.work / "boots").close()
        gate, measured = context.measure(name, healthy_w=watts(base))
        context.healthy[name] = measured
        found.gates[name], found.throughput[name] = gate, measured
    for metric, comparison in compare_boots(context.healthy, (WARM,), STARVED).items():
        bad = comparison.verdict is Verdict.FAIL
        found.expect(f"starved fails by {metric}", bad, f"{comparison.verdict}: {comparison.seen}")


def switched_off(context: Context, found: Findings) -> None:
    """A feature that is requested, and off by the engine's own log."""
    engine = context.fleet["switched-off"]
    with engine.attach(context.work / "boots") as endpoint:
        greedy(engine.url)  # decodes for long enough that the engine logs a decode batch
        info = server_info(engine.url)
        report = endpoint.report()
    found.expect("the engine reports on itself", bool(info), f"{len(info or {})} entries")
    rows = feature_table(arguments=engine.arguments, environment={}, server_info=info, report=report)
    gate = triage_gate(report, rows, started=now())
    found.gates["log-triage-switched-off"] = gate
    fusion = next((row for row in rows if row.feature == "flashinfer-allreduce-fusion"), None)
    seen = f"{fusion.state}: {fusion.reason}" if fusion else "no row"
    found.expect(
        "the log shows that the requested fusion is off", bool(fusion and fusion.state == "DISABLED"), seen
    )
    found.expect("log-triage fails", gate.verdict is Verdict.FAIL, failures(gate))
    others = [row for row in rows if row is not fusion]
    idle = [f"{row.feature} {row.state}: {row.reason}" for row in others if row.state != "ACTIVE"]
    found.expect("every other requested feature is active", bool(others) and not idle, idle or len(others))


def spinning(context: Context, found: Findings) -> None:
    """A kernel spins beside the engine: busy GPU, little power, few tokens."""
    base = context.healthy[WARM]
    helper = context.fleet.helper(SPIN, "60")
    try:
        assert helper.stdout is not None
        if helper.stdout.readline().strip() != b"spinning":
            raise ToolkitError("the spinning kernel did not start", fix="see its messages")
        idle = judge_idle(idle_gpus(gpu_reader()))
        found.expect("a busy GPU is seen before the load", idle.verdict is Verdict.INCONCLUSIVE, idle.seen)
        gate, measured = context.measure(WARM, healthy_w=watts(base))
    finally:
        helper.kill()
        helper.wait()
    found.gates["spinning"], found.throughput["spinning"] = gate, measured
    power = next((check for check in gate.checks if check.name == "power"), None)
    seen = f"{power.verdict}: {power.seen} {power.details}" if power else "no power check"
    found.expect("the power check fails", bool(power and power.verdict is Verdict.FAIL), seen)
    energy, healthy = joules_per_token(measured), joules_per_token(base)
    if energy and healthy:
        found.figures["J/token, spinning over healthy"] = round(energy / healthy, 2)


def flashinfer(context: Context, found: Findings) -> None:
    """FlashInfer's kernels as a second configuration against Triton's, by the verdict rule."""
    started = time.monotonic()
    context.fleet.start(*flashinfer_engines())
    for name in FLASHINFER:
        context.fleet[name].attach(context.work / "boots").close()
    found.figures |= {f"{name} ready_s": context.fleet[name].ready_after_s for name in FLASHINFER}
    found.figures["waited for flashinfer, s"] = round(time.monotonic() - started, 1)
    folders = cache_folders(context.fleet[FLASHINFER[0]].environment)
    for cache, folder in folders.items():
        if folder.is_dir():
            found.figures[f"cache {cache}"] = (
                f"{sum(path.is_file() for path in folder.rglob('*'))} files, {folder}"
            )
    texts, apart = difference(greedy(context.fleet[WARM].url), greedy(context.fleet[FLASHINFER[0]].url))
    found.expect(
        "flashinfer gives the same greedy answers", texts, f"log-probabilities differ by at most {apart:.3g}"
    )
    measured = {}
    for name in (FLASHINFER[0], "warm again", *FLASHINFER[1:], "warm once more"):
        engine = WARM if name.startswith(WARM) else name
        gate, measured[name] = context.measure(engine, healthy_w=watts(context.healthy[WARM]))
        found.gates[name], found.throughput[name] = gate, measured[name]
    everything = {**measured, WARM: context.healthy[WARM]}
    base = (WARM, "warm again", "warm once more")
    for metric, comparison in compare_boots(everything, base, FLASHINFER).items():
        found.notes.append(f"flashinfer against triton, {metric}: {comparison.verdict}: {comparison.seen}")
    found.notes.append("the three values of triton come from one boot: its spread is too small by the boots'")
    found.figures |= spreads(everything, base)
    found.expect("the comparison was made", bool(found.notes), found.notes[0])


def held(context: Context, found: Findings) -> None:
    """Another process holds the GPU's memory: the engine must not come up, and the log must say why."""
    helper = context.fleet.helper(HOLD)
    try:
        assert helper.stdout is not None
        if helper.stdout.readline().strip() != b"holding":
            raise ToolkitError("the memory could not be taken", fix="see its messages")
        found.figures["free while it is held, GiB"] = round(free_gib(), 2)
        context.fleet.start(Spec(name="held", home="shared"))
        code = context.fleet["held"].wait_for_end(90)
    finally:
        helper.kill()
        helper.wait()
    report = context.fleet["held"].triage("" if code is None else f"exit code {code}")
    found.expect("the engine does not come up", code not in {None, 0}, f"exit code {code}")
    named = report.root.signature if report.root else "nothing"
    found.expect(
        "triage names the memory", "memory" in report.diagnosis.lower(), f"{named}: {report.diagnosis}"
    )
    # The worst first: whoever prints one line of the notes must not print a harmless one.
    findings = sorted(report.findings, key=lambda each: each.outcome == "OK")
    found.notes += [f"{each.outcome} {each.signature}: {each.text}" for each in findings]


def pruned(context: Context, found: Findings) -> None:
    """An engine on the pruned torch gives the same answers to the bit, as fast as equal boots are."""
    place = context.work / "pruned"
    site = Path(sysconfig.get_path("purelib"))
    totals = make_pruned(site, place, ROOT, load_facts().keep)
    found.figures |= {f"pruned, {name}": float(totals[name]) for name in ("bytes_before", "bytes_after")}
    base = WARM if WARM in context.fleet else A[0]
    context.fleet.start(Spec(name="pruned", home=A[0], before=(str(place),)))
    engine = context.fleet["pruned"]
    engine.attach(context.work / "boots").close()
    whole = greedy(context.fleet[base].url)
    _, again = difference(whole, greedy(context.fleet[base].url))
    found.expect("the whole one repeats itself", again == 0.0, f"largest difference {again:.3g}")
    texts, apart = difference(whole, greedy(engine.url))
    found.expect("the same answers", texts, texts)
    found.expect("the same log-probabilities", apart == 0.0, f"largest difference {apart:.3g}")
    maps = _mapped(engine.process.pid, str(place))
    found.expect("the engine has mapped the pruned libraries", maps > 0, f"{maps} files")
    measured = {}
    for name in (base, "pruned", "pruned again", f"{base} again"):
        gate, measured[name] = context.measure(name.removesuffix(" again"))
        found.gates[f"pruned: {name}"], found.throughput[f"pruned: {name}"] = gate, measured[name]
    for metric, comparison in compare_boots(
        measured, (base, f"{base} again"), ("pruned", "pruned again")
    ).items():
        found.notes.append(f"pruned against whole, {metric}: {comparison.verdict}: {comparison.seen}")


def pruned_torch(context: Context, found: Findings) -> None:
    """Torch computes the same to the bit when pruned."""
    command = [sys.executable, str(ROOT / "tests" / "gpu" / "prune_compare.py"), sysconfig.get_path("purelib")]
    command += ["--make", str(context.work / "pruned-torch"), "--toolkit", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PRUNE_LIMIT_S)
    (context.out / "prune-compare.json").write_text(done.stdout, encoding="utf-8")
    found.expect("torch computes the same when pruned", done.returncode == 0, done.stderr.strip()[-300:])


def _mapped(pid: int, place: str) -> int:
    """How many files below a folder a process has mapped."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:  # noqa: PTH123  # a kernel file
        return len({line.split(maxsplit=5)[5] for line in maps if f" {place}/" in line})
