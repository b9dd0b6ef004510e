"""The report of a pruning, and what a stack says about it, as checked records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from tooling.census.architecture import parse_architecture
from tooling.errors import InputError
from tooling.prune.containers import Policy
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_SHA256 = r"^([0-9a-f]{64})?$"


class PrunedFile(Record):
    """What became of one file with device code. All sizes in bytes.

    Attributes:
        path: Relative to the root of the report.
        status: `unchanged` when it has no code that only other architectures run.
        how: `shrunk`: unused ranges left the file; `zeroed`: it has its old size, and zeros there.
        reason: Why it was skipped, or not shrunk.
        earlier: An earlier run over the same place did it, and this one found it as that left it.
        bytes_before: Size of the file as its wheel has it.
        bytes_after: Size of the file now, 0 when deleted.
        bytes_removed: Payloads that are gone.
        bytes_zeroed: Zeros that stand where code was, and compress to nothing.
        bytes_kept: Payloads that a target may need.
        bytes_foreign_left: Payloads that no target runs and that are still there: embedded in data, or skipped.
        entries_removed: Number of pieces of device code that are gone.
        containers_emptied: Containers that have no entry left.
        holes: Ranges that were taken out.
        targets_removed: E.g. `sass 9.0a`.
        sha256_before: Of a pruned or deleted file, hex: what its wheel records.
        sha256_after: Of a pruned file, hex.
    """

    path: str
    status: Literal["pruned", "unchanged", "skipped", "deleted"]
    how: Literal["", "shrunk", "zeroed"] = ""
    reason: str = ""
    earlier: bool = False
    bytes_before: int = Field(ge=0)
    bytes_after: int = Field(ge=0)
    bytes_removed: int = Field(ge=0)
    bytes_zeroed: int = Field(ge=0)
    bytes_kept: int = Field(ge=0)
    bytes_foreign_left: int = Field(ge=0)
    entries_removed: int = Field(ge=0)
    containers_emptied: int = Field(ge=0)
    holes: int = Field(ge=0)
    targets_removed: tuple[str, ...]
    sha256_before: str = Field(pattern=_SHA256)
    sha256_after: str = Field(pattern=_SHA256)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        hashes = {"pruned": (True, True), "deleted": (True, False)}.get(self.status, (False, False))
        if (bool(self.sha256_before), bool(self.sha256_after)) != hashes:
            raise ValueError(f"{self.path}: the hashes do not fit status {self.status}")
        if self.status == "skipped" and not self.reason:
            raise ValueError(f"{self.path}: skipped without a reason")
        return self


class Unread(Record):
    """A file that begins like one with device code and could not be read, or a folder that could not."""

    path: str
    reason: str


class DroppedFile(Record):
    """A file that the stack lists as not needed, and that is gone.

    Attributes:
        path: Relative to the root of the report.
        rule: The pattern that it fitted.
        bytes: Its size.
        sha256: Of the file as its wheel has it, hex.
    """

    path: str
    rule: str
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class StrippedFile(Record):
    """A library without symbols and debugging information, or one that kept them, with the reason.

    It comes before the removal of device code: `sha256_after` is then the file that was pruned.
    """

    path: str
    status: Literal["stripped", "kept"]
    reason: str = ""
    rule: str
    bytes_before: int = Field(ge=0)
    bytes_after: int = Field(ge=0)
    sha256_before: str = Field(pattern=_SHA256)
    sha256_after: str = Field(pattern=_SHA256)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        changed = self.status == "stripped"
        if (bool(self.sha256_before), bool(self.sha256_after)) != (changed, changed):
            raise ValueError(f"{self.path}: the hashes do not fit status {self.status}")
        if changed == bool(self.reason):
            raise ValueError(f"{self.path}: kept without a reason, or stripped with one")
        return self


class LinkedFile(Record):
    """A name whose content is that of another file of its folder, now one file on the disk.

    Attributes:
        path: Relative to the root of the report.
        rule: The pattern that it fitted.
        to: The other name.
        bytes: Size of the copy that is gone; the content is as it was.
    """

    path: str
    rule: str
    to: str
    bytes: int = Field(ge=0)


class PruneReport(Record):
    """What a pruning did.

    Attributes:
        root: The folder, as its own machine names it.
        keep: Targets, e.g. `12.0`.
        files: Every file with device code, sorted by path.
        unread: What could not be looked at.
        dropped: Files of any kind that are gone, sorted by path.
        stripped: Libraries whose symbols are gone, or were to go, sorted by path.
        linked: Names that share their content with another one, sorted by path.
        totals: Number of files of each status, and sums of the files' byte counts.
    """

    format: Literal[1] = 1
    root: str
    keep: tuple[str, ...] = Field(min_length=1)
    files: tuple[PrunedFile, ...]
    unread: tuple[Unread, ...]
    dropped: tuple[DroppedFile, ...] = ()
    stripped: tuple[StrippedFile, ...] = ()
    linked: tuple[LinkedFile, ...] = ()
    totals: dict[str, int]

    def with_status(self, status: str) -> tuple[PrunedFile, ...]:
        """The files of one status."""
        return tuple(file for file in self.files if file.status == status)

    def accepts(self, path: str, wheel_sha256: str, found_sha256: str) -> bool:
        """Whether a file is as its wheel has it, or as it was pruned from that.

        Args:
            path: Relative to the root of this report.
            wheel_sha256: What the wheel's RECORD says, hex.
            found_sha256: What is there, hex.
        """
        if found_sha256 == wheel_sha256:
            return True
        steps = [(one.sha256_before, one.sha256_after) for one in self.stripped if one.path == path]
        steps += [
            (one.sha256_before, one.sha256_after) for one in self.with_status("pruned") if one.path == path
        ]
        at = wheel_sha256
        for before, after in steps:
            if before and before != at:
                return False
            at = after or at
        return bool(steps) and at == found_sha256


class PruneRules(Record):
    """What a stack says about pruning: patterns of files, matched against the end of a path, with the reason.

    Attributes:
        drop_ptx: PTX goes where machine code in the same container serves every target.
        embedded: Payloads in containers that the library finds on its own are zeroed. Only for libraries that
            were tried: one may check its data.
        delete: The file goes; an error when it has code that a target can run.
        skip: The device code of the file is left as it is.
        drop: Files of any kind go; an error when they have code that a target can run. The check of contents
            refuses one that something which stays needs or imports.
        strip: Libraries lose their symbol tables and debugging information, which no loader maps.
        link: Equal files of one folder become names of one file.
    """

    drop_ptx: dict[str, str] = Field(default_factory=dict)
    embedded: dict[str, str] = Field(default_factory=dict)
    delete: dict[str, str] = Field(default_factory=dict)
    skip: dict[str, str] = Field(default_factory=dict)
    drop: dict[str, str] = Field(default_factory=dict)
    strip: dict[str, str] = Field(default_factory=dict)
    link: dict[str, str] = Field(default_factory=dict)

    @field_validator("drop_ptx", "embedded", "delete", "skip", "drop", "strip", "link")
    @classmethod
    def _has_reasons(cls, patterns: dict[str, str]) -> dict[str, str]:
        for pattern, reason in patterns.items():
            if not pattern.strip("*/ ") or not reason.strip():
                raise ValueError(f"pattern {pattern!r} matches everything, or has no reason")
        return patterns

    def policy(self, targets: Iterable[str]) -> Policy:
        """What to keep for some targets, e.g. `12.0` or `sm_120`.

        Raises:
            InputError: A target is not an architecture, or there is none.
        """
        parsed = tuple(parse_architecture(target) for target in targets)
        if not parsed:
            raise InputError("no target architecture to keep", fix="name at least one, e.g. sm_120")
        return Policy(
            parsed,
            tuple(self.drop_ptx),
            tuple(self.embedded),
            tuple(self.delete),
            tuple(self.skip),
            tuple(self.drop),
            tuple(self.strip),
            tuple(self.link),
        )


def load_prune_rules(path: Path) -> PruneRules:
    """Read the rules from a YAML file.

    Raises:
        InputError: The file is missing or says something that cannot be a rule.
    """
    try:
        return PruneRules.model_validate(yaml.safe_load(path.read_text("utf-8")) or {})
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"the prune rules cannot be read: {error}", where=str(path)) from error
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise InputError("the prune rules are not valid", where=str(path), details=problems) from error
