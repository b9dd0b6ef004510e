"""Command over arch gates: what in a stack's packages decides by architecture, and what it does to SM120."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from tooling import console
from tooling.archgates.compare import GateDiff, diff
from tooling.archgates.records import JudgedHit, PackageScan, Polarity
from tooling.archgates.scan import rules, scan_tree
from tooling.archgates.wheels import scan_wheel
from tooling.errors import InputError
from tooling.lock.indexes import unknown_indexes
from tooling.lock.resolve import read_lock
from tooling.paths import checkout
from tooling.release.records import Status
from tooling.stack import load_stack, stack_names

if TYPE_CHECKING:
    from collections.abc import Iterable

_STYLES = {
    Polarity.CLOSED: "yellow",
    Polarity.OPEN: "bold red",
    Polarity.MISHANDLED: "magenta",
    Polarity.HARDWARE: "dim",
    Polarity.RIGHT: "green",
    Polarity.UNJUDGED: "",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gates")(gates)


def gates(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="STACK|DIR|PACKAGE==VERSION", help="A stack, a site-packages folder, or a wheel."
        ),
    ],
    *,
    package: Annotated[
        list[str] | None, typer.Option(help="Only this package; may be given more than once.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Older PACKAGE==VERSION or folder: show what is new since then.")
    ] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Counts only.")] = False,
    unjudged: Annotated[bool, typer.Option("--unjudged", help="List only what nobody has judged.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """List the conditions that decide by GPU architecture, with what is known of their effect on SM120."""
    scans = scan_subject(subject, package or [])
    if against is not None:
        older = {scan.package: scan for scan in scan_subject(against, [scan.package for scan in scans])}
        diffs = [diff(older[scan.package], scan) for scan in scans if scan.package in older]
        if not diffs:
            raise InputError("the two sides share no package", fix="name two versions of one package")
        _show_diffs(diffs, as_json=as_json)
        return
    if as_json:
        console.print_json([_as_data(scan) for scan in scans])
        return
    for scan in scans:
        if not summary:
            chosen = [gate for gate in scan.gates if not unjudged or gate.polarity is Polarity.UNJUDGED]
            console.out.print(_table(chosen, f"{scan.package} {scan.version}"))
        _show_summary(scan)
    console.out.print(_polarity_table(scans))


def scan_subject(subject: str, packages: list[str]) -> list[PackageScan]:
    """Scan a stack's packages, a folder, or one wheel.

    Raises:
        InputError: It is none of these, or has none of the packages.
    """
    if Path(subject).is_dir():
        return scan_tree(Path(subject), packages)
    known = {rule.name for rule in rules().packages}
    if strange := sorted(set(packages) - known):
        raise InputError(
            "no scan rules for these packages", details=strange, fix=f"known: {', '.join(sorted(known))}"
        )
    name, _, version = subject.partition("==")
    versions = {name: version} if version else _versions_of_stack(subject)
    wanted = {one: versions[one] for one in sorted(known & versions.keys()) if not packages or one in packages}
    if not wanted:
        raise InputError(f"{subject} has no package with scan rules", fix=f"known: {', '.join(sorted(known))}")
    return [scan_wheel(one, wanted[one], console.say) for one in wanted]


def _versions_of_stack(name: str) -> dict[str, str]:
    """Package -> version: of the lock, or of a stack without one what it pins itself.

    Builds that only an index of the stack's own has are left out and named: they cannot be read here.
    """
    root = checkout()
    if name not in stack_names(root):
        raise InputError(
            f"{name!r} is no stack, no folder, and no package==version",
            where=str(root / "stacks"),
            fix=f"name a stack ({', '.join(stack_names(root))}), a site-packages folder, or a wheel",
        )
    file = load_stack(name, root)
    if file.lock_path.is_file():
        return {wheel.name: wheel.version for wheel in read_lock(file, root).wheels}
    pins = file.stack.pins
    console.say(f"{name} has no lock: read are the versions that the stack itself pins")
    elsewhere = sorted(one for one, version in pins.items() if "+" in version)
    for one in elsewhere:
        console.say(f"  not read: {one} {pins[one]}, a build that ordinary indexes do not have")
    for line in unknown_indexes(file.stack.lock.indexes):
        console.say(f"  to lock it, export {line}")
    return {one: version for one, version in pins.items() if one not in elsewhere}


def _as_data(scan: PackageScan) -> dict[str, Any]:
    counts = {str(polarity): count for polarity, count in scan.polarities().items()}
    # Read in the wheels: never more than this, whatever was found.
    return {
        "package": scan.package,
        "version": scan.version,
        "status": str(Status.SOURCE_QUALIFIED),
        "polarities": counts,
        **scan.model_dump(mode="json", exclude={"package", "version"}),
    }


def _polarity_table(scans: Iterable[PackageScan]) -> Table:
    table = Table(title="arch gates by what they do to SM120", title_justify="left")
    table.caption = f"{Status.SOURCE_QUALIFIED}: read in the packages, nothing was run"
    table.caption_justify = "left"
    table.add_column("package", overflow="fold")
    for kind in ("gates", *Polarity):
        table.add_column(str(kind), justify="right", overflow="fold")
    for scan in scans:
        counts = scan.polarities()
        row = [str(len(scan.gates)), *(str(counts[kind]) for kind in Polarity)]
        table.add_row(Text(f"{scan.package} {scan.version}"), *row)
    return table


def _table(found: Iterable[JudgedHit], title: str) -> Table:
    table = Table(title=title, title_justify="left", show_lines=True)
    for column in ("polarity", "gate", "what is known"):
        table.add_column(column, overflow="fold")
    for one in sorted(found, key=lambda gate: list(Polarity).index(gate.polarity)):
        hit = one.hit
        value = {True: "true on SM120", False: "false on SM120", None: ""}[hit.sm120]
        known = [
            " ".join(filter(None, (one.id, one.note))),
            ", ".join(filter(None, (hit.pattern, value))),
            one.patch,
        ]
        cells = (str(one.polarity), f"{hit.path}:{hit.line}\n{hit.code}", "\n".join(filter(None, known)))
        table.add_row(*(Text(cell) for cell in cells), style=_STYLES[one.polarity])
    return table


def _show_summary(scan: PackageScan) -> None:
    table = Table(title=f"{scan.package} {scan.version}: {scan.files} files", title_justify="left")
    for column in ("form", "lines", "files"):
        table.add_column(column)
    for pattern, (lines, files) in scan.counts().items():
        table.add_row(str(pattern), str(lines), str(files))
    for marker, (lines, files) in scan.markers.items():
        table.add_row(f"({marker})", str(lines), str(files))
    console.out.print(table)
    for tree in scan.skipped:
        console.out.print(f"  not scanned: {tree.path} ({tree.files} files): {tree.reason}", markup=False)
    for line in scan.unreadable:
        console.out.print(f"  unreadable: {line}", markup=False)


def _show_diffs(diffs: list[GateDiff], *, as_json: bool) -> None:
    if as_json:
        console.print_json([one.model_dump(mode="json") for one in diffs])
        return
    for one in diffs:
        for hits, word in ((one.added, "new"), (one.removed, "gone")):
            title = f"{one.package}: {len(hits)} {word} gates in {one.new} (since {one.old})"
            console.out.print(_table([JudgedHit(hit=hit) for hit in hits], title))
        console.out.print(f"{one.package}: {one.moved} gates only moved", markup=False)
