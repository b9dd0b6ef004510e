"""Records what a series does to the package as it is shipped: the hash of every file under every selection."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import yaml

from tooling.patches.apply import Content, apply_file
from tooling.patches.errors import PatchError
from tooling.patches.overlay import sha256, tree_sha256
from tooling.patches.series import (
    FileRecord,
    PatchFile,
    Series,
    SeriesRecord,
    Switch,
    number_of,
    selections_of_file,
    switched,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_HEADLINE = (
    "# Written by `blackwell-stacks patch-record {name}` from the shipped package; only `notes` is typed.\n"
)


def record_series(series: Series, read: Callable[[str], bytes | None]) -> SeriesRecord:
    """Apply every selection of patches to the pristine files and record the results.

    Args:
        series: The series.
        read: Gives the bytes of a pristine file below site-packages, None where there is none.

    Returns:
        The new record, with the notes of the old one.

    Raises:
        PatchError: The series with every patch at its default does not apply, or one patch alone does not.
    """
    paths = sorted({diff.path for patch in series.patches for diff in patch.diffs})
    files = {path: _record_file(series, path, read(path)) for path in paths}
    switches = switched(series)
    on = [patch for patch in series.patches if switches[patch.name] is Switch.ON]
    tree: dict[str, str] = {}
    for path in paths:
        numbers = [number_of(patch.name) for patch in on if any(diff.path == path for diff in patch.diffs)]
        if numbers:
            tree[path] = files[path].patched["+".join(numbers)]
    return SeriesRecord(
        series=series.name,
        package=series.package,
        version=series.version,
        notes=series.recorded.notes if series.recorded else (),
        tree=tree_sha256(tree),
        files=files,
    )


def _record_file(series: Series, path: str, pristine: bytes | None) -> FileRecord:
    selections = selections_of_file(series, path)
    default = tuple(patch for patch in selections[-1] if patch.header.default == "on")
    required = {default} if default else set()
    patched = {}
    for chosen in selections:
        # A selection that does not fit together is simply not recorded, and so can never be built. That of the
        # defaults must fit; and a patch that is off must fit on top of them or alone.
        if chosen in required:
            patched[_key(chosen)] = _result(path, chosen, pristine)
        else:
            with suppress(PatchError):
                patched[_key(chosen)] = _result(path, chosen, pristine)
    for patch in selections[-1]:
        if not any(number_of(patch.name) in key.split("+") for key in patched):
            _result(path, (patch,), pristine)  # raises: this patch fits in no selection at all
    return FileRecord(upstream=None if pristine is None else sha256(pristine), patched=patched)


def _key(chosen: Sequence[PatchFile]) -> str:
    return "+".join(number_of(patch.name) for patch in chosen)


def _result(path: str, chosen: Sequence[PatchFile], pristine: bytes | None) -> str:
    content = None if pristine is None else Content.of(pristine)
    for patch in chosen:
        diff = next(diff for diff in patch.diffs if diff.path == path)
        content = apply_file(patch.name, diff, content)
    assert content is not None  # noqa: S101  # at least one patch was applied
    return sha256(content.data)


def write_record(record: SeriesRecord, path: Path) -> bool:
    """Write `series.yaml`.

    Returns:
        Whether the file changed.
    """
    body = yaml.safe_dump(record.model_dump(mode="json"), sort_keys=False, width=110, allow_unicode=True)
    text = _HEADLINE.format(name=record.series) + body
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8")
    return True
