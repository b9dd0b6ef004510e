"""Reads a unified diff into hunks and refuses everything that a tree of changed files cannot express.

Standard library and unidiff only: it travels into image builds with the applier.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchedFile, PatchSet

from tooling.patches.errors import Fault, PatchError

if TYPE_CHECKING:
    from unidiff.patch import Hunk as ParsedHunk

DEV_NULL = "/dev/null"
#: git ends the patches that it mails with this line and its version.
SIGNATURE = "-- \n"
_FRAME = re.compile(r"(diff --git|index |new file mode 100644|--- |\+\+\+ |@@ |\\ No newline)")


@dataclass(frozen=True)
class Hunk:
    """One place in a file.

    Attributes:
        number: Position in the file's diff, from 1.
        start: Line, from 1, where `before` stands; 0 for a file that has no lines.
        before: Context and removed lines, each with its line end.
        after: Context and added lines, each with its line end.
    """

    number: int
    start: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class FileDiff:
    """All hunks of one file.

    Attributes:
        path: POSIX path below site-packages.
        creates: The diff makes a file that was not there.
        hunks: In the order of the file, at least one.
    """

    path: str
    creates: bool
    hunks: tuple[Hunk, ...]


def lines_of(text: str) -> list[str]:
    r"""Split at `\n` alone and keep it; a form feed or a lone `\r` belongs to its line."""
    return io.StringIO(text, newline="\n").readlines()


def parse_diff(patch: str, text: str) -> tuple[FileDiff, ...]:
    """Read the diff of a patch; what stands before it (the header) is skipped.

    Args:
        patch: Name of the patch, for messages.
        text: The whole patch file.

    Raises:
        PatchError: No diff, damaged hunks, lines that belong to no hunk, the same file twice, a path out of
            the tree, or a deletion, renaming, mode change or binary change.
    """
    lines = lines_of(text)
    if SIGNATURE in lines:
        lines = lines[: lines.index(SIGNATURE)]
    try:
        parsed = PatchSet(iter(lines))
    except UnidiffParseError as error:
        raise _malformed(patch, f"the diff cannot be read: {str(error).strip()}") from error
    if not parsed:
        raise _malformed(patch, "the patch holds no diff")
    _refuse_stray_lines(patch, lines, parsed)
    diffs = tuple(_file_diff(patch, file) for file in parsed)
    paths = [diff.path for diff in diffs]
    for path in paths:
        if paths.count(path) > 1:
            raise _malformed(patch, "the patch holds two diffs of this file", path)
    return diffs


def _malformed(patch: str, what: str, file: str = "", hunk: int = 0) -> PatchError:
    return PatchError(
        what,
        fix="write the diff again with `diff -u` or `git diff`",
        fault=Fault.MALFORMED,
        patch=patch,
        file=file,
        hunk=hunk,
    )


def _refuse_stray_lines(patch: str, lines: list[str], parsed: PatchSet) -> None:
    """Refuse lines outside hunks: unidiff skips what follows a hunk whose header counts too few lines."""
    in_hunks = {line.diff_line_no for file in parsed for hunk in file for line in hunk}
    first = next(number for number, line in enumerate(lines, 1) if line.startswith(("--- ", "diff --git")))
    for number, line in enumerate(lines[first - 1 :], first):
        if number not in in_hunks and line.strip() and not _FRAME.match(line):
            raise _malformed(patch, f"line {number} of the patch belongs to no hunk: {line.rstrip()!r}")


def _file_diff(patch: str, file: PatchedFile) -> FileDiff:
    path = _safe_path(patch, file)
    if file.is_binary_file or not file:
        raise _malformed(patch, "only text changes with hunks can be applied", path)
    if file.target_file == DEV_NULL or file.is_rename:
        raise _malformed(
            patch, "a file cannot be deleted or renamed: changed files are laid over the others", path
        )
    creates = file.source_file == DEV_NULL
    hunks = tuple(_hunk(patch, path, number, hunk) for number, hunk in enumerate(file, 1))
    if creates and (len(hunks) != 1 or hunks[0].before):
        raise _malformed(patch, "the diff of a new file has one hunk, of added lines alone", path)
    return FileDiff(path, creates, hunks)


def _safe_path(patch: str, file: PatchedFile) -> str:
    path = file.path
    parts = PurePosixPath(path).parts
    if not parts or path.startswith(("/", '"')) or ".." in parts or "\\" in path:
        raise _malformed(patch, f"not a plain path below the tree: {path!r}")
    return str(PurePosixPath(path))


def _hunk(patch: str, path: str, number: int, parsed: ParsedHunk) -> Hunk:
    before: list[str] = []
    after: list[str] = []
    sides: tuple[list[str], ...] = ()
    for line in parsed:
        if line.line_type == "\\":
            for side in sides:
                side[-1] = side[-1].removesuffix("\n")
        elif line.line_type:  # an empty type is a blank line after the hunk, which is not of it
            sides = {" ": (before, after), "-": (before,), "+": (after,)}[line.line_type]
            for side in sides:
                side.append(line.value)
    if before == after:
        raise PatchError(
            "the hunk changes nothing",
            fix="remove the hunk, or write the edit that it was meant to be",
            fault=Fault.NO_OP,
            patch=patch,
            file=path,
            hunk=number,
        )
    if not before and parsed.source_start:
        raise _malformed(patch, "a hunk without context says nothing about the place it is for", path, number)
    return Hunk(number, parsed.source_start, tuple(before), tuple(after))
