"""Builds the stand-ins for libcuda and libnvidia-ml with the C compiler of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.programs import require_program

SOURCES = Path(__file__).parent
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
#: What is played -> the sources of its stand-in.
LIBRARIES = {
    "libcuda.so.1": ("devices.c", "allocations.c", "transfers.c", "memory.c", "scenario.c"),
    "libnvidia-ml.so.1": ("nvml.c", "scenario.c"),
}


def build(folder: Path) -> Path:
    """Compile both libraries into a folder; returns it, for LD_LIBRARY_PATH."""
    compiler = require_program("gcc", "gcc")
    for name, sources in LIBRARIES.items():
        paths = [str(SOURCES / source) for source in sources]
        command = [compiler, *FLAGS, f"-Wl,-soname,{name}", "-o", str(folder / name), *paths, "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder
