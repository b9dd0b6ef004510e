"""Scans the packages of an installed tree, and joins what was found with what was judged."""

from __future__ import annotations

import os
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pydantic import Field, ValidationError

from tooling.archgates.cuda_scan import scan_cuda
from tooling.archgates.python_scan import scan_python
from tooling.archgates.records import (
    Hit,
    JudgedHit,
    Judgement,
    Judgements,
    Marker,
    PackageScan,
    Skipped,
)
from tooling.errors import CheckError, InputError
from tooling.patches.wheels import installed_version
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

RULES = Path(__file__).with_name("packages.yaml")
#: Reviewed gates, one file a version of a package.
JUDGED_DIR = Path(__file__).resolve().parents[2] / "images" / "archgates"
_CUDA_SUFFIXES = (".cu", ".cuh", ".h", ".hpp", ".hxx", ".inl", ".inc", ".cpp", ".cc", ".jinja")


class PackageRule(Record):
    """A package to scan.

    Attributes:
        name: Distribution name.
        roots: Its folders below site-packages.
        gates_expected: Finding none in it is a failure of the scan.
    """

    name: str
    roots: tuple[str, ...] = Field(min_length=1)
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


def scan_tree(root: Path, only: Iterable[str] = (), given: Rules | None = None) -> list[PackageScan]:
    """Scan every known package of a site-packages folder.

    Args:
        root: The folder.
        only: Names of packages to scan; empty for all that are known and installed.
        given: Other rules than this project's own.

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
        scans.append(scan_package(root, rule, version, chosen))
    if not scans:
        raise InputError(
            "no package with arch gates is installed there",
            where=str(root),
            fix="give the site-packages folder of a stack",
        )
    return scans


def scan_package(root: Path, rule: PackageRule, version: str, given: Rules) -> PackageScan:
    """Scan one package.

    Raises:
        CheckError: It has no source files, no gate although it should, or stale judgements.
    """
    hits: list[Hit] = []
    markers: dict[Marker, tuple[int, int]] = {}
    unreadable: list[str] = []
    skipped: list[Skipped] = []
    files = 0
    for path in _source_files(root, rule.roots, given, skipped):
        files += 1
        name = path.relative_to(root).as_posix()
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
    _refuse_nothing(rule, root, files, len(hits))
    return PackageScan(
        package=rule.name,
        version=version,
        files=files,
        gates=tuple(judge(hits, load_judgements(rule.name, version))),
        markers=markers,
        skipped=tuple(skipped),
        unreadable=tuple(unreadable),
    )


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


def _source_files(root: Path, roots: tuple[str, ...], given: Rules, skipped: list[Skipped]) -> Iterable[Path]:
    """Every source file of a package, and in `skipped` what was left out."""
    for start in roots:
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


def load_judgements(package: str, version: str, folder: Path = JUDGED_DIR) -> Judgements | None:
    """The reviewed gates of one version; None where nobody reviewed it.

    Raises:
        InputError: The file is there and cannot be used.
    """
    path = folder / f"{package}-{version}.yaml"
    if not path.is_file():
        return None
    try:
        found = Judgements.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (ValidationError, yaml.YAMLError) as error:
        raise InputError(
            "the judged gates cannot be read", where=str(path), details=str(error).splitlines()[:8]
        ) from error
    if (found.package, found.version) != (package, version):
        raise InputError(f"the file is for {found.package} {found.version}", where=str(path))
    return found


def judge(hits: Iterable[Hit], judgements: Judgements | None) -> list[JudgedHit]:
    """Put to every hit the first judgement that covers it; what none covers stays unjudged.

    Raises:
        CheckError: A judgement covers another number of hits than it says: the code is not what was reviewed.
    """
    ordered = sorted(hits, key=lambda hit: (hit.path, hit.line, hit.pattern))
    judged = judgements.judged if judgements else ()
    covered = dict.fromkeys(range(len(judged)), 0)
    answer = []
    for hit in ordered:
        index = next((i for i, one in enumerate(judged) if _covers(one, hit)), None)
        if index is None:
            answer.append(JudgedHit(hit=hit))
            continue
        covered[index] += 1
        one = judged[index]
        answer.append(JudgedHit(hit=hit, polarity=one.polarity, id=one.id, note=one.note, patch=one.patch))
    wrong = [
        f"{one.id}: {one.path} covers {covered[i]} gates, reviewed were {one.hits}"
        for i, one in enumerate(judged)
        if covered[i] != one.hits
    ]
    if judgements and wrong:
        raise CheckError(
            f"judged gates of {judgements.package} {judgements.version} do not match its code",
            details=wrong,
            fix="review these gates in the package and correct images/archgates",
        )
    return answer


def _covers(judgement: Judgement, hit: Hit) -> bool:
    return (
        judgement.path == hit.path
        and judgement.pattern in (None, hit.pattern)
        and judgement.symbol in ("", hit.symbol, hit.symbol.rpartition(".")[2])
        and judgement.contains in hit.code
    )
