"""From a name to all that a deploy needs: verified release, image, stack, signed records."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tooling.build.context import LABEL
from tooling.deploy.image import image_facts, signed_records, tail_of
from tooling.deploy.preflight import check_status
from tooling.deploy.request import Wanted
from tooling.errors import CheckError, InputError
from tooling.registry.layout import Layout
from tooling.release.locate import release_or_digest
from tooling.release.verify import verify
from tooling.stack import load_stack

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.release.evidence import Source
    from tooling.release.records import Status
    from tooling.sign.keys import Trust

#: Name of a repository that exists nowhere: of an image that came from a directory.
NOWHERE = "localhost/blackwell-stacks"


def resolve_release(
    source: Source,
    name: str,
    *,
    trust: Trust,
    root: Path,
    bring: bool = False,
    accepted: Status | None = None,
    reason: str = "",
    keep: int = 3,
) -> Wanted:
    """Find and verify a release; everything after this goes by digest.

    Args:
        source: Registry or layout that holds it.
        name: Release, channel or digest.
        trust: Whose signatures are believed.
        root: The checkout with the stacks.
        bring: This machine brings the image to the hosts.
        accepted: A status below `qualified` that the operator accepts.
        reason: Why.
        keep: Earlier generations whose images stay on the hosts.

    Raises:
        ToolkitError: The release does not hold, is not proved far enough, or its image does not fit its stack.
    """
    release = verify(source, release_or_digest(source, name, trust), trust, now=datetime.now(UTC))
    stack = load_stack(release.release.stack, root).stack
    note = check_status(release, stack, accepted, reason)
    facts = image_facts(source, release.digest, stack.platform.architecture, tail_of(source))
    label = facts.labels.get(f"{LABEL}.stack", stack.name)
    if label != stack.name:
        raise CheckError(
            f"the image is one of stack {label!r} and was released as {stack.name!r}",
            where=f"{source.name}@{release.digest}",
            fix="release the right image",
        )
    from_layout = isinstance(source, Layout)
    if from_layout and not bring:
        raise InputError(
            "a directory cannot be pulled from by hosts", where=source.name, fix="add --via ssh, or import it"
        )
    return Wanted(
        reference=f"{NOWHERE}/{stack.name}" if from_layout else source.name,
        release=release,
        image=facts,
        stack=stack,
        records=signed_records(source, release, trust),
        trust=tuple(key.pem().decode() for key in trust.keys),
        accepted=note,
        pull="present" if bring else "registry",
        keep=keep,
    )
