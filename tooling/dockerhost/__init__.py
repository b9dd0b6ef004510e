"""The Docker Engine of this host: find it or set it up, find a client that can build, look at its disk."""

from tooling.dockerhost.build_client import BuildClient, find_build_client
from tooling.dockerhost.daemon import ensure_engine
from tooling.dockerhost.disk import require_disk

__all__ = ["BuildClient", "ensure_engine", "find_build_client", "require_disk"]
