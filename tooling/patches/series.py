"""Reads patch series: headers, switches of a stack, recorded hashes; and plans their application."""

from __future__ import annotations

import re
from datetime import date  # pydantic reads it
from email.parser import HeaderParser
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator

from tooling.errors import InputError
from tooling.patches.diff import FileDiff, parse_diff
from tooling.patches.overlay import Plan, PlannedPatch, tree_sha256
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Where the series of this project live, one folder each.
SERIES_DIR = Path(__file__).resolve().parents[2] / "images" / "patches"
RECORD_NAME = "series.yaml"
_PATCH_NAME = re.compile(r"\d{4}-[a-z0-9][a-z0-9-]*\.patch")
_SERIES_NAME = re.compile(r"(?P<package>.+)-(?P<version>\d[^-]*)")
#: Every selection of the patches of one file has its hash recorded: 2^k - 1 of them.
MOST_PATCHES_PER_FILE = 5


class Header(Record):
    """The header of a patch: the fields of DEP-3 and what this project asks on top.

    Attributes:
        description: What the patch does; the first line is its title.
        origin: Where the edit comes from: an upstream commit or request, or `vendor` for our own.
        bug: Address of the upstream issue.
        forwarded: `no`, `not-needed` (with the reason after it), or the address of the upstream request.
        applied_upstream: Version or commit that has the change.
        last_update: Day of the last review.
        gate: The condition in the code that keeps SM120 out, lets it in wrongly, or mishandles it.
        effect_expected: What is different afterwards, such that a test can look for it.
        evidence: What supports the edit, and on which hardware.
        drop_when: When the patch goes, best as a requirement such as `flashinfer-python>=0.6.17`.
        default: `off` for a patch that may harm until it is measured.
    """

    description: str = Field(alias="Description", min_length=1)
    origin: str = Field(alias="Origin", min_length=1)
    bug: str = Field(default="", alias="Bug")
    forwarded: str = Field(alias="Forwarded", min_length=1)
    applied_upstream: str = Field(default="", alias="Applied-Upstream")
    last_update: date = Field(alias="Last-Update")
    author: str = Field(default="", alias="Author")
    gate: str = Field(alias="Gate", min_length=1)
    effect_expected: str = Field(alias="Effect-Expected", min_length=1)
    evidence: str = Field(alias="Evidence", min_length=1)
    drop_when: str = Field(alias="Drop-When", min_length=1)
    default: Literal["on", "off"] = Field(default="on", alias="Default")

    @field_validator("default", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @property
    def title(self) -> str:
        """The first line of the description."""
        return self.description.splitlines()[0]


class PatchFile(Record):
    """One patch of a series: its name (without `.patch`), header, whole text and diffs."""

    name: str
    header: Header
    text: str
    diffs: tuple[FileDiff, ...]


class FileRecord(Record):
    """Recorded hashes of one file.

    Attributes:
        upstream: Hex SHA-256 of the file as the package ships it; None for a file that a patch makes.
        patched: Numbers of the patches that are on and change this file, joined by `+` -> hex SHA-256.
    """

    upstream: str | None
    patched: dict[str, str]


class SeriesRecord(Record):
    """The content of `series.yaml`; a command writes it.

    Attributes:
        series: Name of the folder.
        package: Distribution that owns the files.
        version: Its version.
        notes: What was considered and left out, with the reason.
        tree: Hash of the changed files with every patch at its default (see `tree_sha256`).
        files: Path -> hashes.
    """

    series: str
    package: str
    version: str
    notes: tuple[str, ...] = ()
    tree: str
    files: dict[str, FileRecord]


class Series(Record):
    """A series as it stands in its folder.

    Attributes:
        name: Name of the folder, `<package>-<version>`.
        package: Distribution that owns the files.
        version: The only version that the series is for.
        patches: In order, at least one.
        recorded: The hashes; None while nothing was recorded yet.
    """

    name: str
    package: str
    version: str
    patches: tuple[PatchFile, ...]
    recorded: SeriesRecord | None


class Switch(StrEnum):
    """Whether a patch is used."""

    ON = "on"
    OFF = "off"


class Selection(Record):
    """What a stack says of one series.

    Attributes:
        series: Name of the series.
        enable: Patches to use although they are off by default: name, or its number.
        disable: Patches not to use.
    """

    series: str
    enable: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()


def parse_header(name: str, text: str, where: str = "") -> Header:
    """Read the header that stands before the diff.

    Raises:
        InputError: A field is missing, unknown, twice there or has a wrong value; or a line is no field.
    """
    head = re.split(r"^(?:---|diff --git)(?: |$)", text, maxsplit=1, flags=re.MULTILINE)[0]
    message = HeaderParser().parsestr(head.split("\n\n", 1)[0] + "\n\n")
    fields = [(key, re.sub(r"\n\s*", "\n", str(value)).strip()) for key, value in message.items()]
    stray = [str(defect) for defect in message.defects]
    if message.get_payload():
        stray.append(f"no field: {str(message.get_payload()).splitlines()[0]!r}")
    keys = [key for key, _ in fields]
    stray += [f"{key}: given twice" for key in sorted(set(keys)) if keys.count(key) > 1]
    try:
        header = Header.model_validate(dict(fields))
    except ValidationError as error:
        stray += [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        header = None
    if stray or header is None:
        raise InputError(
            f"the header of patch {name} is not as it must be",
            where=where,
            details=stray,
            fix="write the DEP-3 fields and Gate, Effect-Expected, Evidence, Drop-When before the diff",
        )
    return header


def load_series(name: str, root: Path = SERIES_DIR) -> Series:
    """Read a series and its record.

    Args:
        name: Name of its folder, `<package>-<version>`.
        root: The folder of all series.

    Raises:
        InputError: No such series, no patch in it, a stray file, or a bad header.
        PatchError: A diff that cannot be used.
    """
    folder = root / name
    parts = _SERIES_NAME.fullmatch(name)
    if not parts or not folder.is_dir():
        known = sorted(path.name for path in root.glob("*") if path.is_dir())
        raise InputError(
            f"there is no patch series {name!r}",
            where=str(root),
            details=known,
            fix="name one of the series above",
        )
    patches = []
    for path in sorted(folder.iterdir()):
        if path.name in (RECORD_NAME, "README.md"):
            continue
        if not _PATCH_NAME.fullmatch(path.name):
            raise InputError(
                f"not a patch name: {path.name}", where=str(folder), fix="name patches NNNN-what-it-does.patch"
            )
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read()
        patches.append(
            PatchFile(
                name=path.stem,
                header=parse_header(path.stem, text, str(path)),
                text=text,
                diffs=parse_diff(path.stem, text),
            )
        )
    if not patches:
        raise InputError(
            f"series {name} holds no patch", where=str(folder), fix="add a patch or remove the folder"
        )
    _refuse_equal_numbers(patches, folder)
    return Series(
        name=name,
        package=parts["package"],
        version=parts["version"],
        patches=tuple(patches),
        recorded=_read_record(name, folder / RECORD_NAME),
    )


def _refuse_equal_numbers(patches: Sequence[PatchFile], folder: Path) -> None:
    numbers = [number_of(patch.name) for patch in patches]
    for number in numbers:
        if numbers.count(number) > 1:
            raise InputError(
                f"two patches have the number {number}", where=str(folder), fix="give each its own number"
            )


def number_of(name: str) -> str:
    """The number with which the name of a patch begins."""
    return name[:4]


def _read_record(name: str, path: Path) -> SeriesRecord | None:
    if not path.is_file():
        return None
    try:
        record = SeriesRecord.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (ValidationError, yaml.YAMLError) as error:
        raise InputError(
            "the record of the series cannot be read",
            where=str(path),
            details=str(error).splitlines()[:6],
            fix=f"run `blackwell-stacks patch-record {name}`",
        ) from error
    if record.series != name:
        raise InputError(
            f"the record is that of series {record.series}",
            where=str(path),
            fix=f"run `blackwell-stacks patch-record {name}`",
        )
    return record


def switched(series: Series, selection: Selection | None = None) -> dict[str, Switch]:
    """Decide for every patch whether it is on.

    Args:
        series: The series.
        selection: What the stack says; None for every patch's own default.

    Raises:
        InputError: A name that is no patch of the series or is given on both sides, or nothing is left on.
    """
    answer = {patch.name: Switch(patch.header.default) for patch in series.patches}
    if selection is None:
        return answer
    enable, disable = (_names(series, given) for given in (selection.enable, selection.disable))
    if both := sorted(enable & disable):
        raise InputError(
            f"patches of series {series.name} both enabled and disabled",
            details=both,
            fix="decide for one in the stack's file",
        )
    answer |= dict.fromkeys(enable, Switch.ON) | dict.fromkeys(disable, Switch.OFF)
    if Switch.ON not in answer.values():
        raise InputError(
            f"no patch of series {series.name} is on",
            fix="enable one, or take the series out of the stack's file",
        )
    return answer


def _names(series: Series, given: Iterable[str]) -> set[str]:
    by_word = {number_of(patch.name): patch.name for patch in series.patches}
    by_word |= {patch.name: patch.name for patch in series.patches}
    unknown = sorted(word for word in given if word not in by_word)
    if unknown:
        raise InputError(
            f"series {series.name} has no such patch",
            details=unknown,
            fix=f"it has: {', '.join(patch.name for patch in series.patches)}",
        )
    return {by_word[word] for word in given}


def plan_for(series: Series, selection: Selection | None = None) -> Plan:
    """Decide the switches and put the recorded hashes of that very selection beside the patches.

    Raises:
        InputError: Nothing was recorded, the record lacks this selection, or the switches are wrong.
    """
    switches = switched(series, selection)
    if series.recorded is None:
        raise InputError(
            f"series {series.name} has no recorded hashes",
            fix=f"run `blackwell-stacks patch-record {series.name}`",
        )
    seen: dict[str, list[str]] = {}
    planned = []
    for patch in series.patches:
        if switches[patch.name] is Switch.OFF:
            continue
        hashes = {}
        for diff in patch.diffs:
            earlier = seen.setdefault(diff.path, [])
            before = _recorded(series, diff.path, earlier)
            earlier.append(number_of(patch.name))
            after = _recorded(series, diff.path, earlier)
            hashes[diff.path] = (before, str(after))
        planned.append(PlannedPatch(patch.name, patch.text, hashes))
    return Plan(
        series=series.name,
        package=series.package,
        version=series.version,
        patches=tuple(planned),
        off=tuple(name for name, switch in switches.items() if switch is Switch.OFF),
        tree=tree_sha256({path: str(_recorded(series, path, numbers)) for path, numbers in seen.items()}),
    )


def _recorded(series: Series, path: str, numbers: Sequence[str]) -> str | None:
    assert series.recorded is not None  # noqa: S101  # the caller looked
    file = series.recorded.files.get(path)
    if file is not None:
        if not numbers:
            return file.upstream
        if "+".join(numbers) in file.patched:
            return file.patched["+".join(numbers)]
    raise InputError(
        f"series {series.name} has no recorded hash for this selection of patches",
        where=f"{path}: {' + '.join(numbers) or 'as shipped'}",
        fix=f"if the selection makes sense, run `blackwell-stacks patch-record {series.name}`; "
        "if one patch needs the other, enable both",
    )


def selections_of_file(series: Series, path: str) -> list[tuple[PatchFile, ...]]:
    """Every non-empty selection, in order, of the patches that change a file.

    Raises:
        InputError: So many patches change the file that not every selection can be recorded.
    """
    touching = [patch for patch in series.patches if any(diff.path == path for diff in patch.diffs)]
    if len(touching) > MOST_PATCHES_PER_FILE:
        raise InputError(
            f"{len(touching)} patches change the same file, at most {MOST_PATCHES_PER_FILE} may",
            where=path,
            fix="merge patches that are never used apart",
        )
    return [chosen for count in range(1, len(touching) + 1) for chosen in combinations(touching, count)]
