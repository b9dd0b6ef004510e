"""Applies hunks to text, exactly: no fuzz, no offset.

The place of a hunk is its stated line, counted either in the file as the package ships it or in the file as the
earlier patches left it. The first is how this project writes its series: each patch is a diff of the pristine
file, so that a patch can be switched off, or dropped when upstream has it, without touching the others. The
second is how `git format-patch` writes a series. In both the lines there must equal the hunk's own, every byte;
a hunk whose lines stand anywhere else is an error that says where they went.

Standard library only: it travels into image builds with the applier.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from tooling.patches.diff import FileDiff, Hunk, lines_of
from tooling.patches.errors import Fault, PatchError

#: Source files are UTF-8; a stray byte must come out as it went in.
ENCODING = {"encoding": "utf-8", "errors": "surrogateescape"}


@dataclass
class Content:
    """The lines of one file while patches change it.

    Attributes:
        lines: Each with its line end.
        origin: For every line its number, from 1, in the pristine file; 0 for a line that a patch added.
    """

    lines: list[str]
    origin: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, data: bytes) -> Content:
        """The content of a pristine file."""
        lines = lines_of(data.decode(**ENCODING))
        return cls(lines, list(range(1, len(lines) + 1)))

    @property
    def data(self) -> bytes:
        """The bytes of the file as it is now."""
        return "".join(self.lines).encode(**ENCODING)

    def stands_at(self, index: int, block: tuple[str, ...]) -> bool:
        """Whether these lines are the ones at an index; lines of an empty file are the whole file."""
        if not block:
            return not self.lines
        return index >= 0 and tuple(self.lines[index : index + len(block)]) == block

    def find(self, block: tuple[str, ...]) -> list[int]:
        """Every index at which a block stands; none for an empty block."""
        if not block:
            return []
        first = block[0]
        last = len(self.lines) - len(block)
        return [i for i in range(last + 1) if self.lines[i] == first and self.stands_at(i, block)]

    def replace(self, index: int, hunk: Hunk) -> None:
        """Put a hunk's new lines where its old ones stand; lines that it keeps keep their numbers."""
        head = _common(hunk.before, hunk.after)
        tail = _common(hunk.before[head:][::-1], hunk.after[head:][::-1])
        start, end = index + head, index + len(hunk.before) - tail
        new = hunk.after[head : len(hunk.after) - tail]
        self.lines[start:end] = new
        self.origin[start:end] = [0] * len(new)


def _common(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    """How many lines two blocks share at their beginning."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


class Fit(StrEnum):
    """How a hunk meets a file."""

    APPLIES = "applies"
    MOVED = "moved"
    AMBIGUOUS = "ambiguous"
    PRESENT = "present"
    CONFLICT = "conflict"


@dataclass(frozen=True)
class Place:
    """Where a hunk's lines are.

    Attributes:
        fit: How the hunk meets the file.
        index: Of the first line, from 0; -1 where there is none.
    """

    fit: Fit
    index: int = -1


def locate(content: Content, hunk: Hunk, drift: int = 0) -> Place:
    """Find where a hunk belongs.

    Args:
        content: The file.
        hunk: The hunk.
        drift: Lines by which the earlier hunks of the same diff lengthened the file.
    """
    stacked = max(hunk.start - 1, 0) + drift
    pristine = content.origin.index(hunk.start) if hunk.start in content.origin else -1
    for index in dict.fromkeys((pristine, stacked)):
        fit = _fit_at(content, index, hunk)
        if fit is not Fit.CONFLICT:
            return Place(fit, index)
    old, new = content.find(hunk.before), content.find(hunk.after)
    if old and not (new and _fit_at(content, new[0], hunk) is Fit.PRESENT):
        return Place(Fit.MOVED if len(old) == 1 else Fit.AMBIGUOUS, old[0])
    if new:
        return Place(Fit.PRESENT, new[0])
    return Place(Fit.CONFLICT, stacked)


def _fit_at(content: Content, index: int, hunk: Hunk) -> Fit:
    """APPLIES, PRESENT or CONFLICT at one index; where both sides match, the longer one holds."""
    sides = [(len(hunk.before), Fit.APPLIES, hunk.before), (len(hunk.after), Fit.PRESENT, hunk.after)]
    for _, fit, block in sorted(sides, key=lambda side: -side[0]):
        if content.stands_at(index, block):
            return fit
    return Fit.CONFLICT


def apply_file(patch: str, diff: FileDiff, content: Content | None) -> Content:
    """Apply all hunks of one file, or none.

    Args:
        patch: Name of the patch, for messages.
        diff: The hunks.
        content: The file as earlier patches left it; None where there is no such file.

    Returns:
        The changed content; what was given stays as it was.

    Raises:
        PatchError: File missing or in the way, a hunk already applied or not fitting, or no byte changed.
    """
    if diff.creates:
        return _create(patch, diff, content)
    if content is None:
        raise PatchError(
            "the file to be patched does not exist",
            fix="check that the series is for the installed version, and where upstream moved this code",
            fault=Fault.FILE_MISSING,
            patch=patch,
            file=diff.path,
        )
    changed = Content(list(content.lines), list(content.origin))
    drift = 0
    for hunk in diff.hunks:
        place = locate(changed, hunk, drift)
        if place.fit is not Fit.APPLIES:
            raise _refusal(patch, diff.path, hunk, place, changed)
        changed.replace(place.index, hunk)
        drift += len(hunk.after) - len(hunk.before)
    if changed.lines == content.lines:
        raise PatchError(
            "the hunks undo each other: no byte of the file changes",
            fix="remove the patch, or write the edit that it was meant to be",
            fault=Fault.NO_OP,
            patch=patch,
            file=diff.path,
        )
    return changed


def _create(patch: str, diff: FileDiff, content: Content | None) -> Content:
    after = diff.hunks[0].after
    if content is None:
        return Content(list(after), [0] * len(after))
    same = content.lines == list(after)
    raise PatchError(
        "the file that the patch makes is already there" + (", with the same content" if same else ""),
        fix="drop the patch if upstream now ships this file",
        fault=Fault.ALREADY_APPLIED if same else Fault.FILE_EXISTS,
        patch=patch,
        file=diff.path,
    )


def _refusal(patch: str, path: str, hunk: Hunk, place: Place, content: Content) -> PatchError:
    """Say what stands where the hunk's lines should be."""
    line = place.index + 1
    error = partial(PatchError, patch=patch, file=path, hunk=hunk.number)
    if place.fit is Fit.PRESENT:
        return error(
            f"the hunk is already applied: its result stands at line {line}",
            fix="drop the patch if upstream has the change; otherwise start from the package as it was shipped",
            fault=Fault.ALREADY_APPLIED,
        )
    if place.fit in (Fit.MOVED, Fit.AMBIGUOUS):
        more = "" if place.fit is Fit.MOVED else " and elsewhere"
        return error(
            f"the hunk's lines are not at line {hunk.start}, they stand at line {line}{more}",
            fix="look at what changed around them, then write the patch again for this version",
            fault=Fault.CONFLICT,
        )
    found = content.lines[place.index : place.index + len(hunk.before)]
    wrong = _common(hunk.before, tuple(found))
    seen = repr(found[wrong]) if wrong < len(found) else "the end of the file"
    return error(
        f"the hunk does not fit: its lines stand nowhere in the file, and line {line + wrong} differs",
        details=[f"expected: {hunk.before[wrong]!r}", f"found:    {seen}"] if wrong < len(hunk.before) else [],
        fix="read what the code is now, then write the patch again for this version or drop it",
        fault=Fault.CONFLICT,
    )
