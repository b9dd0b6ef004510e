"""What leaves a tree besides device code: files that the stack lists, and symbols that no loader reads."""

from __future__ import annotations

import hashlib
import os
from typing import IO, TYPE_CHECKING, Any

from tooling.census.reader import elf
from tooling.census.reader.scan import is_text_name, matches, printable
from tooling.census.reader.span import MalformedError
from tooling.prune.layout import ET_DYN, HEADER, PAGE_SIZES, pack_tables
from tooling.prune.refusal import NotUnderstoodError
from tooling.prune.rewrite import copy, mapped, replace_file, sha256
from tooling.prune.symbols import Strip, plan_strip, verify_strip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tooling.census.reader.span import Span


def rule_of(name: str, patterns: Iterable[str]) -> str | None:
    """The first pattern that a path fits."""
    return next((pattern for pattern in patterns if matches(name, (pattern,))), None)


def drop_files(
    root: str, files: Mapping[str, str], patterns: Iterable[str], progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Delete the files that the patterns list, and folders that this leaves empty.

    Args:
        root: Folder that stays even when it is empty.
        files: Path by name, relative to the root.
        patterns: What goes.
        progress: Is told each pattern with what it took.

    Returns:
        One record a file, see `tooling.prune.records.DroppedFile`.
    """
    dropped: list[dict[str, Any]] = []
    wanted = tuple(patterns)
    for name, path in sorted(files.items()) if wanted else ():
        rule = rule_of(name, wanted)
        if rule is None:
            continue
        with open(path, "rb") as file:  # noqa: PTH123  # pathlib takes long to import
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
        os.unlink(path)  # noqa: PTH108
        _remove_empty(root, os.path.dirname(path))  # noqa: PTH120
        dropped.append({"path": printable(name), "rule": rule, "bytes": size, "sha256": digest})
    for pattern in wanted:
        taken = [int(file["bytes"]) for file in dropped if file["rule"] == pattern]
        if taken:
            progress(f"dropped {pattern}: {len(taken)} files, {sum(taken)} bytes")
    return dropped


def _remove_empty(root: str, folder: str) -> None:
    """Remove a folder that has nothing in it any more, and those above it of which the same is true."""
    while folder != root and folder.startswith(f"{root.rstrip('/')}/"):
        with os.scandir(folder) as found:
            if next(found, None) is not None:
                return
        os.rmdir(folder)  # noqa: PTH106
        folder = os.path.dirname(folder)  # noqa: PTH120


def strip_files(
    files: Mapping[str, str],
    patterns: Iterable[str],
    done: Mapping[str, str],
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Take symbol tables and debugging information out of the libraries that the patterns list.

    Args:
        files: Path by name, relative to the root.
        patterns: Which libraries.
        done: What earlier steps did to files, by name: those are not touched again.
        progress: Is told each file that was changed.

    Returns:
        One record for each file that was changed, or was to be and is not understood; see
        `tooling.prune.records.StrippedFile`.
    """
    records = []
    wanted = tuple(patterns)
    for name, path in sorted(files.items()) if wanted else ():
        if is_text_name(path) or not matches(name, wanted) or not _is_library(path):
            continue
        record: dict[str, Any] = {
            "path": printable(name),
            "status": "kept",
            "reason": "",
            "rule": rule_of(name, wanted),
            "bytes_before": os.stat(path).st_size,  # noqa: PTH116
            "bytes_after": os.stat(path).st_size,  # noqa: PTH116
            "sha256_before": "",
            "sha256_after": "",
        }
        try:
            changed = _strip(path, done.get(name, ""))
        except (MalformedError, NotUnderstoodError) as problem:
            records.append({**record, "reason": str(problem)})
            continue
        if changed is not None:
            plan, before, after = changed
            hashes = {"sha256_before": before, "sha256_after": after, "bytes_after": plan.new.size}
            records.append({**record, **hashes, "status": "stripped"})
            progress(f"stripped {record['path']}: {plan.gain} bytes less")
    return records


def link_files(files: Mapping[str, str], patterns: Iterable[str]) -> list[dict[str, Any]]:
    """Make equal files of one folder names of one file: a wheel can hold no links, so that it has copies.

    Only within a folder: its files come from one package and so lie in one layer of an image. A link to a file
    of an earlier layer would copy that file.

    Returns:
        One record for each name that has no content of its own any more, see
        `tooling.prune.records.LinkedFile`.
    """
    wanted = tuple(patterns)
    groups: dict[tuple[str, int, int], list[tuple[str, str]]] = {}
    for name, path in sorted(files.items()) if wanted else ():
        if matches(name, wanted):
            status = os.stat(path, follow_symlinks=False)  # noqa: PTH116
            if status.st_size:
                key = (os.path.dirname(path), status.st_size, status.st_mode)  # noqa: PTH120
                groups.setdefault(key, []).append((name, path))
    records = []
    for members in groups.values():
        first: dict[str, tuple[str, str]] = {}
        for name, path in members if len(members) > 1 else ():
            with mapped(path) as span:
                digest, size = sha256(span), span.end
            to, kept = first.setdefault(digest, (name, path))
            if os.path.samefile(kept, path):  # noqa: PTH121
                continue
            draft = f"{path}.linking"
            os.link(kept, draft)
            os.replace(draft, path)  # noqa: PTH105
            rule = rule_of(name, wanted)
            records.append({"path": printable(name), "rule": rule, "to": printable(to), "bytes": size})
    return records


def _is_library(path: str) -> bool:
    """Whether the header says that a file is a shared library of a machine that we know."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        head = os.pread(descriptor, HEADER.size, 0)
    finally:
        os.close(descriptor)
    if not head.startswith(elf.MAGIC) or len(head) < HEADER.size:
        return False
    _, kind, machine, *_ = HEADER.unpack(head)
    return kind == ET_DYN and machine in PAGE_SIZES


def _strip(path: str, earlier: str) -> tuple[Strip, str, str] | None:
    """Strip one file in place; the plan and both hashes, or None when there is too little to take out."""
    with mapped(path) as old:
        plan = plan_strip(old)
        if plan is None:
            return None
        if earlier:
            raise NotUnderstoodError(f"it was {earlier} before, and symbols go first")
        before, after = replace_file(
            path, old, lambda file: write_stripped(file, old, plan), lambda new: verify_strip(old, new, plan)
        )
        return plan, before, after


def write_stripped(file: IO[bytes], old: Span, plan: Strip) -> None:
    """Write the new file: the old bytes without the holes, zeros for the rest of what goes, new tables."""
    data = memoryview(old.data)
    try:
        file.truncate(plan.new.size)
        at = old.start
        for gap in sorted((*plan.holes, *plan.zeros)):
            copy(file, data, at, gap.start, plan.moved(at))
            at = gap.end
        copy(file, data, at, old.end, plan.moved(at))
        for offset, table in pack_tables(plan.new):
            file.seek(offset)
            file.write(table)
    finally:
        data.release()
