"""What a person means by a release: its name, a digest, or a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.errors import InputError
from tooling.release.channels import resolve
from tooling.release.names import parse_release_name

if TYPE_CHECKING:
    from tooling.release.evidence import Source
    from tooling.sign.keys import Trust


def release_or_digest(source: Source, name: str, trust: Trust) -> str:
    """What to verify: a release or digest as it is, a channel by its signed log, never by its tag alone.

    Raises:
        InputError: No name was given.
    """
    if not name:
        raise InputError("which release is meant?", where=source.name, fix="add a tag, see `releases`")
    if name.startswith("sha256:") or parse_release_name(name):
        return name
    return resolve(source, name, trust).entry.release
