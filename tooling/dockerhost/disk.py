"""Is there room for what is about to be downloaded? Asked before the first byte."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    import docker

GB = 1_000_000_000


def free_bytes(client: docker.DockerClient) -> tuple[str, int] | None:
    """The engine's data directory and the free bytes of its file system; None when it is not on this host."""
    base_url = client.api.base_url
    local = base_url.startswith("http+docker://") or "localhost" in base_url or "127.0.0.1" in base_url
    directory = Path(client.info()["DockerRootDir"])
    if not local or not directory.is_dir():
        return None
    return str(directory), shutil.disk_usage(directory).free


def require_disk(client: docker.DockerClient, needed_gb: float, say: Callable[[str], None]) -> None:
    """Refuse to begin when the engine's disk cannot hold the work.

    Args:
        client: The engine.
        needed_gb: GB (10^9 bytes) that must be free.
        say: Is told when the disk cannot be looked at.

    Raises:
        EngineError: Too little is free.
    """
    found = free_bytes(client)
    if found is None:
        say(f"the engine is on another host: its disk was not checked, {needed_gb:g} GB are needed")
        return
    directory, free = found
    if free < needed_gb * GB:
        raise EngineError(
            f"{needed_gb:g} GB of free disk are needed and {free / GB:.1f} GB are there",
            where=directory,
            fix="free space (docker system df shows what the engine holds), or move the engine's data-root",
        )
