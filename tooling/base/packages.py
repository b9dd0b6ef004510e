"""The base lock: which versions of the distribution's packages a stack was proved with, and what drifted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.errors import InputError
from tooling.records import Record, sha256_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Format of `dpkg-query --show` that the lock is made of.
DPKG_FORMAT = "${Package}=${Version} ${Architecture}\\n"


class BaseLock(Record):
    """Versions of a base.

    Attributes:
        stack: Name of the stack.
        request_sha256: `Stack.base_request_sha256` of that stack when the lock was made.
        epoch: Seconds since 1970 that every file made by the build carries as its time.
        packages: `<version> <architecture>` by package.
    """

    stack: str
    request_sha256: str
    epoch: int
    packages: dict[str, str]

    @property
    def packages_sha256(self) -> str:
        """Hash of the versions."""
        return sha256_of(self.packages)


def parse_dpkg(text: str) -> dict[str, str]:
    """Versions from lines in `DPKG_FORMAT`."""
    packages = {}
    for line in text.splitlines():
        name, equals, rest = line.strip().partition("=")
        if equals:
            packages[name] = rest
    return packages


def render_base_lock(lock: BaseLock) -> str:
    """The text of a base lock."""
    head = [
        f"# Written by `nox -s lock-{lock.stack}`.",
        f"# stack: {lock.stack}",
        f"# request: {lock.request_sha256}",
        f"# epoch: {lock.epoch}",
        "",
    ]
    lines = [f"{name}={version}" for name, version in sorted(lock.packages.items())]
    return "\n".join([*head, *lines, ""])


def parse_base_lock(text: str, path: Path) -> BaseLock:
    """Read a base lock; `path` is only used in messages."""
    fields = dict(
        line[2:].split(": ", 1) for line in text.splitlines() if line.startswith("# ") and ": " in line
    )
    packages = parse_dpkg("\n".join(line for line in text.splitlines() if not line.startswith("#")))
    if not {"stack", "request", "epoch"} <= fields.keys() or not packages or not fields["epoch"].isdigit():
        raise InputError("not a base lock of ours", where=str(path), fix="run nox -s lock-<stack>")
    return BaseLock(
        stack=fields["stack"],
        request_sha256=fields["request"],
        epoch=int(fields["epoch"]),
        packages=packages,
    )


def drift(locked: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Which packages are not what the lock says, one line each; empty when nothing drifted."""
    lines = []
    for name in sorted(locked.keys() | found.keys()):
        before, after = locked.get(name), found.get(name)
        if before != after:
            lines.append(f"{name}: locked {before or 'absent'}, found {after or 'absent'}")
    return lines
