"""Installed distributions against their own wheels, against each other and against the lock."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.requirements import Requirement
from packaging.tags import parse_tag, sys_tags
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_EXTRA = re.compile(r"extra\s*==\s*['\"](?P<extra>[^'\"]+)['\"]")


@dataclass
class Installed:
    """One installed distribution.

    Attributes:
        version: Its version.
        files: Urlsafe base64 SHA-256 by file, as its RECORD says; None for a file without a hash.
        requires: Its requirements (PEP 508).
        tags: Tags of the wheel that it came from.
        size: Bytes of its files.
    """

    version: str
    files: dict[str, str | None] = field(default_factory=dict)
    requires: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    size: int = 0


class Pruned(NamedTuple):
    """A file that device code was taken out of; hashes as RECORD writes them.

    Attributes:
        wheel: Of the file as its wheel has it.
        now: Of the file as it must be now; None when it is gone.
    """

    wheel: str
    now: str | None


def read_distributions(site: Path) -> dict[str, Installed]:
    """Distributions of a site-packages folder, by canonical name."""
    result: dict[str, Installed] = {}
    for distribution in importlib.metadata.distributions(path=[str(site)]):
        wheel = distribution.read_text("WHEEL") or ""
        installed = Installed(
            version=distribution.version,
            requires=list(distribution.requires or []),
            tags=[line.split(":", 1)[1].strip() for line in wheel.splitlines() if line.startswith("Tag:")],
        )
        # Plain strings: a Path for each of 90,000 files takes longer than all the rest of this check.
        for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
            path = os.path.normpath(os.path.join(site, row[0]))  # noqa: PTH118
            mode, _, digest = row[1].partition("=")
            installed.files[path] = digest if mode == "sha256" else None
        result[canonicalize_name(distribution.metadata["Name"])] = installed
    return result


def compare_with_lock(distributions: Mapping[str, Installed], locked: Mapping[str, str]) -> list[str]:
    """What is installed and not locked, locked and not installed, or of another version."""
    if not locked:
        return ["the lock names no package: nothing can be compared"]
    findings = []
    for name in sorted(distributions.keys() | locked.keys()):
        have = distributions[name].version if name in distributions else "absent"
        want = locked.get(name, "absent")
        if have != want:
            findings.append(f"{name} is {have} in the image and {want} in the lock")
    return findings


def altered_files(
    distributions: Mapping[str, Installed], pruned: Mapping[str, Pruned] | None = None
) -> tuple[list[str], int, int]:
    """Files that are missing or not as their wheel's RECORD says; and how many files and bytes were hashed.

    Sets the size of each distribution on the way.

    Args:
        distributions: What is installed.
        pruned: By path, what the pruner made of files; it counts only for the content that the wheel records.
    """
    known = dict(pruned or {})
    owners = _owners(distributions)
    expected = [
        (name, path, digest)
        for name, installed in distributions.items()
        for path, digest in installed.files.items()
        # Which content a file with two owners has is another check's business.
        if digest is not None and len(owners[path]) == 1
    ]

    def judge(item: tuple[str, str, str]) -> tuple[str, str, int]:
        name, path, digest = item
        change = known.get(path)
        if change is not None and change.wheel != digest:
            return name, f"{name}: {_below_site(path)} was not as in its wheel when it was pruned", 0
        try:
            found, size = _digest(path)
        except FileNotFoundError:
            gone = change is not None and change.now is None
            return name, "" if gone else f"{name}: {_below_site(path)} of its wheel is missing", 0
        if change is None:
            return name, "" if found == digest else f"{name}: {_below_site(path)} is not as in its wheel", size
        return name, "" if found == change.now else f"{name}: {_below_site(path)} is not as it was pruned", size

    findings, total = [], 0
    with ThreadPoolExecutor() as pool:
        for name, finding, size in pool.map(judge, expected, chunksize=64):
            distributions[name].size += size
            total += size
            if finding:
                findings.append(finding)
    if not expected:
        findings.append("no file of any package has a hash: nothing was verified")
    stray = known.keys() - {path for _, path, _ in expected}
    findings += [f"{_below_site(path)} was pruned, and no wheel has recorded it" for path in sorted(stray)]
    return findings, len(expected), total


def read_pruned(site: Path, report: dict[str, Any]) -> dict[str, Pruned]:
    """What a report of the pruner says of the files that it changed, by path.

    A library may have lost its symbols first and device code then: the second step has to begin with what the
    first one left. Where it does not, nothing that the wheel records is accepted.
    """
    changes: dict[str, tuple[str, str]] = {}
    for file in report["files"]:
        if file["status"] in {"pruned", "deleted"}:
            changes[file["path"]] = (file["sha256_before"], file["sha256_after"])
    for file in report.get("stripped", ()):
        if file["status"] == "stripped":
            between, now = changes.get(file["path"], (file["sha256_after"], file["sha256_after"]))
            whole = between == file["sha256_after"]
            changes[file["path"]] = (file["sha256_before"] if whole else "", now)
    for file in report.get("dropped", ()):
        changes[file["path"]] = (file["sha256"] if file["path"] not in changes else "", "")
    return {
        os.path.normpath(os.path.join(site, path)): Pruned(  # noqa: PTH118
            _recorded(before), _recorded(now) if now else None
        )
        for path, (before, now) in changes.items()
    }


def _recorded(digest: str) -> str:
    """A hex SHA-256 as RECORD writes it."""
    return base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode()


def _digest(path: str) -> tuple[str, int]:
    """Urlsafe base64 SHA-256 of a file, as RECORD writes it, and its size."""
    with open(path, "rb") as file:  # noqa: PTH123
        digest = hashlib.file_digest(file, "sha256").digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode(), file.tell()


def _below_site(path: str) -> str:
    """A path as findings show it: the same wherever site-packages lies."""
    return path.rsplit("/site-packages/", 1)[-1]


def _owners(distributions: Mapping[str, Installed]) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for name, installed in sorted(distributions.items()):
        for path in installed.files:
            owners.setdefault(path, []).append(name)
    return owners


def shared_files(distributions: Mapping[str, Installed]) -> list[str]:
    """Paths that two distributions own with different content: which one is on disk depends on the order."""
    findings = []
    for path, names in _owners(distributions).items():
        if len({distributions[name].files[path] for name in names}) > 1:
            findings.append(f"{_below_site(path)} belongs to {' and '.join(names)}")
    return findings


def unmet_requirements(distributions: Mapping[str, Installed]) -> list[str]:
    """Requirements that are not installed or not in the wanted version, the pins of cuda-toolkit included."""
    findings = []
    for name, installed in sorted(distributions.items()):
        for text in installed.requires:
            requirement = Requirement(text)
            extras = set(_EXTRA.findall(text))
            active = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
            )
            wanted = canonicalize_name(requirement.name)
            if not active:
                continue
            if wanted not in distributions:
                if not extras:
                    findings.append(f"{name} requires {wanted}, which is not installed")
                continue
            # An extra that nobody asked for still says which version fits: cuda-toolkit pins the whole set so.
            version = distributions[wanted].version
            exact = not extras or name == "cuda-toolkit"
            if exact and not requirement.specifier.contains(version, prereleases=True):
                findings.append(f"{name} requires {wanted}{requirement.specifier}, and {version} is installed")
    return findings


def wrong_tags(distributions: Mapping[str, Installed]) -> list[str]:
    """Distributions whose wheel is not for this interpreter and C library."""
    supported = set(sys_tags())
    return [
        f"{name} {installed.version} is a wheel for {', '.join(installed.tags)}, which does not fit this image"
        for name, installed in sorted(distributions.items())
        if installed.tags and not any(supported & parse_tag(tag) for tag in installed.tags)
    ]
