"""`bench-kernels`: this project's kernels against their peers, on the GPUs of this machine."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tooling import console
from tooling.errors import CheckError, CommandError, InputError
from tooling.gates.records import Verdict
from tooling.kernels.evidence import bench_command, evidence_of
from tooling.paths import checkout
from tooling.runner import stream

if TYPE_CHECKING:
    from tooling.kernels.records import Comparison, KernelEvidence

_TAIL = 15


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench-kernels")(bench_kernels)


def bench_kernels(
    stack: Annotated[str, typer.Argument(help="Name of the stack in whose image they run.")] = "cu130",
    *,
    image: Annotated[str, typer.Option(help="Image to use; by default the stack's last build.")] = "",
    gpus: Annotated[int, typer.Option(help="1: virtual ranks on one GPU; more: one process a GPU.", min=1)] = 1,
    saved: Annotated[
        list[Path] | None,
        typer.Option("--from", help="Read a kernels.json instead of running; in order of time."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results of the run.")] = Path("bench-kernels"),
    record: Annotated[Path | None, typer.Option(help="Write the record here, too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON on stdout.")] = False,
) -> None:
    """Check the kernels on this machine's GPUs and time them against the best peers, in one run.

    Exit code 0: everything ran and was right; 1: a step failed. A missed goal is said, and is no failure.
    """
    paths = saved or [_run(image or f"blackwell-stacks/{stack}:built", out, gpus)]
    evidence = evidence_of({str(path): _read(path) for path in paths})
    if record is not None:
        text = json.dumps(evidence.model_dump(mode="json", exclude_defaults=True), indent=1) + "\n"
        record.write_text(text, encoding="utf-8")
    if as_json:
        console.print_json(evidence)
    else:
        _show(evidence)
    if failed := [name for name, step in evidence.steps.items() if step.verdict is Verdict.FAIL]:
        raise CheckError(f"steps failed: {', '.join(failed)}", details=list(evidence.limitations))


def _run(image: str, out: Path, gpus: int) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    place = out / "kernels.json"
    place.unlink(missing_ok=True)
    options = ("--gpus", str(gpus)) if gpus > 1 else ()
    argv = bench_command(image, str(checkout()), str(out.resolve()), options)
    console.say(f"the kernels in {image}: some minutes, the first of them for the peers' compilation")
    lines: deque[str] = deque(maxlen=_TAIL)

    def on_line(line: str) -> None:
        lines.append(line)
        console.say(line)

    code = stream(argv, on_line)
    if not place.is_file():
        raise CommandError(
            f"the run left no result, exit code {code}", where=image, details=list(lines),
            fix="run the doctor: does Docker give GPUs to containers here?",
        )  # fmt: skip
    return place


def _read(path: Path) -> dict[str, object]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"it cannot be read: {error}", where=str(path)) from error
    if not isinstance(document, dict):
        raise InputError("it is no record of a run", where=str(path))
    return document


def _show(evidence: KernelEvidence) -> None:
    machine = evidence.machine
    console.say(f"{len(machine.gpus)} x {machine.gpus[0]}, driver {machine.driver}, torch {machine.torch}")
    for title, rows in (
        ("all-reduce + residual + RMSNorm", evidence.all_reduce),
        ("top-k", evidence.topk),
        ("all-reduce + hyper-connections", evidence.mhc),
        ("indexer", evidence.indexer),
        ("sparse attention", evidence.attention),
    ):
        if rows:
            console.err.print(_table(title, rows))
    for limitation in evidence.limitations:
        console.say(f"not shown: {limitation}")


def _table(title: str, rows: tuple[Comparison, ...]) -> Table:
    table = Table("shape", "ours, us", "best peer, us", "ratio", "goal", title=title)
    for row in rows:
        (ours, mine), (peer, theirs) = (
            min(times.items(), key=lambda item: item[1].median) for times in (row.ours, row.peers)
        )
        shape = " ".join(f"{name} {value}" for name, value in row.shape.items())
        goal = "" if row.goal is None else f"{row.goal}{'' if row.met else ' missed'}"
        table.add_row(shape, f"{mine.median} {ours}", f"{theirs.median} {peer}", str(row.ratio), goal)
    return table
