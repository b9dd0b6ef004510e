"""Read pins from anybody's requirements file, so that locks made by others can be checked too."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tooling.errors import InputError
from tooling.lock.coherence import Pin

if TYPE_CHECKING:
    from pathlib import Path

_HASH = re.compile(r"--hash=\S+")
_COMMENT = re.compile(r"(^|\s)#.*$")
_OPTION = re.compile(r"^-")


def parse_requirements(text: str, path: Path) -> list[Pin]:
    """Pins of a requirements file (pip's format): `name==version`, hashes and comments allowed.

    Whether an index is recorded is only known for locks of ours; a plain file is not blamed for it.

    Raises:
        InputError: A line is not a pin of one version.
    """
    joined = re.sub(r"\\\n\s*", " ", text)
    hashes_used = "--hash=" in joined
    pins = []
    for line in joined.splitlines():
        bare = _COMMENT.sub("", line).strip()
        if not bare or _OPTION.match(bare):
            continue
        hashed = bool(_HASH.search(bare))
        try:
            requirement = Requirement(_HASH.sub("", bare).strip())
        except InvalidRequirement as error:
            raise InputError(
                f"not a requirement: {bare[:80]!r}", where=str(path), fix="write name==version"
            ) from error
        specifiers = list(requirement.specifier)
        if len(specifiers) != 1 or specifiers[0].operator not in {"==", "==="} or "*" in specifiers[0].version:
            raise InputError(
                f"not a pin of one version: {bare[:80]!r}", where=str(path), fix="write name==version"
            )
        pins.append(
            Pin(
                name=canonicalize_name(requirement.name),
                version=specifiers[0].version,
                hashed=hashed or not hashes_used,
            )
        )
    return pins
