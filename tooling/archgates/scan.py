"""Scans the packages of an installed tree, and joins what was found with what was judged."""

from __future__ import annotations

import os
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pydantic import Field

from tooling.archgates.cuda_scan import scan_cuda
from tooling.archgates.judge import judge, load_review
from tooling.archgates.python_scan import scan_python
from tooling.archgates.records import Hit, Marker, PackageScan, Skipped
from tooling.errors import CheckError, InputError
from tooling.patches.wheels import installed_version
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

RULES = Path(__file__).with_name("packages.yaml")
_CUDA_SUFFIXES = (".cu", ".cuh", ".h", ".hpp", ".hxx", ".inl", ".inc", ".cpp", ".cc", ".jinja")


class PackageRule(Record):
    """A package to scan.

    Attributes:
        name: Distribution name.
        roots: Its folders below site-packages.
        parts: Other distributions that bring files of these folders, where its own metadata asks for them.
        gates_expected: Finding none in it is a failure of the scan.
    """

    name: str
    roots: tuple[str, ...] = Field(min_length=1)
    parts: tuple[str, ...] = ()
    gates_expected: bool = True


class SkipRule(Record):
    """A folder that is not scanned, and why."""

    glob: str
    reason: str


class Rules(Record):
    """The content of `packages.yaml`."""

    packages: tuple[PackageRule, ...] = Field(min_length=1)
    skip: tuple[SkipRule, ...] = ()
    skip_files: tuple[SkipRule, ...] = ()


@cache
def rules() -> Rules:
    """The rules of this project."""
    return Rules.model_validate(yaml.safe_load(RULES.read_text(encoding="utf-8")))


def scan_tree(
    root: Path, only: Iterable[str] = (), given: Rules | None = None, beside: Sequence[Path] = ()
) -> list[PackageScan]:
    """Scan every known package of a site-packages folder.

    Args:
        root: The folder.
        only: Names of packages to scan; empty for all that are known and installed.
        given: Other rules than this project's own.
        beside: Further folders with files of the packages, for wheels that were unpacked one by one.

    Raises:
        InputError: None of the packages is installed there.
        CheckError: A package has no files, no gate although it should, or stale judgements.
    """
    chosen = given or rules()
    wanted = set(only)
    known = {rule.name for rule in chosen.packages}
    if unknown := sorted(wanted - known):
        raise InputError(
            "no scan rules for these packages", details=unknown, fix=f"known: {', '.join(sorted(known))}"
        )
    scans = []
    for rule in chosen.packages:
        if wanted and rule.name not in wanted:
            continue
        try:
            version = installed_version(root, rule.name)
        except InputError:
            if wanted:
                raise
            continue
        scans.append(scan_package((root, *beside), rule, version, chosen))
    if not scans:
        raise InputError(
            "no package with arch gates is installed there",
            where=str(root),
            fix="give the site-packages folder of a stack",
        )
    return scans


def scan_package(roots: Sequence[Path], rule: PackageRule, version: str, given: Rules) -> PackageScan:
    """Scan one package, whose files may lie in several folders.

    Raises:
        CheckError: It has no source files, no gate although it should, or stale judgements.
    """
    hits: list[Hit] = []
    markers: dict[Marker, tuple[int, int]] = {}
    unreadable: list[str] = []
    skipped: list[Skipped] = []
    places: dict[str, Path] = {}
    for root, path in _source_files(roots, rule.roots, given, skipped):
        name = path.relative_to(root).as_posix()
        places[name] = path
        if path.suffix == ".py":
            try:
                hits += scan_python(name, path.read_bytes())
            except (SyntaxError, ValueError) as error:
                unreadable.append(f"{name}: {error}")
            continue
        found, marked = scan_cuda(name, path.read_bytes())
        hits += found
        for marker, lines in marked.items():
            old = markers.get(marker, (0, 0))
            markers[marker] = (old[0] + lines, old[1] + 1)
    _refuse_nothing(rule, roots[0], len(places), len(hits))
    return PackageScan(
        package=rule.name,
        version=version,
        files=len(places),
        gates=tuple(judge(hits, load_review(rule.name, version), lambda name: _text(places, name))),
        markers=markers,
        skipped=tuple(skipped),
        unreadable=tuple(unreadable),
    )


def _text(places: Mapping[str, Path], name: str) -> str | None:
    path = places.get(name)
    return None if path is None else path.read_text(encoding="utf-8", errors="replace")


def _refuse_nothing(rule: PackageRule, root: Path, files: int, hits: int) -> None:
    if not files:
        raise CheckError(
            f"package {rule.name} is installed, and no source file of it was scanned",
            where=", ".join(str(root / one) for one in rule.roots),
            fix="correct its folders or the skip rules in packages.yaml",
        )
    if not hits and rule.gates_expected:
        raise CheckError(
            f"no arch gate was found in {files} files of {rule.name}, which has always had some",
            where=str(root),
            fix="upstream may write them in a new way: look for a new idiom and teach it to the scan",
        )


def _source_files(
    roots: Sequence[Path], folders: tuple[str, ...], given: Rules, skipped: list[Skipped]
) -> Iterator[tuple[Path, Path]]:
    """Every source file of a package with the root that it lies below, and in `skipped` what was left out."""
    for root in roots:
        for start in folders:
            yield from ((root, path) for path in _files_below(root, start, given, skipped))


def _files_below(root: Path, start: str, given: Rules, skipped: list[Skipped]) -> Iterator[Path]:
    for folder, folders, names in os.walk(root / start):
        here = Path(folder).relative_to(root)
        folders.sort()
        for name in list(folders):
            reason = _reason((here / name).as_posix(), given.skip)
            if reason:
                folders.remove(name)
                if name != "__pycache__":
                    files = _count(root / here / name)
                    skipped.append(Skipped(path=(here / name).as_posix(), files=files, reason=reason))
        left_out: dict[str, int] = {}
        for name in sorted(names):
            if not name.endswith((".py", *_CUDA_SUFFIXES)):
                continue
            reason = _reason(name, given.skip_files)
            if reason:
                left_out[reason] = left_out.get(reason, 0) + 1
            else:
                yield root / here / name
        for reason, files in left_out.items():
            skipped.append(Skipped(path=f"{here.as_posix()}/*", files=files, reason=reason))


def _reason(name: str, skip: tuple[SkipRule, ...]) -> str:
    return next((rule.reason for rule in skip if fnmatch(name, rule.glob)), "")


def _count(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))
