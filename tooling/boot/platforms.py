"""Can this host run that image and that command? Known before anything is pulled or started."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from tooling.boot.failure import BootError, Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Names of `uname -m` beside those of Go, which images use.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})


def architecture(name: str) -> str:
    """An architecture as images write it: `x86_64` is `amd64`, `linux/arm64/v8` is `arm64`."""
    parts = name.strip().lower().split("/")
    name = parts[1] if len(parts) > 1 else parts[0]
    return _ARCHITECTURES.get(name, name)


def check_architecture(image: str, of_image: str, of_host: str) -> None:
    """Refuse an image of another architecture before it is started.

    Raises:
        BootError: They differ.
    """
    check_platforms(image, (of_image,), of_host)


def check_platforms(image: str, platforms: Sequence[str], host: str) -> None:
    """Refuse an image whose index has nothing for this host before it is pulled.

    Args:
        image: Reference, for the message.
        platforms: Platforms of the index, e.g. `linux/amd64`, or architectures.
        host: The host's own, in either spelling.

    Raises:
        BootError: None of them fits, or the index lists none.
    """
    # An index also lists attestations, as platform `unknown/unknown`.
    offered = sorted({architecture(platform) for platform in platforms} - {"unknown", ""})
    if architecture(host) in offered:
        return
    if not offered:
        raise BootError(
            f"image {image} names no platform at all",
            fix="look at its index; it may hold attestations only",
            reason=Reason.WRONG_ARCHITECTURE,
        )
    raise BootError(
        f"image {image} is built for {', '.join(offered)} and this host is {architecture(host)}",
        fix="build or pull the image for the host's architecture; a restart only repeats it",
        reason=Reason.WRONG_ARCHITECTURE,
    )


def check_command(entry_point: Sequence[str], command: Sequence[str]) -> None:
    """Refuse a command that repeats the entry point: a shell would read its own binary as a script.

    Raises:
        BootError: It does.
    """
    if len(entry_point) != 1 or not command:
        return
    first, second = PurePosixPath(entry_point[0]).name, PurePosixPath(command[0]).name
    if first in _SHELLS and second in _SHELLS:
        raise BootError(
            f"the command repeats the entry point: {entry_point[0]} would read {command[0]} as a script",
            fix=f"drop the leading {command[0]} from the command, or clear the entry point",
            reason=Reason.BAD_COMMAND,
        )
