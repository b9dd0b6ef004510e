"""Compares the gates of two versions of a package."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from tooling.archgates.records import Hit, PackageScan  # pydantic reads them
from tooling.errors import InputError
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable


class GateDiff(Record):
    """What changed between two versions.

    Attributes:
        package: Distribution name.
        old: Its older version.
        new: Its newer version.
        added: Gates that only the new version has.
        removed: Gates that only the old version has.
        moved: How many stand at another line with the same text; not listed.
    """

    package: str
    old: str
    new: str
    added: tuple[Hit, ...]
    removed: tuple[Hit, ...]
    moved: int


def diff(old: PackageScan, new: PackageScan) -> GateDiff:
    """Compare two scans; a gate is the same if file, form, function and text are.

    Raises:
        InputError: They are of different packages.
    """
    if old.package != new.package:
        raise InputError(
            f"{old.package} and {new.package} cannot be compared", fix="name two versions of one package"
        )
    before, after = ([gate.hit for gate in scan.gates] for scan in (old, new))
    return GateDiff(
        package=new.package,
        old=old.version,
        new=new.version,
        added=_only(after, before),
        removed=_only(before, after),
        moved=_moved(before, after),
    )


def _only(here: list[Hit], there: list[Hit]) -> tuple[Hit, ...]:
    left = Counter(hit.key for hit in there)
    found = []
    for hit in here:
        if left[hit.key]:
            left[hit.key] -= 1
        else:
            found.append(hit)
    return tuple(found)


def _moved(before: Iterable[Hit], after: Iterable[Hit]) -> int:
    lines: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for hit in before:
        lines[hit.key].append(hit.line)
    return sum(1 for hit in after if hit.key in lines and hit.line not in lines[hit.key])
