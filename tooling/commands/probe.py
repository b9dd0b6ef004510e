"""`doctor`, `probe` and `fit`: what a host and a container can really do, and whether a model fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from tooling import console
from tooling.errors import InputError
from tooling.gates.records import Verdict
from tooling.paths import checkout
from tooling.probe.collect import WORKSPACE_MIB, collect, run_probe, with_host_facts
from tooling.probe.fit import GIB, Fit, FitRequest, FitVerdict, fit
from tooling.probe.judge import has_gpu
from tooling.probe.model import ModelNeeds, read_model
from tooling.probe.parse import read_document
from tooling.probe.records import HostRecord, ProbeReport, Urgency
from tooling.probe.report import exit_code, judge
from tooling.stack import load_stack

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Saved = Annotated[Path | None, typer.Option("--from", help="Judge a saved document instead of looking.")]
LastGood = Annotated[
    Path | None, typer.Option(help="Report of this host from a day when all was well: what changed is named.")
]
RecordFile = Annotated[Path | None, typer.Option("--record", help="Write the report here, too.")]
Notes = Annotated[list[str] | None, typer.Option("--note", help="A limitation of this run, for the report.")]
Host = Annotated[str, typer.Option(help="user@host; this machine by default. Nothing is changed there.")]
SshConfig = Annotated[Path | None, typer.Option(help="ssh configuration in place of your own.")]
_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "bold red"}
_URGENCIES = {Urgency.MUST: "bold red", Urgency.SHOULD: "yellow", Urgency.MAY: "cyan"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("doctor")(doctor)
    app.command("probe")(probe)
    app.command("fit")(fit_command)


def doctor(
    *,
    host: Host = "",
    saved: Saved = None,
    last_good: LastGood = None,
    record: RecordFile = None,
    ssh_config: SshConfig = None,
    as_json: AsJson = False,
) -> None:
    """Look at a host (driver, CUDA, kernel log, PCIe, engine, disk) and say what to change and why.

    Exit code 0: good; 1: a check failed; 3: there is no GPU; 4: a check could not tell.
    """
    text = _read(saved) if saved else _collect(host, ssh_config)
    _finish(read_document(text, where=str(saved or host or "this host")), last_good, record, as_json=as_json)


def probe(
    stack: Annotated[str, typer.Argument(help="Name of the stack whose image looks.")] = "",
    *,
    image: Annotated[str, typer.Option(help="Image to use; by default the stack's last build.")] = "",
    workspace_mib: Annotated[
        int, typer.Option(help="Size of the engine's workspace, MiB.", min=1)
    ] = WORKSPACE_MIB,
    multicast_create: Annotated[
        bool, typer.Option(help="Really create a multicast object; it can disable a shared host's GPUs.")
    ] = False,
    saved: Saved = None,
    last_good: LastGood = None,
    record: RecordFile = None,
    note: Notes = None,
    as_json: AsJson = False,
) -> None:
    """Try memory, peer access and collectives in the stack's image on this host's GPUs.

    Exit code 0: good; 1: a check failed; 3: there is no GPU; 4: a check could not tell.
    """
    if saved:
        _finish(read_document(_read(saved), where=str(saved)), last_good, record, note, as_json=as_json)
        return
    if not stack and not image:
        raise InputError("no image to probe with", fix="name a stack, or give --image or --from")
    if stack:
        load_stack(stack, checkout())
    chosen = image or f"blackwell-stacks/{stack}:built"
    outside = collect()
    seen = read_document(outside, where="this host")
    if not has_gpu(seen):
        console.say(
            "this host has no GPU, so there is nothing to try in the image; this is what the host shows:"
        )
        _finish(seen, last_good, record, as_json=as_json)
        return
    options = ["--workspace-mib", str(workspace_mib), *(["--multicast-create"] if multicast_create else [])]
    inside = run_probe(chosen, options, console.say)
    host = read_document(with_host_facts(inside, outside), where=chosen)
    _finish(host, last_good, record, note, as_json=as_json)


def fit_command(
    stack: Annotated[str, typer.Argument(help="Name of the stack.")],
    *,
    model: Annotated[
        Path | None, typer.Option(help="Folder of the model, here: config.json and its safetensors.")
    ] = None,
    weights_gib: Annotated[float, typer.Option(help="All weights as loaded, GiB; else from --model.")] = 0.0,
    gpus: Annotated[int, typer.Option(help="GPUs that the model is spread over.", min=1)] = 1,
    context: Annotated[int, typer.Option(help="Tokens of a request; 0: all that the model can.", min=0)] = 0,
    requests: Annotated[int, typer.Option(help="Requests of that length at once.", min=1)] = 1,
    kv_cache_dtype: Annotated[str, typer.Option(help="As the engine is told: auto or fp8_e4m3.")] = "auto",
    cache_gib: Annotated[
        float, typer.Option(help="KV cache of all GPUs together, GiB; else from --model.")
    ] = 0.0,
    image_gib: Annotated[float, typer.Option(help="Disk that the pull needs, GiB.")] = 25.0,
    model_disk_gib: Annotated[
        float, typer.Option(help="Disk for the model's files, GiB; 0: they are there.")
    ] = 0.0,
    host: Host = "",
    saved: Saved = None,
    ssh_config: SshConfig = None,
    as_json: AsJson = False,
) -> None:
    """Say before a pull whether a stack with a model fits a host: compatible, runnable or not.

    Exit code 0: compatible or runnable; 1: not.
    """
    declared = load_stack(stack, checkout()).stack
    sizes = (weights_gib, cache_gib, image_gib, model_disk_gib)
    if min(sizes) < 0 or (weights_gib == 0 and model is None):
        raise InputError(
            "sizes are in GiB, and weights are more than 0",
            fix="write for example --weights-gib 60, or --model FOLDER",
        )
    needs = read_model(model, kv_cache_dtype) if model else None
    request = _fit_request(needs, *(int(size * GIB) for size in sizes), gpus=gpus, held=(context, requests))
    text = _read(saved) if saved else _collect(host, ssh_config)
    answer = fit(read_document(text, where=str(saved or host or "this host")), declared, request)
    if as_json:
        console.print_json(answer)
    else:
        _show_fit(answer, needs, gpus)
    if answer.verdict is FitVerdict.NOT:
        raise typer.Exit(1)


def _fit_request(
    needs: ModelNeeds | None,
    weights: int,
    cache: int,
    image: int,
    disk: int,
    *,
    gpus: int,
    held: tuple[int, int],
) -> FitRequest:
    """The request from sizes in bytes, and from the model for those that are 0.

    Raises:
        InputError: The model's weights are not there, or a request would be longer than it can be.
    """
    left_out: tuple[str, ...] = ()
    if needs is not None:
        context, requests = held
        if context > needs.context:
            raise InputError(
                f"a request of {context} tokens is longer than the model's {needs.context}",
                fix="give less --context",
            )
        weights = weights or needs.weights_bytes
        if not weights:
            raise InputError(
                "the model's folder holds no weights and no index of them",
                fix="name their size: --weights-gib, or download it first",
            )
        cache = cache or needs.cache_bytes(context=context or needs.context, requests=requests, gpus=gpus)
        left_out = needs.limitations
    return FitRequest(
        weights_bytes=weights, cache_bytes=cache, gpus=gpus, image_bytes=image, model_disk_bytes=disk,
        reservations=left_out,
    )  # fmt: skip


def _collect(host: str, ssh_config: Path | None) -> str:
    console.say(f"looking at {host or 'this host'}; nothing is changed ...")
    return collect(host, ssh_config=ssh_config)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the document cannot be read: {error}", where=str(path)) from error


def _last_good(path: Path) -> HostRecord:
    """The host of an earlier report."""
    try:
        return ProbeReport.model_validate_json(_read(path)).host
    except ValueError as error:
        raise InputError(
            "this is no report of the doctor or the probe", where=str(path), fix="keep one with --record FILE"
        ) from error


def _finish(
    host: HostRecord,
    last_good: Path | None,
    record: Path | None,
    notes: list[str] | None = None,
    *,
    as_json: bool,
) -> None:
    report = judge(host, _last_good(last_good) if last_good else None, notes or ())
    if record:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(
            json.dumps(report.model_dump(mode="json", exclude_defaults=True), indent=1) + "\n", encoding="utf-8"
        )
    if as_json:
        console.print_json(report)
    else:
        _show(report)
    if code := exit_code(report):
        raise typer.Exit(code)


def _show(report: ProbeReport) -> None:
    host = report.host
    facts = Table(
        title=f"{host.os or 'host'}, kernel {host.kernel}, {host.virtualisation}", title_justify="left"
    )
    for heading in ("GPU", "capability", "memory GiB", "free", "power W", "limit", "PCIe", "NUMA"):
        facts.add_column(heading)
    for gpu in host.gpus:
        sizes = [f"{size / GIB:.1f}" if size else "?" for size in (gpu.memory_bytes, gpu.memory_free_bytes)]
        watts = [f"{power:.0f}" if power is not None else "?" for power in (gpu.power_w, gpu.power_limit_w)]
        link = (
            f"{gpu.pcie_generation or '?'}x{gpu.pcie_width or '?'} of "
            f"{gpu.pcie_generation_max or '?'}x{gpu.pcie_width_max or '?'}"
        )
        node = "-" if gpu.numa_node is None else str(gpu.numa_node)
        facts.add_row(
            f"{gpu.index} {escape(gpu.name)}", gpu.compute_capability or "?", *sizes, *watts, link, node
        )
    if host.gpus:
        console.out.print(facts)
    played = " (SIMULATION: evidence of nothing)" if host.simulated else ""
    checks = Table(title=f"probe: {report.result.verdict}{played}", title_justify="left")
    for heading in ("check", "verdict", "seen"):
        checks.add_column(heading)
    for check in report.result.checks:
        colour = _COLOURS.get(check.verdict, "yellow")
        seen = escape("\n".join([check.seen, *check.details]))
        checks.add_row(check.name, f"[{colour}]{check.verdict}[/]", seen)
    console.out.print(checks)
    for ladder, health in report.ladders.items():
        console.out.print(f"{ladder}: {health}", markup=False)
    for advice in report.recommendations:
        colour = _URGENCIES[advice.urgency]
        console.out.print(
            f"[{colour}]{advice.urgency}[/] {escape(advice.topic)}: {escape(advice.advice)} (since "
            f"{escape(advice.evidence)})"
        )
    for line in report.result.limitations:
        console.out.print(f"not known: {line}", markup=False)


def _show_fit(answer: Fit, needs: ModelNeeds | None, gpus: int) -> None:
    console.out.print(
        f"{answer.verdict}: {answer.needed_bytes / GIB:.1f} GiB needed on each GPU, "
        f"{answer.available_bytes / GIB:.1f} GiB can be taken, GPUs {list(answer.gpus)}",
        markup=False,
    )
    for reason in answer.reasons:
        console.out.print(f"  {reason}", markup=False)
    if needs is not None and answer.cache_room_bytes:
        one = needs.cache_bytes(context=needs.context, requests=1, gpus=gpus)
        tokens = answer.cache_room_bytes * needs.context // one if one else 0
        console.out.print(
            f"  beside the weights there is room for {answer.cache_room_bytes / GIB:.1f} GiB of KV cache on "
            f"all GPUs together, about {tokens} tokens in requests of full length ({needs.context})",
            markup=False,
        )
