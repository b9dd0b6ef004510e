"""Installed distributions against their own wheels, against each other and against the lock."""

from __future__ import annotations

import base64
import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.tags import parse_tag, sys_tags
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib.metadata import Distribution

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
    files: dict[Path, str | None] = field(default_factory=dict)
    requires: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    size: int = 0


def read_distributions(found: Iterable[Distribution]) -> dict[str, Installed]:
    """Distributions by canonical name."""
    result: dict[str, Installed] = {}
    for distribution in found:
        wheel = distribution.read_text("WHEEL") or ""
        installed = Installed(
            version=distribution.version,
            requires=list(distribution.requires or []),
            tags=[line.split(":", 1)[1].strip() for line in wheel.splitlines() if line.startswith("Tag:")],
        )
        for file in distribution.files or []:
            path = Path(str(distribution.locate_file(file))).resolve()
            hashed = file.hash is not None and file.hash.mode == "sha256"
            installed.files[path] = file.hash.value if hashed and file.hash else None
            installed.size += path.stat().st_size if path.is_file() else 0
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


def altered_files(distributions: Mapping[str, Installed]) -> tuple[list[str], int, int]:
    """Files that are missing or not as their wheel's RECORD says; and how many files and bytes were hashed."""
    expected = [
        (name, path, digest)
        for name, installed in distributions.items()
        for path, digest in installed.files.items()
        if digest is not None
    ]
    # Scripts are rewritten by the installer, and two owners of one path are another check's business.
    owners = _owners(distributions)
    findings, size = [], 0

    def judge(item: tuple[str, Path, str]) -> tuple[str | None, int]:
        name, path, digest = item
        if not path.is_file():
            return f"{name}: {path} of its wheel is missing", 0
        if len(owners[path]) == 1 and _digest(path) != digest:
            return f"{name}: {path} is not as in its wheel", 0
        return None, path.stat().st_size

    with ThreadPoolExecutor() as pool:
        for finding, count in pool.map(judge, expected):
            size += count
            if finding:
                findings.append(finding)
    if not expected:
        findings.append("no file of any package has a hash: nothing was verified")
    return findings, len(expected), size


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _owners(distributions: Mapping[str, Installed]) -> dict[Path, list[str]]:
    owners: dict[Path, list[str]] = {}
    for name, installed in sorted(distributions.items()):
        for path in installed.files:
            owners.setdefault(path, []).append(name)
    return owners


def shared_files(distributions: Mapping[str, Installed]) -> list[str]:
    """Paths that two distributions own with different content: which one is on disk depends on the order."""
    findings = []
    for path, names in _owners(distributions).items():
        if len({distributions[name].files[path] for name in names}) > 1:
            below = str(path).rsplit("/site-packages/", 1)[-1]
            findings.append(f"{below} belongs to {' and '.join(names)}")
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
