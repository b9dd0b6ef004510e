"""Two censuses of the same thing: is any library worse than before?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.census.architecture import parse_architecture, version_key
from tooling.census.records import Service
from tooling.census.rules import describe
from tooling.errors import InputError
from tooling.gates.records import Check, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.census.architecture import Architecture
    from tooling.census.records import CensusRecord, Library

#: From best to worst.
_ORDER = (Service.SASS, Service.PTX, Service.NONE)
#: Parts of a path that change with a package's build and not with what the library is.
_BUILD_PARTS = re.compile(r"-[0-9a-f]{8}(?=\.so)|(?<=\.so)(?:\.\d+)+|\.cpython-\d+[-\w]*|\.abi3")
_BUILD_HASH = re.compile(r"\.[0-9a-f]{8}(?=\.so)")


def identity(path: str) -> str:
    """The path without what a new version of the same package changes in it."""
    return _BUILD_HASH.sub("", _BUILD_PARTS.sub("", path))


def compare(before: CensusRecord, after: CensusRecord, devices: Iterable[str]) -> tuple[Check, ...]:
    """One check a target: a library gone, or one that serves the target less well than before, fails.

    Args:
        before: The last record.
        after: The new one.
        devices: The targets, e.g. `12.0`.

    Raises:
        InputError: No target was named, or the last record has no device code to compare with.
    """
    targets = [parse_architecture(device) for device in devices]
    if not targets:
        raise InputError("no target architecture", fix="name at least one, e.g. 12.0")
    old = _by_identity(before)
    if not old:
        raise InputError(f"the earlier census of {before.source} has no device code to compare with")
    new = _by_identity(after)
    return tuple(_check(old, new, target) for target in targets)


def _by_identity(record: CensusRecord) -> dict[str, list[Library]]:
    found: dict[str, list[Library]] = {}
    for library in record.with_device_code():
        found.setdefault(identity(library.path), []).append(library)
    return found


def _check(old: dict[str, list[Library]], new: dict[str, list[Library]], target: Architecture) -> Check:
    losses = [line for name in sorted(old) for line in _losses(name, old[name], new.get(name, []), target)]
    return Check(
        name=f"not worse than before on {target.capability}",
        verdict=Verdict.FAIL if losses else Verdict.PASS,
        seen=f"{len(losses)} losses against the last record"
        if losses
        else f"{len(old)} libraries, none is worse",
        value=len(losses),
        threshold=0,
        details=tuple(losses),
    )


def _losses(name: str, before: list[Library], after: list[Library], target: Architecture) -> Iterator[str]:
    """What one library lost. Several files of one identity are compared in the order of their paths."""
    if len(after) < len(before):
        yield f"{name}: {len(before) - len(after)} of {len(before)} files with device code are gone"
    for old, new in zip(before, after, strict=False):
        had, has = old.coverage(target), new.coverage(target)
        change = f"had {describe(old, had)}, has {describe(new, has)}"
        if _ORDER.index(has.service) > _ORDER.index(had.service):
            yield f"{new.path}: {change}"
        elif had.service is Service.SASS and has.sass_entries < had.sass_entries:
            yield f"{new.path}: fewer entries of machine code: {change}"
        elif had.service is has.service is Service.PTX:
            if has.ptx_entries < had.ptx_entries:
                yield f"{new.path}: fewer entries of PTX: {change}"
            elif had.least_driver != has.least_driver and (
                "unknown" in (has.least_driver, had.least_driver)
                or version_key(has.least_driver) > version_key(had.least_driver)
            ):
                yield f"{new.path}: needs a newer driver: {change}"
