"""A stock cosign: the one on PATH, else Debian trixie's package, unpacked aside without touching the system."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.debian_suite import unpacked
from tooling.errors import InputError

#: The release of Debian that has cosign 2.5.
SUITE = "trixie"


def find_cosign() -> str:
    """Path of a cosign that runs here; skips, with the reason, where none can be had."""
    found = shutil.which("cosign")
    if found:
        return found
    try:
        program = unpacked(SUITE, ("cosign",)) / "usr" / "bin" / "cosign"
        subprocess.run([program, "version"], capture_output=True, text=True, check=True, timeout=300)
    except (OSError, subprocess.SubprocessError, InputError) as error:
        output = getattr(error, "stderr", "") or ""
        pytest.skip(f"cosign is not on PATH and {SUITE}'s package cannot be had: {error} {output[-300:]}")
    return str(program)
