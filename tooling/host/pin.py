"""Pins: a container that sleeps in an image keeps it from `docker system prune -af`.

Nothing else does: names, stopped containers and tags all go. The pin must run in any image, also in one without
a shell, so it brings its own program: a file of under 200 bytes that does one system call.
"""

from __future__ import annotations

import io
import platform
import struct
import tarfile
from typing import TYPE_CHECKING, Sequence

from tooling.errors import EngineError
from tooling.host.contract import LABEL_GENERATION, LABEL_GROUP, LABEL_ROLE, VISIBLE, pin_name

if TYPE_CHECKING:
    from tooling.host.docker import Docker

PROGRAM = "blackwell-pause"
_ADDRESS = 0x400000
_HEADERS = 64 + 56
#: (ELF machine, code): `for (;;) pause();`, which is ppoll with no file and no time limit where pause is not.
_CODE = {
    "x86_64": (62, bytes.fromhex("b822000000 0f05 ebf7")),
    "aarch64": (
        183,
        struct.pack("<7I", 0xD2800000, 0xD2800001, 0xD2800002, 0xD2800003, 0xD2800928, 0xD4000001, 0x17FFFFFA),
    ),
}


def pause_program(machine: str) -> bytes:
    """A static ELF program that waits for ever.

    Args:
        machine: `x86_64` or `aarch64`, as `uname -m` says.

    Raises:
        EngineError: Another machine.
    """
    if machine not in _CODE:
        raise EngineError(f"no pin is known for {machine} machines", fix="use an x86-64 or arm64 host")
    number, code = _CODE[machine]
    size = _HEADERS + len(code)
    identity = b"\x7fELF" + bytes((2, 1, 1, 0)) + bytes(8)
    header = struct.pack("<HHIQQQIHHHHHH", 2, number, 1, _ADDRESS + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _ADDRESS, _ADDRESS, size, size, 0x10000)
    return identity + header + segment + code


def pin_argv(
    docker: str, name: str, image: str, labels: dict[str, str], options: Sequence[str] = ()
) -> list[str]:
    """The command that makes a pin, stopped.

    SIGKILL as its stop signal: the first process of a container ignores all others, and an engine that goes
    down would wait for it.
    """
    argv = [docker, "create", "--name", name]
    for key, value in sorted(labels.items()):
        argv += ["--label", f"{key}={value}"]
    argv += ["--network", "none", "--log-driver", "none", "--stop-signal", "SIGKILL", "--no-healthcheck"]
    argv += ["--cap-drop", "ALL", "--user", "65534:65534", "--workdir", "/", *options]
    return [*argv, "--entrypoint", f"/{PROGRAM}", image]


def pin_labels(group: str, generation: int) -> dict[str, str]:
    """Labels of a pin."""
    return {LABEL_GROUP: group, LABEL_GENERATION: str(generation), LABEL_ROLE: "pin"}


def ensure_pin(docker: Docker, group: str, generation: int, image: str) -> None:
    """Have a running pin in an image.

    Raises:
        EngineError: The engine cannot run the image at all: it is for another architecture, say.
    """
    name = pin_name(group, generation)
    there = docker.inspect(name)
    if there and there["Image"] == image and there["State"]["Running"]:
        return
    if there:
        docker.remove(name)
    options = ["--restart", "always", "--env", f"{VISIBLE}=void"]
    run_pause(docker, pin_argv(docker.program, name, image, pin_labels(group, generation), options), name)


def try_start(docker: Docker, name: str, image: str, labels: dict[str, str], options: Sequence[str]) -> None:
    """Start and remove a container that sleeps, with the options of a real one.

    What the engine cannot hand out (a GPU above all) shows before anything was stopped.

    Raises:
        EngineError: The engine refuses.
    """
    docker.remove(name)
    try:
        run_pause(docker, pin_argv(docker.program, name, image, labels, options), name)
    finally:
        docker.remove(name)


def run_pause(docker: Docker, argv: Sequence[str], name: str) -> None:
    """Make the container, put the program into it, start it."""
    docker.call(*argv[1:])
    docker.call("cp", "-", f"{name}:/", stdin=_archive(pause_program(platform.machine())))
    docker.start(name)


def _archive(program: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(PROGRAM)
        member.size, member.mode = len(program), 0o755
        archive.addfile(member, io.BytesIO(program))
    return buffer.getvalue()
