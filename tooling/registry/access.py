"""May this machine read this image, and with which login? Asked before an outage begins, not in it.

The Docker Engine sends whatever login is stored; one that expired makes it fail on an image that everybody may
read, with an answer that sounds like a missing or private image. So both ways are tried, and told apart.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum
from importlib import resources
from typing import TYPE_CHECKING

import yaml

from tooling.records import Record
from tooling.registry.credentials import DockerConfig
from tooling.registry.errors import (
    AccessDeniedError,
    CertificateError,
    NotFoundError,
    RateLimitedError,
    RegistryError,
)
from tooling.registry.repository import Repository
from tooling.registry.transport import Settings

if TYPE_CHECKING:
    from tooling.registry.reference import Reference


class Access(StrEnum):
    """What came of trying to read an image."""

    LOGIN = "login"
    ANONYMOUS = "anonymous"
    LOGIN_REJECTED_ANONYMOUS_WORKS = "login-rejected-anonymous-works"
    LOGIN_REJECTED = "login-rejected"
    LOGIN_NEEDED = "login-needed"
    DENIED = "denied"
    NOT_FOUND = "not-found"
    RATE_LIMITED = "rate-limited"
    CERTIFICATE = "certificate"
    UNREACHABLE = "unreachable"
    DISK_FULL = "disk-full"
    UNKNOWN = "unknown"


class AccessReport(Record):
    """The answer for one image on one machine; never holds a secret.

    Attributes:
        image: What was asked for.
        access: What came of it.
        diagnosis: One sentence.
        advice: What to do.
    """

    image: str
    access: Access
    diagnosis: str
    advice: str = ""

    @property
    def engine_can_pull(self) -> bool:
        """Whether an engine with the same stored logins can fetch it; when not, refuse before an outage."""
        return self.access in {Access.LOGIN, Access.ANONYMOUS}


class _Answer(Record):
    """One kind of answer of a container engine.

    Attributes:
        access: What it means.
        patterns: Regular expressions, any of which is found in the answer, whatever the case.
    """

    access: Access
    patterns: tuple[str, ...]


class _Sentence(Record):
    """How a kind of access is told: `{host}` is filled in."""

    access: Access
    diagnosis: str
    advice: str = ""


class _Answers(Record):
    """The data file `answers.yaml`."""

    answers: tuple[_Answer, ...]
    sentences: tuple[_Sentence, ...]


def _load() -> _Answers:
    text = resources.files("tooling.registry").joinpath("answers.yaml").read_text()
    return _Answers.model_validate(yaml.safe_load(text))


def report(image: Reference, access: Access) -> AccessReport:
    """Word a kind of access for an image."""
    sentence = next(item for item in _load().sentences if item.access is access)
    return AccessReport(
        image=str(image),
        access=access,
        diagnosis=sentence.diagnosis.format(host=image.host),
        advice=sentence.advice.format(host=image.host),
    )


def diagnose_answer(
    image: Reference, answer: str, *, login_stored: bool, anonymous_works: bool | None = None
) -> AccessReport:
    """Say what an engine's failed pull means, with what is known beside its answer.

    Args:
        image: What should be pulled.
        answer: The engine's message.
        login_stored: The Docker client's configuration has a login for the registry.
        anonymous_works: Whether somebody without a login may read the image; None: not tried.
    """
    access = next(
        (
            item.access
            for item in _load().answers
            if any(re.search(pattern, answer, re.IGNORECASE) for pattern in item.patterns)
        ),
        Access.UNKNOWN,
    )
    # An engine says "denied" or "not found" alike to a stranger, to an expired login and for a missing image.
    if access in {Access.DENIED, Access.NOT_FOUND} and login_stored and anonymous_works:
        access = Access.LOGIN_REJECTED_ANONYMOUS_WORKS
    elif access is Access.DENIED and not login_stored and anonymous_works is False:
        access = Access.LOGIN_NEEDED
    return report(image, access)


def probe_access(image: Reference, settings: Settings | None = None) -> AccessReport:
    """Try to read an image's manifest with the stored login and without one.

    Args:
        image: With tag or digest.
        settings: How to speak to registries.
    """
    settings = settings or Settings()
    stored = settings.login if settings.login is not None else DockerConfig.load()
    has_login = stored.credential(image.host) is not None
    told: list[str] = []
    access = _try(image, replace(settings, login=stored, notify=told.append))
    if access is Access.LOGIN:
        if told:
            access = Access.LOGIN_REJECTED_ANONYMOUS_WORKS
        elif not has_login:
            access = Access.ANONYMOUS
    elif access is Access.DENIED:
        access = Access.LOGIN_REJECTED if has_login else Access.LOGIN_NEEDED
    return report(image, access)


def _try(image: Reference, settings: Settings) -> Access:
    try:
        with Repository(image, settings) as repository:
            repository.manifest(image.digest or image.tag or "latest")
    except AccessDeniedError:
        return Access.DENIED
    except NotFoundError:
        return Access.NOT_FOUND
    except CertificateError:
        return Access.CERTIFICATE
    except RateLimitedError:
        return Access.RATE_LIMITED
    except RegistryError:
        return Access.UNREACHABLE
    return Access.LOGIN
