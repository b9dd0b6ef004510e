"""Keeps scans: one file a version of a package and state of the rules, code and reviews."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from tooling.archgates.judge import review_files
from tooling.archgates.records import PackageScan
from tooling.archgates.scan import RULES
from tooling.records import sha256_of, sha256_of_file


def cache_folder() -> Path:
    """Where scans are kept: `$XDG_CACHE_HOME` or `~/.cache`, below `blackwell-stacks/arch-gates`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blackwell-stacks" / "arch-gates"


def _place(package: str, version: str) -> Path:
    reviews = [path for path in review_files(package, version) if path.is_file()]
    code = sorted(Path(__file__).parent.glob("*.py"))
    state = [sha256_of_file(path) for path in (RULES, *code, *reviews)]
    return cache_folder() / f"{package}-{version}-{sha256_of(state)[:16]}.json"


def read_kept(package: str, version: str) -> PackageScan | None:
    """The kept scan of a version; None where there is none that is still true."""
    try:
        return PackageScan.model_validate_json(_place(package, version).read_bytes())
    except (OSError, ValidationError):
        return None


def keep(scan: PackageScan) -> None:
    """Keep a scan of a package as its wheel ships it."""
    place = _place(scan.package, scan.version)
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    draft.write_text(scan.model_dump_json(), encoding="utf-8")
    draft.replace(place)
