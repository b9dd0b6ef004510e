"""Makes the host program's one file: a zip that Python runs, the same bytes from the same sources."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_HEAD = b"#!/usr/bin/env python3\n"
#: The oldest time that a zip can hold.
_TIME = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16
_MAIN = "__main__.py"


def sources() -> dict[str, bytes]:
    """The files that travel, by their path in the zip: this package, and what it uses of the one around it."""
    found = {f"tooling/{name}": (_PACKAGE.parent / name).read_bytes() for name in ("__init__.py", "errors.py")}
    for path in sorted(_PACKAGE.glob("*.py")):
        if path.name not in (Path(__file__).name, _MAIN):
            found[f"tooling/host/{path.name}"] = path.read_bytes()
    found[_MAIN] = (_PACKAGE / _MAIN).read_bytes()
    return found


def bundle() -> bytes:
    """The program. Not compressed: the bytes of a compressed one depend on the machine's zlib."""
    buffer = io.BytesIO()
    buffer.write(_HEAD)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(sources().items()):
            member = zipfile.ZipInfo(name, _TIME)
            member.create_system = 3  # Unix, wherever this runs
            member.external_attr = _MODE
            archive.writestr(member, content)
    return buffer.getvalue()


def bundle_name(content: bytes) -> str:
    """File name on the host: it names its own content, so that two versions never overwrite each other."""
    return f"blackwell-host-{sha256(content)[:12]}.pyz"


def sha256(content: bytes) -> str:
    """Hex SHA-256."""
    return hashlib.sha256(content).hexdigest()
