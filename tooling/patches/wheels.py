"""Gets packages as they are shipped: an unpacked wheel in a cache, held against its own RECORD."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import shutil
import tempfile
from importlib.metadata import Distribution
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock
from packaging.requirements import Requirement
from uv import find_uv_bin

from tooling.errors import CheckError, InputError
from tooling.runner import run

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The files are read and never run here, so any Linux of this kind will do.
PLATFORM = "x86_64-manylinux_2_40"
PYTHON_VERSION = "3.11"
#: Seconds for one download.
TIMEOUT_S = 1800.0


def cache_dir() -> Path:
    """Where unpacked wheels are kept: `$XDG_CACHE_HOME` or `~/.cache`, below `blackwell-stacks/wheels`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blackwell-stacks" / "wheels"


def download_argv(package: str, version: str | None, target: Path) -> list[str]:
    """The command that unpacks one wheel, without its dependencies; no version means the newest."""
    requirement = package if version is None else f"{package}=={version}"
    return [
        find_uv_bin(),
        *("pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"),
        *("--python-version", PYTHON_VERSION, "--python-platform", PLATFORM),
        *("--target", str(target), requirement),
    ]


def unpacked_wheel(package: str, version: str | None = None, cache: Path | None = None) -> Path:
    """Give the site-packages folder of one wheel, downloaded only once.

    Args:
        package: Distribution name.
        version: Its version; None asks the index for the newest, every time.
        cache: Folder to keep wheels in.

    Raises:
        CommandError: There is no such wheel, or the index cannot be reached.
    """
    folder = cache or cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    if version is not None and (ready := folder / f"{package}-{version}").is_dir():
        return ready
    with FileLock(folder / f".{package}.lock"):
        scratch = Path(tempfile.mkdtemp(prefix=f".{package}-", dir=folder))
        try:
            run(download_argv(package, version, scratch), timeout_s=TIMEOUT_S)
            ready = folder / f"{package}-{installed_version(scratch, package)}"
            if not ready.is_dir():
                scratch.rename(ready)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return ready


def installed_version(root: Path, package: str) -> str:
    """The version of a package in a site-packages folder.

    Raises:
        InputError: The package is not installed there.
    """
    return _dist_info(root, package).name.removesuffix(".dist-info").rpartition("-")[2]


def pinned_requirements(root: Path, package: str) -> dict[str, str]:
    """What a package asks for at exactly one version and without an extra, name -> version.

    Raises:
        InputError: The package is not installed there.
    """
    found = {}
    for text in Distribution.at(_dist_info(root, package)).requires or ():
        requirement = Requirement(text)
        exact = [one.version for one in requirement.specifier if one.operator == "=="]
        if exact and not (requirement.marker and "extra" in str(requirement.marker)):
            found[_canonical(requirement.name)] = exact[0]
    return found


def _dist_info(root: Path, package: str) -> Path:
    want = _canonical(package)
    for info in sorted(root.glob("*.dist-info")):
        if _canonical(info.name.removesuffix(".dist-info").rpartition("-")[0]) == want:
            return info
    raise InputError(
        f"package {package} is not installed",
        where=str(root),
        fix="give the site-packages folder that holds it",
    )


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def check_as_shipped(root: Path, package: str, paths: Iterable[str]) -> None:
    """Hold files against the hashes in the wheel's own RECORD.

    Raises:
        CheckError: A file is not the one that the package ships; its details list all of them.
    """
    with (_dist_info(root, package) / "RECORD").open(encoding="utf-8", newline="") as file:
        shipped = {row[0]: row[1] for row in csv.reader(file) if len(row) > 1}
    present = [path for path in sorted(paths) if (root / path).is_file()]
    wrong = [path for path in present if shipped.get(path) != _record_hash(root / path)]
    if wrong:
        raise CheckError(
            f"files of {package} are not as the package ships them",
            where=str(root),
            details=wrong,
            fix="install the wheel anew: hashes are recorded from untouched files only",
        )


def _record_hash(path: Path) -> str:
    digest = hashlib.sha256(path.read_bytes()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")
