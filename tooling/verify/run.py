"""Run the gates over a boot of a stack's image, or over an engine that somebody else started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docker.errors import ImageNotFound

from tooling import console
from tooling.boot import Mount, attach
from tooling.build.builder import REPOSITORY, build
from tooling.build.context import LABEL
from tooling.dockerhost import ensure_engine
from tooling.errors import InputError
from tooling.gates.correctness import Tier
from tooling.gates.records import worst
from tooling.gates.throughput.plan import ThroughputPlan
from tooling.gates.throughput.regression import save_baseline
from tooling.records import now, sha256_of, sha256_of_file
from tooling.stack import load_stack
from tooling.triage.features import feature_table
from tooling.triage.gate import triage_gate
from tooling.verify.arguments import arguments_gate
from tooling.verify.boots import Task, load_gates, server_info, set_up, still_answers
from tooling.verify.probe import probe_gate
from tooling.verify.record import VerifyRecord
from tooling.verify.session import Session, kept, run_boots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import docker

    from tooling.stack import Stack

MODELS = "/models"


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
    against: str = "",
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
        against: Image that is the baseline: it is booted as often, in the order A B B A, on this host and now.
        baselines: Folder of throughput baselines.
        save: Make these boots the baseline of this host and model.
        output: Folder for record and evidence; by default `build/<stack>/verify-<time>` of the checkout.

    Raises:
        BootError: The image did not get ready; its log is kept.
    """
    _check_options(boots, baselines, save=save)
    stack = load_stack(name, root).stack
    device = device or ("gpu" if stack.cuda else "cpu")
    client = ensure_engine(console.say)
    image, inputs = _image(client, name, root, image)
    baseline_image = _baseline_image(client, against, image)
    started = now()
    evidence = output or root / "build" / name / f"verify-{started.replace(':', '')}"
    evidence.mkdir(parents=True, exist_ok=True)
    source = (model or _tiny(stack, root)).resolve()
    if not source.exists():
        raise InputError("there is no model here", where=str(source), fix="give a folder or file by --model")
    target = f"{MODELS}/{source.name}"
    words = ("--model-path", target, "--served-model-name", source.stem, *extra)
    setup = set_up(stack, device, Mount(source=str(source), target=target), words)
    console.say(f"verify {name}: {image[:19]} on {device}, evidence in {evidence}")
    arguments = setup.contract.command[len(stack.serve.command) :]
    files = _hashes(source)
    # What must be equal for two boots to be compared; the image is what is compared.
    pins = {"model": sha256_of(files), "arguments": sha256_of(list(arguments))}
    session = Session(
        client,
        stack,
        device,
        setup,
        arguments,
        Task(profile, tier, root, setup.plan, evidence, baselines, pins, setup.stall_s, {}, {}, []),
        started,
    )
    # On GPUs that nobody holds yet; a host that lies about them explains what the boots show.
    probed = (probe_gate(image, evidence),) if device == "gpu" else ()
    seen = run_boots(session, candidate=image, baseline=baseline_image, boots=boots)
    gates = (*probed, arguments_gate(client, image, stack, arguments), *seen.gates)
    record = _write(
        VerifyRecord(
            stack=name,
            device=device,
            inputs_sha256=inputs,
            boots=tuple(seen.boots),
            baseline_boots=tuple(seen.baseline_boots),
            model=files,
            profile=profile,
            gates=gates,
            throughput=tuple(seen.runs),
            verdict=worst(gate.verdict for gate in gates),
            limitations=(*setup.limitations, *seen.limitations),
            started=started,
            ended=now(),
        ),
        evidence,
    )
    if save and baselines is not None:
        path = save_baseline(
            baselines, seen.throughput, seen.runs[-1], pins=pins, subject=image, boots=session.task.earlier
        )
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
    arguments: Sequence[str] = (),
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
        arguments: Serve arguments that it was started with: what they ask for must be active.
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
    if not arguments:
        limitations.append("no serve arguments were given: which features were asked for is not known")
    with attach(
        url, evidence=evidence, log=log, container=container, engine=engine, version=version
    ) as endpoint:
        task = Task(profile, tier, root, plan or ThroughputPlan(), evidence, baselines, {}, None, {}, {}, [])
        correctness, throughput, measured = load_gates(endpoint, task)
        info = server_info(endpoint.url) if still_answers(throughput) else None
    gates = [correctness, throughput]
    if endpoint.has_log:
        report = endpoint.report()
        features = feature_table(arguments=arguments, environment={}, server_info=info, report=report)
        gates.append(triage_gate(report, features, started=started, evidence=kept(endpoint)))
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


def _check_options(boots: int, baselines: Path | None, *, save: bool) -> None:
    """Refuse what cannot be done before anything is booted."""
    if boots < 1:
        raise InputError(f"{boots} boots are none", fix="give --boots 1 or more")
    if save and baselines is None:
        raise InputError("a baseline needs a folder", fix="add --baselines FOLDER")


def _baseline_image(client: docker.DockerClient, against: str, candidate: str) -> str:
    """Id of the image to compare with; empty when none was asked for."""
    if not against:
        return ""
    try:
        found = str(client.images.get(against).id)
    except ImageNotFound as error:
        raise InputError(
            "the image to compare with is not on this host", where=against, fix="pull it by digest first"
        ) from error
    if found == candidate:
        console.say("the image to compare with is the candidate itself: this measures the host's A/A spread")
    return found


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


def _write(record: VerifyRecord, evidence: Path) -> VerifyRecord:
    path = evidence / "verify.json"
    path.write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
    console.say(f"record: {path}")
    return record
