"""The systemd unit that reconciles at boot, and after each start of the engine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Optional, Sequence

from tooling.errors import EngineError, InputError

UNIT = "blackwell-stacks.service"
DIRECTORY = Path("/etc/systemd/system")
_RUNNING = Path("/run/systemd/system")
_LIMIT_S = 60


def unit_text(command: Sequence[str], engine: str = "") -> str:
    """The unit.

    Args:
        command: The program with its options, absolute paths.
        engine: Address of the engine (`DOCKER_HOST`), if not the default one.
    """
    environment = [f"Environment=DOCKER_HOST={engine}"] if engine else []
    words = " ".join(f'"{word}"' if " " in word else word for word in command)
    return "\n".join(
        [
            "[Unit]",
            "Description=Bring up the committed inference stacks",
            "After=docker.service network-online.target nvidia-persistenced.service",
            "Wants=network-online.target",
            "# A restart of the engine ends the containers unless it has live-restore: reconcile after it too.",
            "PartOf=docker.service",
            "",
            "[Service]",
            "Type=exec",
            "RemainAfterExit=yes",
            "# The operation itself runs on when this is stopped.",
            "KillMode=process",
            *environment,
            f"ExecStart={words} reconcile",
            "",
            "[Install]",
            "WantedBy=multi-user.target docker.service",
            "",
        ]
    )


def install(command: Sequence[str]) -> dict[str, str]:
    """Write and enable the unit.

    Raises:
        InputError: No systemd runs here; the message has the command to run at boot.
        EngineError: systemd refuses.
    """
    if not _RUNNING.is_dir():
        raise InputError(
            "no systemd runs on this host",
            fix=f"have this run at boot, after the engine: {' '.join(command)} reconcile",
        )
    path = DIRECTORY / UNIT
    try:
        path.write_text(unit_text(command, os.environ.get("DOCKER_HOST", "")), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"the unit cannot be written: {error.strerror}", where=str(path), fix="run as root"
        ) from error
    for argv in (["systemctl", "daemon-reload"], ["systemctl", "enable", UNIT]):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        if done.returncode:
            raise EngineError(f"{' '.join(argv)} failed: {done.stderr.strip()}", where=str(path))
    return {"unit": str(path), "enabled": UNIT}


def is_enabled() -> Optional[bool]:
    """Whether the unit is enabled; None where no systemd runs."""
    if not _RUNNING.is_dir():
        return None
    done = subprocess.run(
        ["systemctl", "is-enabled", UNIT], capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    return done.stdout.strip() == "enabled"
