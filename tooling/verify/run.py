"""Run the gates over a boot of a stack's image, or over an engine that somebody else started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import requests
from docker.errors import ImageNotFound

from tooling import console
from tooling.boot import Mount, attach, boot, dry_boot_contract, stack_contract
from tooling.build.builder import REPOSITORY, build
from tooling.build.context import LABEL
from tooling.dockerhost import ensure_engine
from tooling.errors import InputError
from tooling.gates.correctness import Endpoint as Correctness
from tooling.gates.correctness import Tier, load_profile, run_correctness
from tooling.gates.records import Verdict, worst
from tooling.gates.throughput.gate import run_throughput
from tooling.gates.throughput.plan import Endpoint as Load
from tooling.gates.throughput.plan import ThroughputPlan
from tooling.gates.throughput.regression import boot_of, save_baseline
from tooling.records import now, sha256_of, sha256_of_file
from tooling.stack import load_stack
from tooling.triage.features import feature_table
from tooling.triage.gate import triage_gate
from tooling.verify.arguments import arguments_gate
from tooling.verify.record import VerifyRecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import docker

    from tooling.boot import BootFacts, Endpoint
    from tooling.gates.records import Evidence, GateResult
    from tooling.gates.throughput.plan import Throughput
    from tooling.gates.verdict import Boot
    from tooling.stack import Stack

MODELS = "/models"
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
_INFO_ROUTES = ("/server_info", "/get_server_info")


def verify_stack(
    name: str,
    root: Path,
    *,
    image: str = "",
    device: str = "",
    model: Path | None = None,
    profile: str = "tiny",
    tier: Tier = Tier.T0,
    extra: Sequence[str] = (),
    boots: int = 1,
    baselines: Path | None = None,
    save: bool = False,
    output: Path | None = None,
) -> VerifyRecord:
    """Boot the image of a stack on this machine and run its gates; the image is built first if it is not there.

    Args:
        name: Name of the stack.
        root: The checkout.
        image: Id of an image of the stack that the engine has; by default what was built last.
        device: `cpu` or `gpu`; by default what the stack is for.
        model: Folder or file of the model; by default the tiny one of the checkout.
        profile: Model profile: questions, answers and thresholds.
        tier: How much the correctness gate asks.
        extra: Further serve arguments.
        boots: How often it is booted: a boot is one observation, and the regression rule needs three or more.
        baselines: Folder of throughput baselines.
        save: Make these boots the baseline of this host and model.
        output: Folder for record and evidence; by default `build/<stack>/verify-<time>` of the checkout.

    Raises:
        BootError: The image did not get ready; its log is kept.
    """
    if boots < 1 or (save and baselines is None):
        raise InputError("boots is at least 1, and a baseline needs a folder", fix="add --baselines FOLDER")
    stack = load_stack(name, root).stack
    device = device or ("gpu" if stack.cuda else "cpu")
    client = ensure_engine(console.say)
    image, inputs = _image(client, name, root, image)
    started = now()
    evidence = output or root / "build" / name / f"verify-{started.replace(':', '')}"
    evidence.mkdir(parents=True, exist_ok=True)
    source = (model or _tiny(stack, root)).resolve()
    if not source.exists():
        raise InputError("there is no model here", where=str(source), fix="give a folder or file by --model")
    target = f"{MODELS}/{source.name}"
    words = ("--model-path", target, "--served-model-name", source.stem, *extra)
    contract = stack_contract(
        stack,
        models=(Mount(source=str(source), target=target),),
        extra=words,
        gpus="all" if device == "gpu" and stack.cuda else (),
    )
    limitations: tuple[str, ...] = ()
    if device == "cpu" and stack.cuda:
        contract, limitations = dry_boot_contract(contract, engine=stack.engine.name)
        limitations += (
            f"pauses below {DRY_STALL_S:g} s were not judged: a CPU is slow at a GPU engine's work",
        )
    console.say(f"verify {name}: {image[:19]} on {device}, evidence in {evidence}")
    arguments = contract.command[len(stack.serve.command) :]
    gates = [arguments_gate(client, image, stack, arguments)]
    plan = CPU_PLAN if device == "cpu" else ThroughputPlan()
    if limitations:
        plan = plan.model_copy(update={"freeze_ms": DRY_STALL_S * 1000})
    files = _hashes(source)
    # What must be equal for two boots to be compared; the image is what is compared.
    pins = {"model": sha256_of(files), "arguments": sha256_of(list(arguments))}
    todo = _Todo(profile, tier, root, plan, evidence, baselines, pins, DRY_STALL_S if limitations else None, {})
    facts: list[BootFacts] = []
    runs: list[Throughput] = []
    for number in range(boots):
        with boot(
            image,
            contract,
            evidence=evidence,
            stack=name,
            engine=stack.engine.name,
            version=stack.engine.version,
            device=device,
        ) as endpoint:
            correctness, throughput, measured = _load_gates(endpoint, todo)
            info = _server_info(endpoint.url)
            # Read before the stop that we ask for: what comes after it is not the engine's doing.
            report = endpoint.report()
        features = feature_table(
            arguments=arguments, environment=stack.environment, server_info=info, report=report
        )
        gates.append(correctness)
        gates.append(
            triage_gate(report, features, started=started, evidence=_kept(endpoint), limitations=limitations)
        )
        facts.append(endpoint.facts)
        runs.append(measured)
        # The last boot's result sees the values of all; of an earlier one only a failure is news.
        if number == boots - 1 or throughput.verdict is Verdict.FAIL:
            gates.append(throughput)
        for metric, value in boot_of(measured, endpoint.facts.boot_id).items():
            todo.earlier.setdefault(metric, []).append(value)
    record = _write(
        VerifyRecord(
            stack=name,
            device=device,
            inputs_sha256=inputs,
            boots=tuple(facts),
            model=files,
            profile=profile,
            gates=tuple(gates),
            throughput=tuple(runs),
            verdict=worst(gate.verdict for gate in gates),
            limitations=limitations,
            started=started,
            ended=now(),
        ),
        evidence,
    )
    if save and baselines is not None:
        path = save_baseline(baselines, throughput, measured, pins=pins, subject=image, boots=todo.earlier)
        console.say(f"baseline: {path}")
    return record


def verify_attached(
    url: str,
    root: Path,
    *,
    log: Path | None = None,
    container: str = "",
    engine: str = "",
    version: str = "",
    profile: str = "instruct",
    tier: Tier = Tier.T0,
    plan: ThroughputPlan | None = None,
    baselines: Path | None = None,
    output: Path | None = None,
) -> VerifyRecord:
    """Run the same gates over an engine that somebody else started; it is left alone.

    Args:
        url: Base of its HTTP interface.
        root: The checkout.
        log: Its log file, if this machine can read it.
        container: Its container, instead of a log file.
        engine: Engine, for the triage of its log.
        version: Its version.
        profile: Model profile.
        tier: How much the correctness gate asks.
        plan: The load.
        baselines: Folder of throughput baselines.
        output: Folder for record and evidence; by default `build/attached/verify-<time>`.
    """
    started = now()
    evidence = output or root / "build" / "attached" / f"verify-{started.replace(':', '')}"
    evidence.mkdir(parents=True, exist_ok=True)
    limitations = ["the engine was started by somebody else: its image, arguments and host were not checked"]
    with attach(
        url, evidence=evidence, log=log, container=container, engine=engine, version=version
    ) as endpoint:
        todo = _Todo(profile, tier, root, plan or ThroughputPlan(), evidence, baselines, {}, None, {})
        correctness, throughput, measured = _load_gates(endpoint, todo)
    gates = [correctness, throughput]
    if endpoint.has_log:
        gates.append(triage_gate(endpoint.report(), (), started=started, evidence=_kept(endpoint)))
    else:
        limitations.append("no log was given: nothing is known of warnings, disabled features or fallbacks")
    return _write(
        VerifyRecord(
            stack="",
            device="unknown",
            boots=(endpoint.facts,),
            model={"served": endpoint.facts.model},
            profile=profile,
            gates=tuple(gates),
            throughput=(measured,),
            verdict=worst(gate.verdict for gate in gates),
            limitations=tuple(limitations),
            started=started,
            ended=now(),
        ),
        evidence,
    )


class _Todo(NamedTuple):
    """What the gates on a running engine are told."""

    profile: str
    tier: Tier
    root: Path
    plan: ThroughputPlan
    evidence: Path
    baselines: Path | None
    pins: dict[str, str]
    stall_s: float | None
    earlier: dict[str, list[Boot]]


def _load_gates(endpoint: Endpoint, todo: _Todo) -> tuple[GateResult, GateResult, Throughput]:
    """Correctness, then load, then a last answer: an engine that died under load is found here."""
    profile = load_profile(todo.profile, todo.root / "stacks" / "models")
    if todo.stall_s is not None:
        patient = profile.chat.model_copy(update={"stall_s": todo.stall_s})
        profile = profile.model_copy(update={"chat": patient})
    console.say(f"correctness: tier {todo.tier}, profile {todo.profile}")
    correctness = run_correctness(
        Correctness(base_url=endpoint.url, model=endpoint.model),
        profile,
        todo.tier,
        evidence=todo.evidence,
        boot=endpoint.facts.boot_id,
        say=console.say,
    )
    console.say(f"throughput: concurrencies {', '.join(map(str, todo.plan.concurrencies))}")
    throughput, measured = run_throughput(
        Load(url=endpoint.url, model=endpoint.model),
        todo.plan,
        baselines=todo.baselines,
        pins=todo.pins,
        boot_id=endpoint.facts.boot_id,
        earlier_boots=todo.earlier,
        say=console.say,
    )
    endpoint.check()
    endpoint.check_alive()
    return correctness, throughput, measured


def _image(client: docker.DockerClient, name: str, root: Path, given: str) -> tuple[str, str]:
    """Id of the stack's image and hash of its build inputs; the image is built when none is there or given."""
    reference = given or f"{REPOSITORY}/{name}:built"
    try:
        image = client.images.get(reference)
    except ImageNotFound as error:
        if given:
            raise InputError(f"the engine has no image {given}", fix="pull or build it first") from error
        console.say(f"{reference} is not here: building it first")
        build(name, root)
        image = client.images.get(reference)
    return str(image.id), image.labels.get(f"{LABEL}.inputs-sha256", "")


def _tiny(stack: Stack, root: Path) -> Path:
    """The committed tiny model in the form that the engine reads."""
    folder = root / "stacks" / "models" / "tiny"
    return folder / "tiny.gguf" if stack.engine.name == "xllamacpp" else folder


def _hashes(source: Path) -> dict[str, str]:
    """SHA-256 of every file of a model."""
    files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    return {str(path.relative_to(source.parent)): sha256_of_file(path) for path in files}


def _server_info(url: str) -> dict[str, Any] | None:
    """The engine's report on itself, where it has one."""
    for route in _INFO_ROUTES:
        answer = requests.get(url + route, timeout=30)
        if answer.status_code == requests.codes.ok:
            info: dict[str, Any] = answer.json()
            return info
    return None


def _kept(endpoint: Endpoint) -> tuple[Evidence, ...]:
    return (endpoint.evidence,) if endpoint.evidence else ()


def _write(record: VerifyRecord, evidence: Path) -> VerifyRecord:
    path = evidence / "verify.json"
    path.write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
    console.say(f"record: {path}")
    return record
