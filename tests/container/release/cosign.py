"""A stock cosign: the one on PATH, else Debian trixie's package, unpacked aside without touching the system."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

#: The release of Debian that has cosign 2.5.
SUITE = "trixie"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def find_cosign() -> str:
    """Path of a cosign that runs here; skips, with the reason, where none can be had."""
    found = shutil.which("cosign")
    if found:
        return found
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blackwell-stacks-tests" / "cosign"
    )
    program = cache / "root" / "usr" / "bin" / "cosign"
    try:
        if not program.is_file():
            _unpack(cache)
        _run([str(program), "version"])
    except (OSError, subprocess.SubprocessError, LookupError) as error:
        output = getattr(error, "stderr", "") or ""
        pytest.skip(f"cosign is not on PATH and {SUITE}'s package cannot be had: {error} {output[-300:]}")
    return str(program)


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout


def _mirror() -> str:
    """Address of the Debian archive that this machine already uses."""
    wanted = "$(SITE) $(CODENAME) $(COMPONENT)"
    for line in _run(["apt-get", "indextargets", "--format", wanted, "Created-By: Packages"]).splitlines():
        site, codename, component = line.split()
        if component == "main" and site.rstrip("/").endswith("/debian") and "-" not in codename:
            return site
    raise LookupError("apt knows no Debian archive")


def _unpack(cache: Path) -> None:
    """Download the package with an apt of its own (lists, state, cache), and unpack it."""
    apt = cache / "apt"
    for directory in ("lists/partial", "cache/archives/partial", "state"):
        (apt / directory).mkdir(parents=True, exist_ok=True)
    (apt / "state" / "status").touch()
    (apt / "sources.list").write_text(f"deb [signed-by={KEYRING}] {_mirror()} {SUITE} main\n")
    options = {
        "Dir::Etc::SourceList": apt / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State": apt / "state",
        "Dir::State::Lists": apt / "lists",
        "Dir::State::status": apt / "state" / "status",
        "Dir::Cache": apt / "cache",
        "Acquire::Languages": "none",
    }
    command = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
    _run([*command, "update"])
    _run([*command, "download", "cosign"], cwd=apt)
    (package,) = apt.glob("cosign_*.deb")
    _run(["dpkg-deb", "-x", str(package), str(cache / "root")])
    shutil.rmtree(apt)
