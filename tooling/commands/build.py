"""`build`, `lock`, `check-lock` and `schema`: from a declared stack to an image."""

from __future__ import annotations

import json
import time
from pathlib import Path  # noqa: TC003  # typer reads it at run time
from typing import Annotated

import typer
from rich.table import Table

from tooling import console
from tooling.base.bootstrap import bootstrap_base, describe_base, write_base_lock
from tooling.build import BuildRecord
from tooling.build import build as build_image
from tooling.build.bench import run_bench
from tooling.build.optional import CompiledModule, compile_optional
from tooling.build.pull_size import measure_pulls
from tooling.dockerhost import ensure_engine
from tooling.dockerhost.disk import GB
from tooling.errors import InputError
from tooling.lock.coherence import KNOWN_FAULTS, check_coherence, load_known_faults, refuse_if_incoherent
from tooling.lock.requirements import parse_requirements
from tooling.lock.resolve import resolve, write_lock
from tooling.paths import checkout
from tooling.stack import load_stack
from tooling.stack.schema import SCHEMA_PATH, stack_schema

StackName = Annotated[str, typer.Argument(help="Name of the stack: a file of stacks/ without its suffix.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(build)
    app.command()(lock)
    app.command("check-lock")(check_lock)
    app.command()(schema)
    app.command("bench-build")(bench_build)
    app.command("bench-pull")(bench_pull)
    app.command("compile-kernels")(compile_kernels)


def build(
    stack: StackName,
    output: Annotated[
        Path | None, typer.Option(help="Folder for record and log; by default build/ of the checkout.")
    ] = None,
    no_cache: Annotated[bool, typer.Option(help="Run every step again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Build the image of a stack from its pinned inputs and check what is in it."""
    record = build_image(stack, checkout(), output, no_cache=no_cache)
    if as_json:
        console.print_json(record)
    else:
        console.out.print(_table(record))


def _table(record: BuildRecord) -> Table:
    table = Table(title=f"{record.reference}  {record.size_bytes / GB:.2f} GB", title_justify="left")
    for heading, justify in (("layer", "left"), ("MB", "right"), ("diff id", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for layer in record.layers:
        table.add_row(
            _step(layer.created_by), f"{layer.bytes / 1e6:.1f}", layer.diff_id.removeprefix("sha256:")[:12]
        )
    return table


def _step(created_by: str) -> str:
    """The name of a layer, or the end of the instruction that made it."""
    return created_by.rsplit("install-layer ", maxsplit=1)[-1].split(" #", maxsplit=1)[0][-60:]


def compile_kernels(
    stack: StackName,
    modules: Annotated[
        list[str] | None, typer.Argument(help="Optional kernel modules; all when none is named.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for logs; by default build/ of the checkout.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile optional kernel modules of a stack, look at every kernel, and keep them for later builds."""
    done = compile_optional(stack, modules or [], checkout(), output)
    if as_json:
        console.print_json({"modules": [module.model_dump(mode="json") for module in done]})
    else:
        console.out.print(_modules_table(done))


def _modules_table(modules: tuple[CompiledModule, ...]) -> Table:
    table = Table("module", "kernels", "registers", "shared bytes", "spill bytes", "seconds", "cache key")
    for module in modules:
        registers = [kernel.registers for kernel in module.kernels]
        spills = sum(kernel.spill_stores + kernel.spill_loads for kernel in module.kernels)
        table.add_row(
            module.receipt.module,
            str(len(module.kernels)),
            f"{min(registers)} to {max(registers)}",
            f"at most {max(kernel.shared for kernel in module.kernels)}",
            str(spills),
            "from the cache" if module.from_cache else f"{module.seconds:.0f}",
            module.input_sha256[:12],
        )
    return table


def lock(stack: StackName, as_json: AsJson = False) -> None:
    """Resolve a stack again: its wheels with their hashes, and the packages of its base."""
    root = checkout()
    file = load_stack(stack, root)
    resolved = resolve(file.stack, root / KNOWN_FAULTS)
    if file.stack.base.bootstrap is not None:
        client = ensure_engine(console.say)
        epoch = _source_date_epoch()
        reference = bootstrap_base(file.stack, epoch, client, console.say)
        write_base_lock(file, describe_base(client, reference, epoch))
    write_lock(file, resolved)
    console.say(f"locked {len(resolved.wheels)} wheels, {resolved.download_bytes / GB:.2f} GB to download")
    if as_json:
        console.print_json(resolved)


def _source_date_epoch() -> int:
    """Time that the files of an image carry: midnight UTC of the day on which it was locked."""
    return int(time.time()) // 86400 * 86400


def check_lock(
    file: Annotated[Path, typer.Argument(help="A requirements file with pins, with or without hashes.")],
    stack: Annotated[str | None, typer.Option(help="Hold it against this stack's CUDA and platform.")] = None,
    as_json: AsJson = False,
) -> None:
    """Do the pins of a requirements file belong together? CUDA, torch, FlashInfer, tags, known faults."""
    root = checkout()
    if not file.is_file():
        raise InputError("no such file", where=str(file), fix="give a requirements file")
    pins = parse_requirements(file.read_text(encoding="utf-8"), file)
    declared = load_stack(stack, root).stack if stack else None
    findings = check_coherence(
        pins,
        cuda=declared.cuda if declared else None,
        platform=declared.platform if declared else None,
        known_faults=load_known_faults(root / KNOWN_FAULTS),
    )
    if as_json and findings:
        console.print_json({"pins": len(pins), "findings": [finding.model_dump() for finding in findings]})
        raise typer.Exit(1)
    refuse_if_incoherent(findings, str(file))
    if as_json:
        console.print_json({"pins": len(pins), "findings": []})
    else:
        console.out.print(f"{len(pins)} pins belong together")


def bench_build(
    stack: StackName = "cu130",
    as_json: AsJson = False,
) -> None:
    """Time a cold build against a plain install of the same lock, and a rebuild after one change."""
    result = run_bench(stack, checkout())
    if as_json:
        console.print_json(result)
        return
    table = Table("what", "seconds", "ratio to plain", title=f"build of {stack}, one run on this machine")
    for name, seconds in (
        ("plain uv pip install, one step", result.plain_s),
        ("cold build, checks included", result.cold_s),
        ("rebuild after one argument", result.rebuild_s),
        ("rebuild after one patch", result.patch_s),
    ):
        if seconds is None:
            continue
        table.add_row(name, f"{seconds:.1f}", f"{seconds / result.plain_s:.2f}")
    console.out.print(table)
    console.out.print(f"image {result.image_bytes / GB:.2f} GB, plain {result.plain_bytes / GB:.2f} GB")


def bench_pull(
    images: Annotated[list[str], typer.Argument(help="Images of the engine; ratios are to the first one.")],
    layers: Annotated[bool, typer.Option("--layers", help="Show every layer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure what a host downloads of images: each is pushed to a registry of this run, which then goes."""
    sizes = measure_pulls(ensure_engine(console.say), images, console.say)
    if as_json:
        console.print_json(
            {
                "images": [
                    {**size.model_dump(mode="json"), "unpacked": size.unpacked, "compressed": size.compressed}
                    for size in sizes
                ]
            }
        )
        return
    first = sizes[0]
    table = Table("image", "disk MB", "ratio", "download MB", "ratio")
    for size in sizes:
        table.add_row(
            size.image,
            f"{size.unpacked / 1e6:.1f}",
            f"{size.unpacked / first.unpacked:.3f}",
            f"{size.compressed / 1e6:.1f}",
            f"{size.compressed / first.compressed:.3f}",
        )
        for layer in size.layers if layers else ():
            sizes_of_layer = f"{layer.unpacked / 1e6:.1f}", "", f"{layer.compressed / 1e6:.1f}"
            table.add_row(f"  {_step(layer.created_by)}", *sizes_of_layer)
    console.out.print(table)


def schema(
    check: Annotated[bool, typer.Option(help="Only say whether the committed schema is current.")] = False,
) -> None:
    """Write the JSON schema of a stack, which editors and other tools can use."""
    path = checkout() / SCHEMA_PATH
    text = json.dumps(stack_schema(), indent=2) + "\n"
    if check and path.read_text(encoding="utf-8") != text:
        raise InputError("the committed schema is stale", where=str(path), fix="run blackwell-stacks schema")
    path.write_text(text, encoding="utf-8")
    console.say(f"{path} is current")
