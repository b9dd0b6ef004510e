"""What can be wrong with a patch, always told with the names of patch, file and hunk.

Standard library only: it travels into image builds with the applier.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tooling.errors import CheckError


class Fault(StrEnum):
    """Why a patch was refused."""

    MALFORMED = "malformed"
    ALREADY_APPLIED = "already-applied"
    NO_OP = "no-op"
    CONFLICT = "conflict"
    FILE_MISSING = "file-missing"
    FILE_EXISTS = "file-exists"
    UNEXPECTED_ORIGINAL = "unexpected-original"
    UNEXPECTED_RESULT = "unexpected-result"
    UNUSABLE_RESULT = "unusable-result"
    OWNER = "owner"


@dataclass
class PatchError(CheckError):
    """A patch that does not do exactly what was recorded of it.

    Attributes:
        fault: The kind of failure.
        patch: Name of the patch, e.g. `0001-allreduce-fusion-backend`; empty when it concerns the whole series.
        file: Path below site-packages; empty when it concerns more than one file.
        hunk: Number of the hunk in that file, from 1; 0 when it concerns the whole file.
    """

    fault: Fault = Fault.CONFLICT
    patch: str = ""
    file: str = ""
    hunk: int = 0

    def __post_init__(self) -> None:
        """Derive the place from the names, so that no message can forget one."""
        if not self.where:
            hunk = f"hunk {self.hunk}" if self.hunk else ""
            self.where = ", ".join(part for part in (self.patch, self.file, hunk) if part)

    def as_record(self) -> dict[str, object]:
        """The message as data, with the names as fields of their own."""
        return {
            **super().as_record(),
            "fault": str(self.fault),
            "patch": self.patch,
            "file": self.file,
            "hunk": self.hunk,
        }
