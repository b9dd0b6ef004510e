"""Prune the libraries of a tree in place: `python -m tooling.prune.inplace --keep sm_120 --report R.json DIR`.

Runs inside an image build with that image's Python and nothing else. For the same input the report is the same
to the byte, since it becomes part of a layer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from tooling.census.reader.compatibility import parse
from tooling.census.reader.files import DeviceCode, read_file
from tooling.census.reader.scan import files_below, is_text_name, matches, printable
from tooling.census.reader.span import MalformedError
from tooling.prune.containers import Policy, serves
from tooling.prune.plan import foreign
from tooling.prune.refusal import NotUnderstoodError
from tooling.prune.rewrite import Rewritten, rewrite
from tooling.prune.trim import drop_files, link_files, strip_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tooling.census.reader.fatbin import Entry

#: Version of the report.
FORMAT = 1
#: Fields of a policy that are patterns, by the names of the command's options.
PATTERN_FIELDS = ("drop_ptx", "embedded", "delete", "skip", "drop", "strip", "link")
#: Those of them that are about files of any kind, not only about those with device code.
ANY_FILE_FIELDS = ("drop", "strip", "link")


class PruneError(Exception):
    """The tree cannot be pruned as asked; the message says why."""


class Found(NamedTuple):
    """A file with device code."""

    path: str
    name: str
    code: DeviceCode


def prune(
    paths: Sequence[str],
    policy: Policy,
    previous: dict[str, Any] | None = None,
    *,
    partial: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Prune every library in some files and folders.

    Args:
        paths: Files and folders.
        policy: What is kept.
        previous: The report of an earlier run over the same place; what it did is carried over.
        partial: The tree is one of several, so that nothing to prune, or a pattern without match, is no error.
        progress: Is told each file that was changed.

    Returns:
        The report, see `tooling.prune.records.PruneReport`.

    Raises:
        PruneError: The policy contradicts what is there, or nothing was pruned.
        OSError: A file cannot be written; files before it are pruned already.
    """
    root, before = _root(paths), previous or {}
    names = {os.path.relpath(path, root): path for path, error in _walk(paths) if error is None}
    found, unread = _look(root, paths)
    _check_policy(found, names, policy, partial=partial)
    dropped = drop_files(root, names, policy.drop, progress)
    names = {name: path for name, path in names.items() if os.path.lexists(path)}
    pruned = {file["path"]: "pruned" for file in before.get("files", ()) if file["status"] == "pruned"}
    stripped = strip_files(names, policy.strip, pruned, progress)
    if dropped or stripped:
        found, unread = _look(root, paths)
    earlier = {file["path"]: file for file in before.get("files", ())}
    files = []
    for item in found:
        record = _chained(_one(item, policy), earlier.pop(printable(item.name), None))
        files.append(record)
        if record["status"] in ("pruned", "deleted") and not record["earlier"]:
            less = record["bytes_before"] - record["bytes_after"]
            progress(f"{record['status']} {record['path']}: {less} bytes less")
    files += [{**file, "earlier": True} for file in earlier.values() if file["status"] == "deleted"]
    files.sort(key=lambda file: str(file["path"]))
    linked = link_files({name: path for name, path in names.items() if os.path.lexists(path)}, policy.link)
    keep = [str(target) for target in policy.targets]
    report: dict[str, Any] = {
        "format": FORMAT,
        "root": printable(root),
        "keep": keep,
        "files": files,
        "unread": unread,
        "dropped": _carried(before.get("dropped", ()), dropped),
        "stripped": _carried(before.get("stripped", ()), stripped),
        "linked": _carried(before.get("linked", ()), linked),
    }
    report["totals"] = totals(files, *(report[name] for name in ("dropped", "stripped", "linked")))
    changed = len(dropped) + len(linked) + sum(item["status"] == "stripped" for item in stripped)
    changed += sum(file["status"] in ("pruned", "deleted") and not file["earlier"] for file in files)
    if not changed and not partial:
        raise PruneError(_nothing(files, unread, keep))
    return report


def _carried(before: Iterable[dict[str, Any]], now: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of earlier runs and of this one, by path."""
    merged = {item["path"]: item for item in (*before, *now)}
    return [merged[path] for path in sorted(merged)]


def totals(
    files: Iterable[dict[str, Any]],
    dropped: Sequence[dict[str, Any]] = (),
    stripped: Sequence[dict[str, Any]] = (),
    linked: Sequence[dict[str, Any]] = (),
) -> dict[str, int]:
    """Sums over the files of a report: how many of each status, and bytes; symbols and other files apart."""
    count: Counter[str] = Counter(dict.fromkeys(("pruned", "unchanged", "skipped", "deleted"), 0))
    for file in files:
        count[file["status"]] += 1
        for field, value in file.items():
            if field.startswith("bytes_"):
                count[field] += value
    count["dropped"] = len(dropped)
    count["bytes_dropped"] = sum(item["bytes"] for item in dropped)
    count["stripped"] = sum(item["status"] == "stripped" for item in stripped)
    count["bytes_stripped"] = sum(item["bytes_before"] - item["bytes_after"] for item in stripped)
    count["linked"] = len(linked)
    count["bytes_linked"] = sum(item["bytes"] for item in linked)
    return dict(count)


def _nothing(files: list[dict[str, Any]], unread: list[dict[str, str]], keep: list[str]) -> str:
    """Why a run changed nothing."""
    if not files:
        return f"no file with device code was found ({len(unread)} could not be read): nothing was pruned"
    earlier = sum(file["earlier"] for file in files)
    start = f"nothing was pruned ({earlier} of {len(files)} files were, by an earlier run)"
    if skipped := [file for file in files if file["status"] == "skipped"]:
        reasons = "; ".join(f"{file['path']}: {file['reason']}" for file in skipped[:5])
        return f"{start}: {len(skipped)} were skipped: {reasons}"
    return f"{start}: the others have no code, or none any more, that none of {', '.join(keep)} can run"


def _root(paths: Sequence[str]) -> str:
    if not paths:
        raise PruneError("no file and no folder was named")
    for path in paths:
        if not os.path.exists(path):  # noqa: PTH110  # pathlib takes long to import
            raise PruneError(f"{path} does not exist")
    common = os.path.commonpath([os.path.abspath(path) for path in paths])  # noqa: PTH100
    return common if os.path.isdir(common) else os.path.dirname(common)  # noqa: PTH112, PTH120


def _look(root: str, paths: Sequence[str]) -> tuple[list[Found], list[dict[str, str]]]:
    """The files with device code, and those that could not be read."""
    found: dict[str, Found] = {}
    unread = []
    for path, error in _walk(paths):
        name = os.path.relpath(path, root)
        reason = f"folder cannot be listed: {error.strerror}" if error else ""
        code = None
        if not error and not is_text_name(path):
            try:
                code = read_file(path)
            except (MalformedError, OSError, ValueError) as problem:
                reason = str(problem)
        if reason:
            unread.append({"path": printable(name), "reason": reason})
        elif code is not None and code.containers:
            found[name] = Found(path, name, code)
    return [found[name] for name in sorted(found)], sorted(unread, key=lambda item: item["path"])


def _walk(paths: Sequence[str]) -> Iterator[tuple[str, OSError | None]]:
    for path in map(os.path.abspath, paths):
        if os.path.isdir(path):  # noqa: PTH112
            for below, error in files_below(path):
                yield f"{path}/{below}", error
        else:
            yield path, None


def _check_policy(found: Sequence[Found], names: Iterable[str], policy: Policy, *, partial: bool) -> None:
    """Everything that can be wrong with the policy is found before the first file changes."""
    if not policy.targets:
        raise PruneError("no target to keep was named")
    for field in PATTERN_FIELDS:
        for pattern in getattr(policy, field):
            any_file = field in ANY_FILE_FIELDS
            if not partial and not any(
                matches(name, (pattern,)) for name in (names if any_file else (item.name for item in found))
            ):
                what = "file" if any_file else "file with device code"
                raise PruneError(f"{field} {pattern!r} matches no {what}: renamed, or gone")
    for item in found:
        if matches(item.name, (*policy.delete, *policy.drop)) and _needed(item, policy):
            raise PruneError(f"{item.name} is to be deleted, but has code that a target can run")


def _needed(item: Found, policy: Policy) -> bool:
    return any(_runs(entry, policy) for container in item.code.containers for entry in container.entries)


def _runs(entry: Entry, policy: Policy) -> bool:
    return bool(entry.payload_size) and serves(entry, policy.targets)


def _one(item: Found, policy: Policy) -> dict[str, Any]:
    """Do to one file what is to be done, and say what that was."""
    if matches(item.name, policy.delete):
        with open(item.path, "rb") as file:  # noqa: PTH123
            digest = _digest(file)
        os.unlink(item.path)  # noqa: PTH108
        return _record(item, "deleted", policy, after=0, sha256_before=digest)
    if matches(item.name, policy.skip):
        return _record(item, "skipped", policy, reason="the policy says so")
    try:
        done = rewrite(item.path, item.name, item.code, policy)
    except (MalformedError, NotUnderstoodError) as problem:
        return _record(item, "skipped", policy, reason=str(problem))
    if done is None:
        return _record(item, "unchanged", policy)
    return _pruned(item, policy, done)


def _digest(file: Any) -> str:
    import hashlib  # noqa: PLC0415

    return hashlib.file_digest(file, "sha256").hexdigest()


def _record(
    item: Found, status: str, policy: Policy, *, after: int | None = None, **fields: Any
) -> dict[str, Any]:
    entries = [entry for container in item.code.containers for entry in container.entries]
    left = [] if status == "deleted" else foreign(item.code.containers, policy)
    record: dict[str, Any] = {
        "path": printable(item.name),
        "status": status,
        "how": "",
        "reason": "",
        "earlier": False,
        "bytes_before": item.code.size,
        "bytes_after": item.code.size if after is None else after,
        "bytes_removed": 0,
        "bytes_zeroed": 0,
        "bytes_kept": sum(entry.payload_size for entry in entries if _runs(entry, policy)),
        "bytes_foreign_left": sum(entry.payload_size for entry in left),
        "entries_removed": 0,
        "containers_emptied": 0,
        "holes": 0,
        "targets_removed": [],
        "sha256_before": "",
        "sha256_after": "",
    }
    return record | fields


def _pruned(item: Found, policy: Policy, done: Rewritten) -> dict[str, Any]:
    plan = done.plan
    removed = [entry for slimmed in plan.slimmed for entry in slimmed.removed]
    cut = sum(hole.end - hole.start for hole in plan.holes)
    payload = sum(entry.payload_size for entry in (*removed, *plan.zeroed))
    tails = sum(slimmed.end - slimmed.new_end for slimmed in plan.slimmed)
    gone = {id(entry) for entry in (*removed, *plan.zeroed)}
    left = [entry for entry in foreign(item.code.containers, policy) if id(entry) not in gone]
    return _record(
        item,
        "pruned",
        policy,
        after=plan.new_size,
        how="shrunk" if plan.shrunk else "zeroed",
        reason=plan.not_shrunk,
        bytes_removed=payload,
        bytes_zeroed=tails - cut + sum(entry.payload_size for entry in plan.zeroed),
        bytes_kept=sum(
            entry.payload_size
            for container in item.code.containers
            for entry in container.entries
            if _runs(entry, policy) and id(entry) not in gone
        ),
        bytes_foreign_left=sum(entry.payload_size for entry in left),
        entries_removed=len(removed) + len(plan.zeroed),
        containers_emptied=sum(not slimmed.kept for slimmed in plan.slimmed),
        holes=len(plan.holes),
        targets_removed=sorted({f"{entry.kind} {entry.arch}" for entry in (*removed, *plan.zeroed)}),
        sha256_before=done.sha256_before,
        sha256_after=done.sha256_after,
    )


def _chained(record: dict[str, Any], earlier: dict[str, Any] | None) -> dict[str, Any]:
    """A file's record with what an earlier run did to it: the file of the wheel is the one before both."""
    if earlier is None or earlier["status"] != "pruned":
        return record
    if record["status"] == "unchanged" and record["bytes_before"] == earlier["bytes_after"]:
        return {**earlier, "earlier": True}
    if record["status"] == "pruned" and record["sha256_before"] == earlier["sha256_after"]:
        both = sorted({*earlier["targets_removed"], *record["targets_removed"]})
        sums = {name: earlier[name] + record[name] for name in ("bytes_removed", "entries_removed", "holes")}
        first = {name: earlier[name] for name in ("bytes_before", "sha256_before")}
        return {**record, **first, **sums, "targets_removed": both}
    return record


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="prune", description="Edits libraries IN PLACE.")
    parser.add_argument("paths", nargs="+", metavar="FILE|DIR")
    parser.add_argument("--keep", action="append", required=True, help="target, e.g. sm_120; repeatable")
    parser.add_argument("--report", help="JSON report; one of an earlier run there is carried on")
    parser.add_argument(
        "--partial", action="store_true", help="one of several trees: nothing to prune is no error"
    )
    for field in PATTERN_FIELDS:
        parser.add_argument(f"--{field.replace('_', '-')}", action="append", default=[], metavar="PATTERN")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is 1 when the tree could not be pruned."""
    arguments = _arguments(argv)
    try:
        policy = Policy(
            tuple(parse(text) for text in arguments.keep),
            **{field: tuple(getattr(arguments, field)) for field in PATTERN_FIELDS},
        )
        report = prune(
            arguments.paths,
            policy,
            load_report(arguments.report),
            partial=arguments.partial,
            progress=lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201
        )
        if arguments.report:
            save_report(arguments.report, report)
    except (PruneError, ValueError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)  # noqa: T201
        return 1
    print(json.dumps(report["totals"]))  # noqa: T201
    return 0


def load_report(path: str | None) -> dict[str, Any] | None:
    """An earlier report, if there is one at that place.

    Raises:
        PruneError: There is something else.
    """
    if not path or not os.path.exists(path):  # noqa: PTH110
        return None
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        try:
            report = json.load(file)
        except ValueError as error:
            raise PruneError(f"{path} is not an earlier report: {error}") from error
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        raise PruneError(f"{path} is not an earlier report of this format")
    return report


def save_report(path: str, report: dict[str, Any]) -> None:
    """Write the report, folders above it included."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)  # noqa: PTH100, PTH103, PTH120
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(report, file, indent=1, sort_keys=True)
        file.write("\n")


if __name__ == "__main__":
    sys.exit(main())
