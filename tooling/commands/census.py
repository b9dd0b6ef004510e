"""`census`, `kernels`, `check-archs`, `check-build-log`, `bench-census`: device code without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from tooling import console
from tooling.census.arch_list import check_request, codes_of, parse_arch_list, parse_code_list
from tooling.census.architecture import parse_architecture
from tooling.census.bench import benchmark, find_cuobjdump, render
from tooling.census.build_log import check_build_log
from tooling.census.compare import compare
from tooling.census.kernels import Kernel, KernelLimits, check_kernels
from tooling.census.records import CensusRecord, Service
from tooling.census.rules import arch_names, basic_checks, judge, load_rules
from tooling.census.take import census, census_of_image, library_of
from tooling.errors import CheckError, InputError
from tooling.gates.records import Check, Verdict, worst
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red"}
_SERVICE_COLOURS = {Service.SASS: "green", Service.PTX: "yellow", Service.NONE: "red"}

Devices = Annotated[list[str], typer.Option("--device", help="Target, e.g. 12.0. May be repeated.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]


class Report(Record):
    """What a command of this module found: the verdict is the worst of its checks."""

    verdict: Verdict
    checks: tuple[Check, ...]
    census: CensusRecord | None = None
    kernels: tuple[Kernel, ...] = ()


def take(place: str) -> CensusRecord:
    """The census of a folder if there is one of that name, else of an image.

    Raises:
        InputError: It looks like a path, and there is no such folder.
    """
    path = Path(place)
    if path.is_dir():
        return census(path)
    if path.exists() or place.startswith(("/", "./", "../", "~")):
        raise InputError(f"{place} is not a folder", fix="name an existing folder, or an image")
    console.say(f"reading {place} inside a container of it, without network ...")
    return census_of_image(place)


def load_record(path: Path) -> CensusRecord:
    """An earlier census, as `--output` or `--json` wrote it.

    Raises:
        InputError: The file is not one.
    """
    try:
        text = path.read_text("utf-8")
        try:
            return CensusRecord.model_validate_json(text)
        except ValidationError:
            report = Report.model_validate_json(text)
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise InputError(f"not an earlier census: {error}", where=str(path)) from error
    if report.census is None:
        raise InputError("a report without a census", where=str(path))
    return report.census


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("census")(census_command)
    app.command("kernels")(kernels_command)
    app.command("check-archs")(check_archs_command)
    app.command("check-build-log")(check_build_log_command)
    app.command("bench-census")(bench_census_command)


def census_command(
    place: Annotated[str, typer.Argument(metavar="IMAGE|DIR")],
    *,
    device: Devices = ["12.0"],  # noqa: B006  # typer copies it
    rules: Annotated[Path | None, typer.Option(help="Rules of the stack, YAML.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="An earlier census that this one must not be worse than.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the census there, for a later --against.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the device code of an image or a folder by architecture, and judge it by the stack's rules."""
    wanted = load_rules(rules) if rules else None
    before = load_record(against) if against else None
    record = take(place)
    checks = [*(judge(record, wanted, device) if wanted else basic_checks(record))]
    if before is not None:
        checks.extend(compare(before, record, device))
    if output is not None:
        output.write_text(record.model_dump_json(indent=1) + "\n", "utf-8")
    if not as_json:
        console.out.print(_census_table(record, device))
        if wanted is None:
            console.say("no --rules: what a stack would miss is shown, and not judged")
    _finish(
        Report(verdict=worst(check.verdict for check in checks), checks=tuple(checks), census=record), as_json
    )


def kernels_command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Libraries, cubins, fat binaries, PTX.")
    ],
    *,
    device: Annotated[str, typer.Option(help="Target, e.g. 12.0.")] = "12.0",
    spill_limit: Annotated[int, typer.Option(help="Most bytes that a kernel may spill.")] = 0,
    may_be_empty: Annotated[
        list[str] | None, typer.Option(help="Part of the name of a kernel that does nothing.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that kernels compiled to something that can run: registers, shared memory, spills, instructions."""
    limits = KernelLimits(spill_bytes=spill_limit, may_be_empty=tuple(may_be_empty or ()))
    kernels: list[Kernel] = []
    checks: list[Check] = []
    for path in paths:
        found, judged = check_kernels(path, device, limits)
        kernels.extend(found)
        checks.extend(check.model_copy(update={"name": f"{path.name}: {check.name}"}) for check in judged)
    if not as_json:
        console.out.print(_kernel_table(kernels))
    report = Report(
        verdict=worst(check.verdict for check in checks), checks=tuple(checks), kernels=tuple(kernels)
    )
    _finish(report, as_json)


def check_archs_command(
    requested: Annotated[str, typer.Argument(help="As in TORCH_CUDA_ARCH_LIST, e.g. '12.0a;12.1+PTX'.")],
    found: Annotated[
        str, typer.Argument(help="A library, folder or image, or a listing that cuobjdump printed.")
    ],
    device: Annotated[str, typer.Option(help="GPU that the code must run on, e.g. 12.1.")] = "",
    as_json: AsJson = False,
) -> None:
    """Compare requested architectures with those that were compiled, and name each loss."""
    wanted = parse_arch_list(requested)
    path = Path(found)
    if not path.is_file():
        codes = codes_of(take(found).libraries)
    elif library := library_of(path):
        codes = codes_of([library])
    else:
        codes = parse_code_list(path.read_text("utf-8", errors="replace"))
    checks = check_request(wanted, codes, device)
    _finish(Report(verdict=worst(check.verdict for check in checks), checks=checks), as_json)


def check_build_log_command(
    log: Annotated[Path, typer.Argument(help="Output of the build.")],
    need: Annotated[
        list[str] | None, typer.Option(help="A feature that the stack needs. May be repeated.")
    ] = None,
    expect: Annotated[
        list[str] | None, typer.Option(help="A feature that may be left out. May be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find features that a build left out for the sake of an architecture although it ended well."""
    try:
        text = log.read_text("utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"the log cannot be read: {error.strerror}", where=str(log)) from error
    checks = check_build_log(text, need or (), expect or ())
    _finish(Report(verdict=worst(check.verdict for check in checks), checks=checks), as_json)


def bench_census_command(
    root: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with libraries.")],
    cuobjdump: Annotated[Path | None, typer.Option(help="Program to compare with.")] = None,
    passes: Annotated[int, typer.Option(min=1, help="How often cuobjdump goes over all files.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Time the census against cuobjdump file by file, and compare the answers."""
    if not root.is_dir():
        raise InputError(f"{root} is not a folder")
    result = benchmark(root, find_cuobjdump(cuobjdump), passes, console.say)
    if as_json:
        console.print_json(result)
    else:
        table = Table("what", "median", "over")
        for row in render(result):
            table.add_row(*row)
        console.out.print(table)
    if result.differences:
        raise CheckError(
            f"{len(result.differences)} files have another answer than cuobjdump's",
            details=[f"{item.path}: {item.census}; cuobjdump: {item.cuobjdump}" for item in result.differences],
        )


def _census_table(record: CensusRecord, devices: Sequence[str]) -> Table:
    targets = [parse_architecture(device) for device in devices]
    table = Table(
        title=f"{record.source}: {len(record.with_device_code())} of {len(record.libraries)} libraries"
    )
    table.add_column("library", overflow="fold")
    for target in targets:
        table.add_column(f"on {target.capability}")
    table.add_column("architectures", overflow="fold")
    for library in record.with_device_code():
        cells = []
        for target in targets:
            coverage = library.coverage(target)
            cells.append(Text(coverage.service, _SERVICE_COLOURS[coverage.service]))
        table.add_row(
            Text(library.path), *cells, Text(", ".join(arch_names(library)) or "none that can be loaded")
        )
    for file in record.unread:
        table.add_row(Text(file.path), *(Text("not read", "red") for _ in targets), Text(file.reason))
    return table


def _kernel_table(kernels: Sequence[Kernel]) -> Table:
    table = Table("kernel", "target", "registers", "stack", "shared", "spilled", "instructions")
    for kernel in kernels:
        sizes = (kernel.registers, kernel.stack, kernel.shared, kernel.spill_stores, kernel.instructions)
        table.add_row(Text(kernel.name), kernel.target, *map(str, sizes))
    return table


def _finish(report: Report, as_json: bool) -> None:
    """Print the report; a verdict other than PASS is a failure of the command."""
    if as_json:
        console.print_json(report)
    else:
        table = Table("verdict", "check", "seen")
        for check in report.checks:
            colour = _COLOURS.get(check.verdict, "yellow")
            table.add_row(Text(check.verdict, colour), Text(check.name), Text(check.seen))
            if check.verdict is not Verdict.PASS:
                for line in check.details:
                    table.add_row("", "", Text(f"  {line}", "dim"))
        console.out.print(table)
    if report.verdict is not Verdict.PASS:
        bad = [check for check in report.checks if check.verdict is not Verdict.PASS]
        if as_json:
            raise typer.Exit(CheckError.exit_code)
        raise CheckError(
            f"verdict {report.verdict}: {len(bad)} of {len(report.checks)} checks did not pass",
            details=[f"{check.name}: {check.seen}" for check in bad],
        )
