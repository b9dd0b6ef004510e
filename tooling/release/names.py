"""Names of releases: `<stack>-<engine version>-<yyyymmdd>-<12 hex of the digest>`; the name cannot lie."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.errors import InputError

if TYPE_CHECKING:
    from datetime import datetime

_TAG_MAX = 128
_PATTERN = re.compile(
    r"(?P<stack>[a-z0-9][a-z0-9_.]*(?:-[a-z0-9_.]+)*)-(?P<engine>\d[A-Za-z0-9_.]*)-(?P<date>\d{8})-(?P<hex>[0-9a-f]{12})"
)


@dataclass(frozen=True)
class ReleaseName:
    """The parts of a release's name.

    Attributes:
        stack: Name of the stack.
        engine_version: As a tag can hold it: `+`, `!` and `-` are written `_`.
        date: `yyyymmdd`, UTC.
        digest_prefix: First 12 hex digits of the image's digest.
    """

    stack: str
    engine_version: str
    date: str
    digest_prefix: str

    @property
    def tag(self) -> str:
        """The name as one word."""
        return f"{self.stack}-{self.engine_version}-{self.date}-{self.digest_prefix}"

    def fits(self, digest: str) -> bool:
        """Whether the name is one of this image."""
        return digest.removeprefix("sha256:").startswith(self.digest_prefix)


def release_name(stack: str, engine_version: str, when: datetime, digest: str) -> str:
    """Name a release.

    Args:
        stack: Name of the stack.
        engine_version: Version of the engine; `+`, `!` and `-` become `_`, since a tag cannot hold them or
            the name could not be taken apart.
        when: The moment of the release, UTC.
        digest: Digest of the image manifest.

    Raises:
        InputError: Stack and version do not make a tag.
    """
    engine = re.sub(r"[+!-]", "_", engine_version)
    name = f"{stack}-{engine}-{when:%Y%m%d}-{digest.removeprefix('sha256:')[:12]}"
    parsed = parse_release_name(name)
    if len(name) > _TAG_MAX or parsed is None or parsed.stack != stack:
        raise InputError(
            f"{name!r} cannot be the name of a release",
            where=f"stack {stack!r}, engine version {engine_version!r}",
            fix="lower case letters, digits, dots and dashes for the stack; a version that begins with a digit",
        )
    return name


def parse_release_name(tag: str) -> ReleaseName | None:
    """Read a tag as the name of a release; None when it is none."""
    match = _PATTERN.fullmatch(tag)
    if match is None:
        return None
    return ReleaseName(match["stack"], match["engine"], match["date"], match["hex"])
