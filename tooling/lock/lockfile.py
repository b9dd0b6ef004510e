"""The lock of a stack: one wheel per package, by hash, with the name of the index it came from.

A lock is also a plain requirements file, so that pip and uv can install from it:

    # torch-2.14.1-cp311-cp311-manylinux_2_28_x86_64.whl 532000000 default
    torch==2.14.1 --hash=sha256:...

It carries no index address. Which index a file came from is recorded by name: a hash does not locate a file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from tooling.errors import InputError
from tooling.records import Record, sha256_of

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_INDEX = "default"
_HEADER = "# Written by `nox -s lock-{stack}`; a change by hand is refused, change the stack instead."
_FIELD = re.compile(r"^# (?P<key>[a-z-]+): (?P<value>.+)$")
_WHEEL = re.compile(r"^# (?P<wheel>\S+\.whl) (?P<size>\d+) (?P<index>[a-z0-9.-]+)$")
_PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9-]*)==(?P<version>\S+) --hash=sha256:(?P<sha256>[0-9a-f]{64})$")


class LockedWheel(Record):
    """One file of a lock.

    Attributes:
        name: Canonical name of the distribution.
        version: Its version.
        wheel: File name.
        size: Bytes to download.
        sha256: Hex SHA-256 of the file.
        index: Name of the index that served it.
    """

    name: str
    version: str
    wheel: str
    size: int
    sha256: str
    index: str = DEFAULT_INDEX


class Lock(Record):
    """All wheels of a stack.

    Attributes:
        stack: Name of the stack that it was made for.
        request_sha256: `Stack.lock_request_sha256` of that stack when it was made.
        wheels: Sorted by name.
    """

    stack: str
    request_sha256: str
    wheels: tuple[LockedWheel, ...]

    @property
    def download_bytes(self) -> int:
        """Bytes of all wheels together."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def content_sha256(self) -> str:
        """Hash of the pins themselves."""
        return sha256_of("\n".join(pin_lines(self.wheels)).encode())

    def by_name(self) -> dict[str, LockedWheel]:
        """Wheels by canonical name."""
        return {wheel.name: wheel for wheel in self.wheels}


def pin_lines(wheels: tuple[LockedWheel, ...] | list[LockedWheel]) -> list[str]:
    """The requirement lines of some wheels, each with its file above it."""
    lines = []
    for wheel in sorted(wheels, key=lambda wheel: wheel.name):
        lines.append(f"# {wheel.wheel} {wheel.size} {wheel.index}")
        lines.append(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}")
    return lines


def render_lock(lock: Lock) -> str:
    """The text of a lock file."""
    head = [
        _HEADER.format(stack=lock.stack),
        f"# stack: {lock.stack}",
        f"# request: {lock.request_sha256}",
        f"# content: {lock.content_sha256}",
        "",
    ]
    return "\n".join([*head, *pin_lines(lock.wheels), ""])


def parse_lock(text: str, path: Path) -> Lock:
    """Read a lock; `path` is only used in messages.

    Raises:
        InputError: A line is not a pin with a hash and a file, or the lock was changed by hand.
    """
    fields: dict[str, str] = {}
    wheels: list[LockedWheel] = []
    above: re.Match[str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        if line.startswith("#"):
            above = _WHEEL.match(line)
            if field := _FIELD.match(line):
                fields[field["key"]] = field["value"]
            continue
        wheels.append(_parse_pin(line, above, where))
        above = None
    missing = [key for key in ("stack", "request", "content") if key not in fields]
    if missing:
        raise InputError(
            f"not a lock of ours: no {missing[0]!r} in its head",
            where=str(path),
            fix="write it with nox -s lock-<stack>",
        )
    lock = Lock(stack=fields["stack"], request_sha256=fields["request"], wheels=tuple(wheels))
    again = f"run nox -s lock-{lock.stack}"
    if not wheels:
        raise InputError("the lock holds no package", where=str(path), fix=again)
    names = [wheel.name for wheel in wheels]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"the lock pins {twice[0]} twice", where=str(path), fix=again)
    if lock.content_sha256 != fields["content"]:
        raise InputError(
            "the lock was changed by hand: its content hash does not fit", where=str(path), fix=again
        )
    return lock


def _parse_pin(line: str, above: re.Match[str] | None, where: str) -> LockedWheel:
    pin = _PIN.match(line.strip())
    if pin is None:
        what = (
            "a version without a hash"
            if "==" in line and "--hash" not in line
            else "not a pin name==version with a hash"
        )
        raise InputError(
            f"{what}: {line.strip()[:80]!r}", where=where, fix="write the lock with nox -s lock-<stack>"
        )
    if above is None:
        raise InputError(
            f"no file and index recorded for {pin['name']}: a hash alone does not locate a file",
            where=where,
            fix="write the lock with nox -s lock-<stack>",
        )
    return LockedWheel(
        name=canonicalize_name(pin["name"]),
        version=pin["version"],
        wheel=above["wheel"],
        size=int(above["size"]),
        sha256=pin["sha256"],
        index=above["index"],
    )
