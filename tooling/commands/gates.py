"""Command over arch gates: what in a stack's packages decides by architecture, and what it does to SM120."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tooling import console
from tooling.archgates.compare import GateDiff, diff
from tooling.archgates.records import JudgedHit, PackageScan, Polarity
from tooling.archgates.scan import rules, scan_tree
from tooling.errors import InputError
from tooling.patches.series import SERIES_DIR
from tooling.patches.wheels import unpacked_wheel

if TYPE_CHECKING:
    from collections.abc import Iterable

STACKS_DIR = SERIES_DIR.parents[1] / "stacks"
_LOCKED = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", re.MULTILINE)
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
        console.print_json([scan.model_dump(mode="json") for scan in scans])
        return
    for scan in scans:
        if not summary:
            console.out.print(_table(scan.gates, f"{scan.package} {scan.version}"))
        _show_summary(scan)


def scan_subject(subject: str, packages: list[str]) -> list[PackageScan]:
    """Scan a stack's locked packages, a folder, or one wheel.

    Raises:
        InputError: It is none of these.
    """
    if Path(subject).is_dir():
        return scan_tree(Path(subject), packages)
    known = {rule.name for rule in rules().packages}
    name, _, version = subject.partition("==")
    if version:
        locked = {name: version}
    else:
        lock = STACKS_DIR / f"{subject}.lock.txt"
        if not lock.is_file():
            raise InputError(
                f"{subject!r} is no stack with a lock, no folder, and no package==version",
                where=str(STACKS_DIR),
                fix="name a stack, the site-packages folder of one, or a wheel",
            )
        locked = dict(_LOCKED.findall(lock.read_text(encoding="utf-8")))
    wanted = {one: locked[one] for one in sorted(known & locked.keys()) if not packages or one in packages}
    if not wanted:
        raise InputError(f"{subject} has no package with scan rules", fix=f"known: {', '.join(sorted(known))}")
    scans = []
    for one, locked_version in wanted.items():
        console.say(f"{one} {locked_version}: from the cache or the package index")
        scans += scan_tree(unpacked_wheel(one, locked_version), [one])
    return scans


def _table(found: Iterable[JudgedHit], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("polarity", "id", "file:line", "form", "on SM120", "code", "note", "patch"):
        table.add_column(column, overflow="fold")
    for one in sorted(found, key=lambda gate: list(Polarity).index(gate.polarity)):
        hit = one.hit
        value = {True: "true", False: "false", None: ""}[hit.sm120]
        table.add_row(
            str(one.polarity),
            one.id,
            f"{hit.path}:{hit.line}",
            str(hit.pattern),
            value,
            hit.code.replace("[", r"\["),
            one.note.replace("[", r"\["),
            one.patch,
            style=_STYLES[one.polarity],
        )
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
    polarities = [gate.polarity for gate in scan.gates]
    console.out.print(", ".join(f"{kind}: {polarities.count(kind)}" for kind in Polarity))
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
