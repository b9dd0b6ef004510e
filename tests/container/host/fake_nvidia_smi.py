"""A stand-in for nvidia-smi: its GPUs are files, and who has locked one holds it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER = Path(os.environ["FAKE_GPUS"])
DRIVER = (FOLDER / "driver").read_text().strip()


def holders(path: Path) -> list[str]:
    """Processes that have locked a file, by the kernel's own list."""
    inode = str(path.stat().st_ino)
    rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return [row[4] for row in rows if row[1] == "FLOCK" and row[5].rpartition(":")[2] == inode]


def main() -> None:
    gpus = sorted(FOLDER.glob("gpu*"))
    query = next(word for word in sys.argv if word.startswith("--query"))
    for path in gpus:
        number = path.name[3:]
        uuid = f"GPU-{int(number):08d}-0000-0000-0000-000000000000"
        held = holders(path)
        if query.startswith("--query-gpu"):
            used = 80_000 if held else 4
            print(f"{number}, {uuid}, Stand-in RTX PRO 6000, {DRIVER}, 12.0, {used}, 97887")
        else:
            for pid in held:
                print(f"{uuid}, {pid}, stand-in")


main()
