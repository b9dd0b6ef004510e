"""Where distribution packages come from: the machine's own apt settings, for whatever suite is asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What apt prints about each of its configured indexes; one line an index.
INDEXTARGETS_ARGV = (
    "apt-get",
    "indextargets",
    "--format",
    "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SIGNED_BY)",
    "Created-By: Packages",
)
_POCKET = re.compile(r"^(?P<suite>[a-z]+)(?P<pocket>(?:-[a-z]+)?)$")


def sources_for(suite: str, indextargets: Iterable[str], keyring: str) -> list[str]:
    """Sources (one-line format of apt) for a suite, derived from what this machine uses for its own suite.

    Args:
        suite: Suite wanted, e.g. `bookworm`.
        indextargets: Output lines of `INDEXTARGETS_ARGV`.
        keyring: Keyring that signs the distribution; used where a source names none.

    Raises:
        InputError: The machine has no source of the distribution to derive from.
    """
    found: dict[str, None] = {}
    for line in indextargets:
        uri, release, component, signed_by = [*line.strip().split("|"), "", "", ""][:4]
        match = _POCKET.match(release)
        if not match or component != "main" or not _is_distribution(uri):
            continue
        key = signed_by if signed_by.startswith("/") else keyring
        found[f"deb [signed-by={key}] {uri} {suite}{match['pocket']} main"] = None
    if not found:
        raise InputError(
            f"this machine's apt has no source of the distribution that has suite {suite!r}",
            where="apt-get indextargets",
            fix="build on Debian, or add a Debian mirror to apt's sources",
        )
    return list(found)


def _is_distribution(uri: str) -> bool:
    """Whether a repository is the distribution itself or its security part, on whatever mirror."""
    return re.search(r"/debian(-security)?/?$", uri) is not None
