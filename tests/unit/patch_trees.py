"""A small installed package and series for it, as the tests of the patch engine need them."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

GATE = """import os

LIMIT = 128


def admits(major):
    return major in (9, 10)


def block(major):
    if major > 8:
        return 128
    return 64
"""

HEADER = """Description: {title}
Origin: vendor
Forwarded: no
Last-Update: 2026-11-29
Gate: engine/gate.py {title}
Effect-Expected: {title}
Evidence: read in the wheel
Drop-When: engine>=2.0
"""

OPEN = """--- a/engine/gate.py
+++ b/engine/gate.py
@@ -5,4 +5,4 @@

 def admits(major):
-    return major in (9, 10)
+    return major in (9, 10, 12)

"""

TILE = """--- a/engine/gate.py
+++ b/engine/gate.py
@@ -9,5 +9,7 @@

 def block(major):
+    if major == 12:
+        return 64
     if major > 8:
         return 128
     return 64
"""


def install(root: Path, version: str = "1.0", gate: str = GATE) -> Path:
    """Write the package `engine` with a RECORD, as pip would."""
    files = {"engine/__init__.py": "", "engine/gate.py": gate}
    record = []
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        record.append(f"{path},sha256={digest},{len(text)}\n")
    info = root / f"engine-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "RECORD").write_text("".join(record))
    return root


def patch(title: str, diff: str, **fields: str) -> str:
    """A whole patch file."""
    extra = "".join(f"{key.replace('_', '-')}: {value}\n" for key, value in fields.items())
    return HEADER.format(title=title) + extra + "\n" + diff


def write_series(folder: Path, **patches: str) -> Path:
    """Write a series `engine-1.0`; the keyword `p0001_name` becomes `0001-name.patch`."""
    series = folder / "engine-1.0"
    series.mkdir(parents=True, exist_ok=True)
    for name, text in patches.items():
        (series / f"{name[1:].replace('_', '-')}.patch").write_text(text)
    return folder
