"""Commands over patch series: their state, their record, and their application to a tree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tooling import console
from tooling.errors import CheckError, InputError
from tooling.patches.overlay import Plan, reader, run_all
from tooling.patches.record import record_series, write_record
from tooling.patches.series import RECORD_NAME, SERIES_DIR, Selection, load_series, plan_for
from tooling.patches.state import SeriesState, series_state
from tooling.patches.wheels import check_as_shipped, installed_version, unpacked_wheel
from tooling.paths import checkout
from tooling.release.records import Status
from tooling.stack import load_stack, stack_names

if TYPE_CHECKING:
    from tooling.patches.series import Series

_Subject = Annotated[
    str, typer.Argument(metavar="STACK-OR-SERIES", help="A stack, or a folder of images/patches.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
_SeriesDir = Annotated[Path, typer.Option("--series-dir", help="Folder of the series.", hidden=True)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("patches")(patches)
    app.command("patch-record")(patch_record)
    app.command("patch-apply")(patch_apply)


def selections_of(subject: str, series_dir: Path = SERIES_DIR) -> list[Selection]:
    """The series that a stack uses with its switches, or one series by its own name.

    Raises:
        InputError: Neither a stack nor a series, or a stack without patches.
    """
    root = checkout()
    if subject not in stack_names(root):
        load_series(subject, series_dir)
        return [Selection(series=subject)]
    file = load_stack(subject, root)
    if not file.stack.patches:
        raise InputError(
            f"stack {subject} uses no patch series", where=str(file.path), fix="list them under `patches`"
        )
    return [Selection.model_validate(one.model_dump()) for one in file.stack.patches]


def patches(
    subject: _Subject,
    *,
    root: Annotated[Path | None, typer.Option(help="An installed tree (site-packages) to look at.")] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(help="A version from the package index, `latest`, or `package==version`."),
    ] = None,
    as_json: _Json = False,
    series_dir: _SeriesDir = SERIES_DIR,
) -> None:
    """Show what each patch is against an installed tree or another version of its package."""
    if root is not None and against:
        raise InputError("--root and --against exclude each other", fix="ask for one tree at a time")
    selections = selections_of(subject, series_dir)
    states = []
    for selection in selections:
        series = load_series(selection.series, series_dir)
        tree = root or _tree_of(series, against or [], alone=len(selections) == 1)
        version = installed_version(tree, series.package)
        states.append(series_state(series, version, reader(tree), selection))
    if as_json:
        console.print_json([{**state.model_dump(mode="json"), "status": _status(state)} for state in states])
    else:
        for state in states:
            console.out.print(_table(state))
    if root is not None and not all(state.usable for state in states):
        raise CheckError(
            "patches that are on neither apply nor are applied",
            where=str(root),
            fix="see the states above: drop, refresh or rewrite those patches",
        )


def _tree_of(series: Series, against: list[str], *, alone: bool) -> Path:
    version = None if "latest" in against else series.version
    for wanted in against:
        package, _, given = wanted.rpartition("==")
        if package == series.package:
            version = given
        elif not package and wanted != "latest":
            if not alone:
                raise InputError(
                    f"the stack patches several packages, of which is {wanted} the version?",
                    fix="write --against PACKAGE==VERSION, or --against latest",
                )
            version = given
    console.say(f"{series.package} {version or 'newest'}: from the cache or the package index")
    return unpacked_wheel(series.package, version)


def _status(state: SeriesState) -> str:
    """What applies to the sources is known of them, and never more: nothing is run here."""
    return str(Status.SOURCE_QUALIFIED if state.usable else Status.UNTESTED)


def _table(state: SeriesState) -> Table:
    table = Table(title=f"{state.series} against {state.against}", title_justify="left")
    table.caption = f"{_status(state)}: read in the package's own files, nothing was run"
    table.caption_justify = "left"
    for column in ("patch", "switch", "state", "to do", "details"):
        table.add_column(column, overflow="fold")
    for row in state.patches:
        table.add_row(row.patch, str(row.switch), str(row.state), row.advice, "\n".join(row.details))
    return table


def patch_record(
    name: Annotated[str, typer.Argument(metavar="SERIES", help="A folder of images/patches.")],
    *,
    root: Annotated[
        Path | None, typer.Option(help="Tree that holds the package as shipped; default: the package index.")
    ] = None,
    as_json: _Json = False,
    series_dir: _SeriesDir = SERIES_DIR,
) -> None:
    """Apply a series to the package as it is shipped and write the hashes of the results beside the patches."""
    series = load_series(name, series_dir)
    tree = root or unpacked_wheel(series.package, series.version)
    if (version := installed_version(tree, series.package)) != series.version:
        raise InputError(
            f"the tree holds {series.package} {version}, the series is for {series.version}", where=str(tree)
        )
    check_as_shipped(tree, series.package, {diff.path for patch in series.patches for diff in patch.diffs})
    record = record_series(series, reader(tree))
    changed = write_record(record, series_dir / name / RECORD_NAME)
    console.say(f"{RECORD_NAME} of {name}: {'written' if changed else 'unchanged'}")
    if as_json:
        console.print_json(record)
    else:
        console.out.print(
            f"{name}: {len(series.patches)} patches, {len(record.files)} files, tree {record.tree}"
        )


def patch_apply(
    subject: _Subject,
    *,
    root: Annotated[Path, typer.Option(help="Installed tree (site-packages) to read from.")],
    out: Annotated[Path, typer.Option(help="Folder for the changed files; the tree itself stays as it is.")],
    enable: Annotated[list[str] | None, typer.Option(help="Use a patch that is off (one series only).")] = None,
    disable: Annotated[list[str] | None, typer.Option(help="Leave a patch out (one series only).")] = None,
    import_check: Annotated[bool, typer.Option(help="Import every changed module with this Python.")] = False,
    as_json: _Json = False,
    series_dir: _SeriesDir = SERIES_DIR,
) -> None:
    """Apply patch series to an installed tree and write the changed files, each verified, to another folder."""
    selections = selections_of(subject, series_dir)
    if enable or disable:
        if len(selections) != 1:
            raise InputError(
                "--enable and --disable need one series", fix="write the switches into the stack's file"
            )
        selections = [
            Selection(series=selections[0].series, enable=tuple(enable or ()), disable=tuple(disable or ()))
        ]
    if not root.is_dir():
        raise InputError("the tree to be patched does not exist", where=str(root))
    plans: list[Plan] = [plan_for(load_series(one.series, series_dir), one) for one in selections]
    receipts = run_all(plans, root, out, import_check=import_check)
    if as_json:
        console.print_json(receipts)
        return
    for receipt in receipts:
        console.out.print(
            f"{receipt['series']}: {len(receipt['applied'])} patches applied, {len(receipt['off'])} off, "
            f"{len(receipt['files'])} files, tree {receipt['tree']}"
        )
        for module in receipt["not_importable"]:
            console.out.print(f"  not importable here, patched or not: {module}")
