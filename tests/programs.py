"""What tests need of this machine: programs, installed where they are missing and we may, and free ports."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess

import pytest

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def require_program(program: str, package: str) -> str:
    """Path of a program, installed first where it is missing; without the right to do so the test fails.

    Args:
        program: Its name.
        package: The Debian package that brings it.
    """
    if found := shutil.which(program, path=_PATH):
        return found
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.fail(f"{program} is not installed (Debian: apt-get install {package})")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", package]):
        subprocess.run(["apt-get", "-q", *command], check=True, env=environment, stdout=subprocess.DEVNULL)
    found = shutil.which(program, path=_PATH)
    assert found, f"{package} was installed and {program} is not there"
    return found


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
