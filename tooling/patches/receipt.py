"""Holds installed files against the receipt of what was patched.

Standard library alone: it goes into images, whose selftest uses it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def sha256(data: bytes) -> str:
    """Hex SHA-256."""
    return hashlib.sha256(data).hexdigest()


def reader(root: Path) -> Callable[[str], bytes | None]:
    """Read files of an installed tree; a link that leads out of it is not followed."""
    base = root.resolve()

    def read(path: str) -> bytes | None:
        file = (base / path).resolve()
        if not file.is_file() or not file.is_relative_to(base):
            return None
        return file.read_bytes()

    return read


def verify_receipt(record: Mapping[str, Any], root: Path) -> list[str]:
    """Hold installed files against a receipt; the answer lists what is not as it was patched, one line each."""
    read = reader(root)
    found = []
    for path, expected in record["files"].items():
        data = read(path)
        if data is None:
            found.append(f"{record['series']}: {path} is missing")
        elif sha256(data) != expected:
            found.append(f"{record['series']}: {path} is not the patched file")
    if record["applied"] and not record["files"]:
        found.append(f"{record['series']}: the receipt names patches but no file")
    return found
