"""What is done to one running engine: correctness, load, its own kits, and a last answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import requests

from tooling import console
from tooling.boot import BootError, dry_boot_contract, stack_contract
from tooling.dockerhost.containers import execute_in
from tooling.gates.correctness import Baseline as Answers
from tooling.gates.correctness import Endpoint as Correctness
from tooling.gates.correctness import load_baselines, load_profile, run_correctness
from tooling.gates.correctness.battery import ANSWERS
from tooling.gates.engine_kits import engine_kits_gate, kits_of
from tooling.gates.records import Check, Verdict, worst
from tooling.gates.throughput.gate import run_throughput
from tooling.gates.throughput.plan import Endpoint as Load
from tooling.gates.throughput.plan import ThroughputPlan

if TYPE_CHECKING:
    from pathlib import Path

    import docker

    from tooling.boot import Endpoint, Mount, RunContract
    from tooling.gates.correctness import Profile, Tier
    from tooling.gates.records import GateResult
    from tooling.gates.throughput.plan import Throughput
    from tooling.gates.verdict import Boot
    from tooling.stack import Stack

#: A load that a CPU answers in seconds; its figures say nothing about a GPU.
CPU_PLAN = ThroughputPlan(
    input_words=12,
    output_tokens=64,
    concurrencies=(1, 4),
    requests_per_stream=8,
    windows=3,
    warmup_per_stream=4,
    open_loop_requests=24,
    freeze_ms=2500,
)
#: A dry boot is no measurement; only a pause of this many seconds is a fault.
DRY_STALL_S = 30.0
PYTHON = "/opt/stack/bin/python"
LAST_ANSWER = "answers-after-the-load"
_INFO_ROUTES = ("/server_info", "/get_server_info")


class Setup(NamedTuple):
    """How a stack's image is booted for its gates on this machine.

    Attributes:
        contract: For `tooling.boot.boot`.
        plan: The load.
        limitations: What this way of booting leaves out.
        stall_s: Pause in seconds that is a fault; None for the profile's own.
    """

    contract: RunContract
    plan: ThroughputPlan
    limitations: tuple[str, ...]
    stall_s: float | None


def set_up(stack: Stack, device: str, model: Mount, words: tuple[str, ...]) -> Setup:
    """The way to boot a stack on a device.

    Args:
        stack: The stack.
        device: `cpu` or `gpu`; a GPU stack on `cpu` boots dry.
        model: The model's files.
        words: Serve arguments of this run.
    """
    on_gpu = device == "gpu" and bool(stack.cuda)
    contract = stack_contract(stack, models=(model,), extra=words, gpus="all" if on_gpu else ())
    plan = CPU_PLAN if device == "cpu" else ThroughputPlan()
    if device == "gpu" or not stack.cuda:
        return Setup(contract, plan, (), None)
    contract, limitations = dry_boot_contract(contract, engine=stack.engine.name)
    limitations += (f"pauses below {DRY_STALL_S:g} s were not judged: a CPU is slow at a GPU engine's work",)
    return Setup(contract, plan.model_copy(update={"freeze_ms": DRY_STALL_S * 1000}), limitations, DRY_STALL_S)


class Task(NamedTuple):
    """What the gates on a running engine are told.

    Attributes:
        profile: Name of the model profile.
        tier: How much the correctness gate asks.
        root: The checkout.
        plan: The load.
        evidence: Folder for everything that is kept.
        baselines: Folder of throughput baselines.
        pins: What must be equal for two boots to be compared.
        stall_s: Pause in seconds that is a fault; None for the profile's own.
        earlier: Values of the candidate's earlier boots, by metric.
        before: Values of the baseline's boots of this session, by metric.
        answers: Answer files of the baseline's boots of this session.
    """

    profile: str
    tier: Tier
    root: Path
    plan: ThroughputPlan
    evidence: Path
    baselines: Path | None
    pins: dict[str, str]
    stall_s: float | None
    earlier: dict[str, list[Boot]]
    before: dict[str, list[Boot]]
    answers: list[Path]

    def model_profile(self) -> Profile:
        """The profile, with the patience of this run."""
        profile = load_profile(self.profile, self.root / "stacks" / "models")
        if self.stall_s is None:
            return profile
        patient = profile.chat.model_copy(update={"stall_s": self.stall_s})
        return profile.model_copy(update={"chat": patient})

    def baseline_answers(self) -> Answers | None:
        """What the baseline's boots answered so far."""
        return load_baselines(self.answers)


def load_gates(endpoint: Endpoint, task: Task) -> tuple[GateResult, GateResult, Throughput]:
    """Correctness, then load, then a last answer: an engine that died under load is found here."""
    console.say(f"correctness: tier {task.tier}, profile {task.profile}")
    folder = task.evidence / endpoint.facts.boot_id
    correctness = run_correctness(
        Correctness(base_url=endpoint.url, model=endpoint.model),
        task.model_profile(),
        task.tier,
        task.baseline_answers(),
        evidence=folder,
        boot=endpoint.facts.boot_id,
        say=console.say,
    )
    console.say(f"throughput: concurrencies {', '.join(map(str, task.plan.concurrencies))}")
    throughput, measured = run_throughput(
        Load(url=endpoint.url, model=endpoint.model),
        task.plan,
        baselines=task.baselines,
        pins=task.pins,
        fresh_baseline=task.before,
        boot_id=endpoint.facts.boot_id,
        earlier_boots=task.earlier,
        say=console.say,
    )
    throughput = with_last_answer(endpoint, throughput)
    kept = tuple(
        item.model_copy(update={"path": f"{folder.name}/{item.path}"}) for item in correctness.evidence
    )
    return correctness.model_copy(update={"evidence": kept}), throughput, measured


def with_last_answer(endpoint: Endpoint, throughput: GateResult) -> GateResult:
    """The gate's result and whether the same boot still answers after the load.

    A failure is a check of the record: an exception would lose all that the gates have seen.
    """
    try:
        endpoint.check()
        endpoint.check_alive()
        last = Check(name=LAST_ANSWER, verdict=Verdict.PASS, seen="it still answers")
    except BootError as error:
        last = Check(name=LAST_ANSWER, verdict=Verdict.FAIL, seen=error.what, details=tuple(error.details))
    checks = (*throughput.checks, last)
    verdict = worst(check.verdict for check in checks)
    return throughput.model_copy(update={"checks": checks, "verdict": verdict})


def still_answers(throughput: GateResult) -> bool:
    """Whether the boot answered after the load."""
    return any(check.name == LAST_ANSWER and check.verdict is Verdict.PASS for check in throughput.checks)


def answers_of(endpoint: Endpoint, task: Task) -> list[Path]:
    """The answer file that `load_gates` left of this boot, if it got so far."""
    path = task.evidence / endpoint.facts.boot_id / ANSWERS
    return [path] if path.is_file() else []


def own_kits(
    client: docker.DockerClient, endpoint: Endpoint, task: Task, stack: Stack, port: int
) -> list[GateResult]:
    """The gate `engine-kits` over a container of ours; nothing for an engine that ships no kits."""
    kits = kits_of(stack.engine.name)
    if kits is None:
        return []
    console.say(f"engine-kits: {len(kits.kits)} kits of {stack.engine.name} itself")
    container = endpoint.facts.container_id
    gate = engine_kits_gate(
        lambda command: execute_in(client, container, command),
        kits,
        python=PYTHON,
        url=f"http://127.0.0.1:{port}",
        model=endpoint.model,
        unsuitable=task.model_profile().unsuitable_probes,
    )
    endpoint.check_alive()
    return [gate]


def server_info(url: str) -> dict[str, Any] | None:
    """The engine's report on itself; None where it has none, or gives none that can be read."""
    for route in _INFO_ROUTES:
        try:
            answer = requests.get(url + route, timeout=30)
            info = answer.json() if answer.status_code == requests.codes.ok else None
        except requests.RequestException:
            continue  # what it says is used as evidence only; whether it lives, others ask
        if isinstance(info, dict):
            return info
    return None
