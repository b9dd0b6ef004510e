"""Why a release is refused, or not believed; each reason has a name of its own."""

from __future__ import annotations

from tooling.errors import CheckError


class ReleaseRefusedError(CheckError):
    """The policy is not met; the checklist is in the details."""


class MissingRecordError(CheckError):
    """A record that must be there is not: no release record, or one that it names."""


class MovedTagError(CheckError):
    """A tag points to another digest than the signed record binds it to."""


class ContradictionError(CheckError):
    """Signed records are there, and do not agree with each other or with the image."""


class ExpiredWaiverError(CheckError):
    """A release rests on a waiver that has expired."""
