"""What tests need of this machine: programs, installed where they are missing and we may, and free ports."""

from __future__ import annotations

import os
import random
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


#: Below the range from which kernels choose ports of their own (32768 on), so that no connection takes one
#: between its choice and its use; each is handed out once in a run.
_PORTS = iter(random.Random(os.getpid()).sample(range(20000, 32000), 12000))  # noqa: S311  # no secret


def free_port() -> int:
    """A port that nobody listens on now, and that nobody else is given."""
    for port in _PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    pytest.fail("no port between 20000 and 32000 is free")
