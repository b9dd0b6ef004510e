"""What was seen of compilation at run time."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from tooling.records import Record


class Phase(StrEnum):
    """Where a boot was when something compiled."""

    BOOT = "boot"  # until the first answer
    SERVING = "serving"  # from the first answer to the last token


class CompilerRun(Record):
    """A compiler process that descends from the engine.

    Attributes:
        program: Name of its file.
        phase: When it was first seen.
        at_s: Seconds since the watch began.
        target: The last argument: mostly the file that it compiled.
    """

    program: str
    phase: Phase
    at_s: float
    target: str = ""


class CacheChange(Record):
    """New or rewritten files of one compile cache in one phase.

    Attributes:
        cache: Its name.
        phase: When they came.
        files: How many.
        bytes: Their size.
        bookkeeping: How many of them hold no code: locks, logs, empty files.
        kernels: What those with code were compiled from, by their names.
        examples: Some of them, relative to the cache; those with code first.
    """

    cache: str
    phase: Phase
    files: int
    bytes: int
    bookkeeping: int = 0
    kernels: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """Files that may hold code: each is a compilation that somebody waited for."""
        return self.files - self.bookkeeping


class JitObservation(Record):
    """One boot, watched from its start to its last token.

    Attributes:
        boot_id: Which boot.
        warm: An earlier boot with the same arguments had filled the caches.
        looks: How often the processes were listed, by phase; a compiler that ends between two looks is missed.
        longest_gap_s: Longest time between two looks, seconds.
        seconds: Length of each phase.
        compilers: Compiler processes seen.
        changes: Growth of the caches.
        caches: Folders that were compared, by name; those that never existed are left out.
    """

    boot_id: str
    warm: bool
    looks: dict[Phase, int]
    longest_gap_s: float
    seconds: dict[Phase, float]
    compilers: tuple[CompilerRun, ...] = ()
    changes: tuple[CacheChange, ...] = ()
    caches: dict[str, str] = Field(default_factory=dict)
