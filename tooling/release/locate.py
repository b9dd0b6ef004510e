"""Find what a person means by a release: in a registry or a layout directory, by name, digest or channel."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.errors import InputError
from tooling.registry.layout import Layout
from tooling.registry.reference import parse_reference
from tooling.registry.repository import Repository
from tooling.release.channels import resolve
from tooling.release.names import parse_release_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.registry.transport import Settings
    from tooling.release.evidence import Source
    from tooling.sign.keys import Trust

#: How a layout directory is written in place of a registry.
LAYOUT_PREFIX = "oci:"


@contextmanager
def open_source(image: str, settings: Settings) -> Iterator[tuple[Source, str]]:
    """A registry's repository or a layout directory (`oci:DIRECTORY[:TAG]`), and the tag or digest in it.

    Raises:
        InputError: It is no image name.
        LayoutError: The directory is no layout.
    """
    if image.startswith(LAYOUT_PREFIX):
        directory, _, tag = image.removeprefix(LAYOUT_PREFIX).partition(":")
        layout = Layout.open(Path(directory))
        yield layout, tag or next(iter(layout.tags()), "")
        return
    reference = parse_reference(image)
    with Repository(reference, settings) as repository:
        yield repository, reference.digest or reference.tag


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
