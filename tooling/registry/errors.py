"""What can be wrong with a registry, told apart so that each has its own way out."""

from __future__ import annotations

from tooling.errors import CheckError, ToolkitError


class RegistryError(ToolkitError):
    """The registry did not do what was asked; base of all its failures."""


class UnreachableError(RegistryError):
    """No answer: name, network, port or time-out."""


class CertificateError(RegistryError):
    """TLS: the registry's certificate is not trusted here."""


class AccessDeniedError(RegistryError):
    """The registry knows who asks (or nobody) and refuses."""


class LoginRejectedError(AccessDeniedError):
    """The stored login itself is refused: wrong, expired or revoked."""


class NotFoundError(RegistryError):
    """No such repository, tag, manifest or blob, as far as this login can see."""


class RateLimitedError(RegistryError):
    """The registry asks to come back later, and still did after every retry."""


class RegistryFailureError(RegistryError):
    """The registry itself fails (5xx), and still did after every retry."""


class ContentError(CheckError):
    """What came back does not have the digest that was asked for."""


class TagConflictError(CheckError):
    """A tag that must never move exists already with another digest."""
