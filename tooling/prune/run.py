"""The host side of pruning: run it on a tree, or hand it to an image build."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING

from pydantic import ValidationError

from tooling.census.reader.scan import matches
from tooling.errors import CheckError, InputError
from tooling.prune.inplace import ANY_FILE_FIELDS, PATTERN_FIELDS, PruneError, load_report, prune, save_report
from tooling.prune.records import PruneReport, PruneRules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

#: Modules that need more than the standard library stay on the host.
_HOST_ONLY = frozenset({"records.py", "run.py"})
_PACKAGES = ("tooling.census.reader", "tooling.prune")


def prune_tree(
    root: Path,
    targets: Iterable[str],
    rules: PruneRules,
    report: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> PruneReport:
    """Prune the libraries below a folder in place.

    Args:
        root: The folder.
        targets: What the code must go on serving, e.g. `12.0`.
        rules: The stack's.
        report: Where the report is written; one of an earlier run there is carried on.
        progress: Is told each file that was changed.

    Raises:
        InputError: The folder, a target, or the earlier report cannot be used.
        CheckError: The rules contradict what is there, or nothing was pruned.
    """
    policy = rules.policy(targets)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder", fix="name a folder with libraries, e.g. site-packages")
    try:
        earlier = load_report(None if report is None else str(report))
        if earlier is not None:
            PruneReport.model_validate(earlier)
        document = prune([str(root)], policy, earlier, progress=progress)
        record = PruneReport.model_validate(document)
        if report is not None:
            save_report(str(report), document)
    except PruneError as error:
        raise CheckError(str(error), where=str(root)) from error
    except ValidationError as error:
        raise InputError(f"not an earlier report: {error}", where=str(report)) from error
    except OSError as error:
        raise CheckError(
            f"pruning stopped: {error}", where=str(root), fix="make room or rights, and run it again"
        ) from error
    return record


def check_whole(report: PruneReport, rules: PruneRules) -> None:
    """Hold the last report of an image's layers against the rules, as one run over all of it would have been.

    Raises:
        CheckError: Nothing was pruned, or the file of a rule is not there.
    """
    changed = [*report.with_status("pruned"), *report.with_status("deleted"), *report.dropped, *report.linked]
    changed += [file for file in report.stripped if file.status == "stripped"]
    if not changed:
        raise CheckError("nothing was pruned in the whole image", where=report.root)
    # A file that fits two patterns counts for the first: each has to have one of its own.
    used = {
        "drop": {file.rule for file in report.dropped},
        "strip": {file.rule for file in report.stripped},
        "link": {file.rule for file in report.linked},
    }
    for field in PATTERN_FIELDS:
        for pattern in getattr(rules, field):
            if field in ANY_FILE_FIELDS:
                what, found = "file", pattern in used[field]
            else:
                what = "file with device code"
                found = any(matches(file.path, (pattern,)) for file in report.files)
            if not found:
                raise CheckError(
                    f"{field} {pattern!r} matches no {what}",
                    where=report.root,
                    fix="correct the prune rules of the stack",
                )


def package_files() -> dict[str, bytes]:
    """The part of this package that runs inside an image build, by path beside `images/prune/prune.py`."""
    found = {f"{package}/__init__.py": b"" for package in ("tooling", "tooling/census")}
    for package in _PACKAGES:
        for source in files(package).iterdir():
            if source.name.endswith((".py", ".json")) and source.name not in _HOST_ONLY:
                found[f"{package.replace('.', '/')}/{source.name}"] = source.read_bytes()
    return dict(sorted(found.items()))


def build_input(targets: Iterable[str], rules: PruneRules) -> bytes:
    """What `images/prune/prune.py` reads: targets and patterns as JSON.

    Raises:
        InputError: A target is not an architecture, or there is none.
    """
    policy = rules.policy(targets)
    document = {**policy._asdict(), "targets": [str(target) for target in policy.targets]}
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"
