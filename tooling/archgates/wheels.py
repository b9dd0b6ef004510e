"""Scans wheels as the package index has them, each version once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.archgates.kept import keep, read_kept
from tooling.archgates.scan import rules, scan_tree
from tooling.patches.wheels import pinned_requirements, unpacked_wheel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tooling.archgates.records import PackageScan
    from tooling.archgates.scan import PackageRule


def scan_wheel(package: str, version: str, say: Callable[[str], None]) -> PackageScan:
    """The gates of one version of a package, kept from an earlier scan or read from its wheel now.

    Args:
        package: A package with scan rules.
        version: Its version.
        say: Told what takes longer than a moment.

    Raises:
        CommandError: There is no such wheel, or the index cannot be reached.
        CheckError: It has no gate although it should, or its review does not match its code.
    """
    kept = read_kept(package, version)
    if kept is not None:
        return kept
    say(f"{package} {version}: from the cache or the package index")
    rule = next(rule for rule in rules().packages if rule.name == package)
    root, *beside = unpacked_with_parts(rule, version)
    (scan,) = scan_tree(root, [package], beside=beside)
    keep(scan)
    return scan


def unpacked_with_parts(rule: PackageRule, version: str, cache: Path | None = None) -> list[Path]:
    """The folders of a wheel and of the wheels that bring parts of it, as its own metadata pins them."""
    folders = [unpacked_wheel(rule.name, version, cache)]
    waiting = pinned_requirements(folders[0], rule.name)
    seen: set[str] = set()
    while wanted := sorted((waiting.keys() & set(rule.parts)) - seen):
        part = wanted[0]
        seen.add(part)
        folders.append(unpacked_wheel(part, waiting[part], cache))
        waiting |= pinned_requirements(folders[-1], part)
    return folders
