"""Programs of another Debian suite, unpacked beside this machine's own and never installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.base.sources import INDEXTARGETS_ARGV, sources_for

if TYPE_CHECKING:
    from collections.abc import Sequence

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blackwell-stacks-tests"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def unpacked(suite: str, packages: Sequence[str]) -> Path:
    """Folder with the content of some packages of a suite; kept for the next run.

    Args:
        suite: Its name; it comes from the mirror that this machine uses for its own.
        packages: Their names; what they depend on is not brought.
    """
    folder = CACHE / "debian" / suite
    kept = folder / "+".join(sorted(packages))
    if kept.is_dir():
        return kept
    sources = [line for line in mirrors(suite) if line.split()[-2] == suite]
    assert sources, f"this machine's apt has no mirror that suite {suite} could come from"
    apt = _apt(folder / "apt", sources)
    subprocess.run(["apt-get", *apt, "-q", "update"], check=True, stdout=subprocess.DEVNULL)
    fresh = kept.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    (fresh / "packages").mkdir(parents=True)
    if (fresh / "packages").owner() == "root":
        (fresh / "packages").chmod(0o777)  # apt's own user writes there
    subprocess.run(
        ["apt-get", *apt, "-q", "download", *packages],
        check=True, cwd=fresh / "packages", stdout=subprocess.DEVNULL,
    )  # fmt: skip
    files = sorted((fresh / "packages").glob("*.deb"))
    assert len(files) == len(packages), files
    for file in files:
        subprocess.run(["dpkg-deb", "--extract", str(file), str(fresh)], check=True)
    shutil.rmtree(fresh / "packages")
    fresh.rename(kept)
    return kept


def mirrors(suite: str) -> list[str]:
    """Sources of a suite and its pockets, from the mirror that this machine uses for its own."""
    listed = subprocess.run(INDEXTARGETS_ARGV, check=True, capture_output=True, text=True).stdout
    return sources_for(suite, listed.splitlines(), KEYRING)


def _apt(folder: Path, sources: Sequence[str]) -> list[str]:
    """Options that give apt lists and sources of its own."""
    for name in ("lists/partial", "archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "sources.list").write_text("\n".join(sources) + "\n")
    return [
        f"-oDir::Etc::SourceList={folder}/sources.list", "-oDir::Etc::SourceParts=/dev/null",
        f"-oDir::State::Lists={folder}/lists", f"-oDir::Cache={folder}", "-oDir::State::status=/dev/null",
        # A mirror of a past day is good enough here; what it says is signed all the same.
        "-oAcquire::Check-Valid-Until=false",
    ]  # fmt: skip
