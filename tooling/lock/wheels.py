"""Which wheels fit a platform, and which of several an installer takes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.stack.model import Platform

_OLDEST_GLIBC_MINOR = 5
_LEGACY = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}


@cache
def supported_tags(platform: Platform) -> dict[Tag, int]:
    """Tags that fit a platform, with their rank: 0 is what an installer likes best (PEP 425, PEP 600)."""
    major, minor = (int(part) for part in platform.python.split("."))
    platforms = _platform_tags(platform)
    ordered = [
        *cpython_tags((major, minor), platforms=platforms),
        *compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=platforms),
    ]
    ranks: dict[Tag, int] = {}
    for rank, tag in enumerate(ordered):
        ranks.setdefault(tag, rank)
    return ranks


def _platform_tags(platform: Platform) -> list[str]:
    architecture = platform.architecture
    newest = int(platform.glibc.split(".")[1])
    tags = []
    for minor in range(newest, _OLDEST_GLIBC_MINOR - 1, -1):
        tags.append(f"manylinux_2_{minor}_{architecture}")
        if minor in _LEGACY:
            tags.append(f"{_LEGACY[minor]}_{architecture}")
    return [*tags, f"linux_{architecture}"]


def best_wheel(file_names: Iterable[str], platform: Platform) -> str | None:
    """The wheel that an installer takes among some of one version; None when none fits."""
    ranks = supported_tags(platform)
    fitting = []
    for name in file_names:
        _, _, build, tags = parse_wheel_filename(name)
        rank = min((ranks[tag] for tag in tags if tag in ranks), default=None)
        if rank is not None:
            fitting.append((rank, tuple(-part if isinstance(part, int) else part for part in build[:1]), name))
    return min(fitting)[2] if fitting else None
