"""Names of images: `[host[:port]/]repository[:tag][@sha256:<64 hex>]`, as the Docker Engine reads them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from tooling.errors import InputError

#: Where names without a host live, and the host that really answers for them.
DEFAULT_HOST = "docker.io"
_API_HOSTS = {DEFAULT_HOST: "registry-1.docker.io"}

_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:\[[0-9a-fA-F:]+\]|{_LABEL}(?:\.{_LABEL})*)(?::\d{{1,5}})?")


@dataclass(frozen=True)
class Reference:
    """A parsed image name.

    Attributes:
        host: Host and port of the registry, as people write it.
        repository: Name in the registry.
        tag: Empty when none was given.
        digest: `sha256:<64 hex>`, empty when none was given.
    """

    host: str
    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.host}/{self.repository}{tag}{digest}"

    @property
    def name(self) -> str:
        """Host and repository, without tag and digest."""
        return f"{self.host}/{self.repository}"

    @property
    def api_host(self) -> str:
        """The host that answers the API."""
        return _API_HOSTS.get(self.host, self.host)

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is on this machine; only then plain HTTP is used unasked."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a `host[:port]` is this machine itself."""
    name = host.rsplit(":", 1)[0] if re.search(r"[^:]:\d+$|\]:\d+$", host) else host
    name = name.strip("[]")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def parse_reference(text: str) -> Reference:
    """Read an image name.

    Raises:
        InputError: It is no image name.
    """
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise InputError(f"{digest!r} is no digest", where=text, fix="write @sha256: and 64 hex digits")
    first, slash, remainder = rest.partition("/")
    if slash and (any(mark in first for mark in ".:") or first == "localhost"):
        host, path = first, remainder
    else:
        host, path = DEFAULT_HOST, rest
    path, colon, tag = path.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise InputError(f"{tag!r} is no tag", where=text, fix="use letters, digits, dot, dash, underscore")
    if not _HOST.fullmatch(host) or not _REPOSITORY.fullmatch(path):
        raise InputError(
            f"{text!r} is no image name", fix="write host[:port]/repository[:tag][@sha256:...], in lower case"
        )
    if host == DEFAULT_HOST and "/" not in path:
        path = f"library/{path}"
    return Reference(host, path, tag, digest)
