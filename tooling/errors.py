"""The one exception family: every message says what went wrong, where, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ToolkitError(Exception):
    """A failure that a user can act on; never shown as a traceback.

    Attributes:
        what: What went wrong, one sentence without a full stop.
        where: The file, line, host or command that it concerns; empty when the sentence says it.
        fix: What to do next.
        details: Further lines worth reading, e.g. the end of a log or a list of packages.
    """

    what: str
    where: str = ""
    fix: str = ""
    details: list[str] = field(default_factory=list)

    exit_code = 1

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        lines.extend(f"    {line}" for line in self.details)
        if self.fix:
            lines.append(f"  to do: {self.fix}")
        return "\n".join(lines)

    def as_record(self) -> dict[str, object]:
        """The same message as data, for `--json`."""
        return {
            "kind": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "fix": self.fix,
            "details": self.details,
        }


class InputError(ToolkitError):
    """What the user wrote (a stack, an argument, a file) cannot be used as it is."""

    exit_code = 2


class EngineError(ToolkitError):
    """The Docker Engine is absent, cannot do what is needed, or went away."""


class CommandError(ToolkitError):
    """An outside program failed."""


class CheckError(ToolkitError):
    """A check looked at real things and they are not as they must be."""


class BusyError(ToolkitError):
    """Somebody else is doing the same work on the same thing."""
