"""HTTP to one registry: scheme, trust, login, retries. Everything above it sees answers or named errors."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import requests

from tooling.registry.errors import (
    AccessDeniedError,
    CertificateError,
    NotFoundError,
    RateLimitedError,
    RegistryError,
    RegistryFailureError,
    UnreachableError,
)
from tooling.registry.login import REFUSED, TRANSIENT, UNAUTHORIZED, Login, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tooling.registry.credentials import DockerConfig
    from tooling.registry.reference import Reference

NOT_FOUND, TOO_MANY = 404, 429
_CERTIFICATES_OF_ENGINE = Path("/etc/docker/certs.d")
#: Longest pause that a registry may ask for, in seconds.
_RETRY_AFTER_MAX_S = 60.0


@dataclass(frozen=True)
class Settings:
    """How to speak to registries.

    Attributes:
        ca_file: PEM file with the only authorities to believe; None: those that the Docker Engine has for this
            registry, else those of the system.
        plain_http: Use HTTP although the registry is not on this machine; only when the user asked for it.
        attempts: How often one request is tried.
        backoff_s: Pause before the second attempt, in seconds; it doubles each time, with jitter.
        connect_timeout_s: Limit for a connection.
        read_timeout_s: Limit for the silence between two pieces of an answer.
        chunk_bytes: Size of the pieces in which blobs go up.
        login: Where logins are stored.
        notify: Told what a person should know, e.g. that a stored login is refused.
        sleep: Waits; tests put their own here.
    """

    ca_file: Path | None = None
    plain_http: bool = False
    attempts: int = 5
    backoff_s: float = 0.5
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    chunk_bytes: int = 16 * 1024 * 1024
    login: DockerConfig | None = None
    notify: Callable[[str], None] = lambda _: None
    sleep: Callable[[float], None] = time.sleep


@dataclass
class Transport:
    """The connection to the registry of one repository.

    Attributes:
        reference: Names host and repository.
        settings: How to speak.
        login: Who we are there.
    """

    reference: Reference
    settings: Settings = field(default_factory=Settings)
    login: Login = field(init=False)

    def __post_init__(self) -> None:
        self._session = requests.Session()
        # No netrc: it would send a login that nobody asked for.
        self._session.auth = lambda request: request
        self._base = ""
        settings = self.settings
        # Where the Docker Engine looks for a registry's own authority, too.
        of_engine = _CERTIFICATES_OF_ENGINE / self.reference.host / "ca.crt"
        ca_file = settings.ca_file or (of_engine if of_engine.is_file() else None)
        self._authorities: str | bool = str(ca_file) if ca_file else True
        self.login = Login(self.reference, settings.login, settings.plain_http, self._raw, settings.notify)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        ok: Iterable[int],
        push: bool = False,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        stream: bool = False,
        once: bool = False,
    ) -> requests.Response:
        """Send one request until it is answered, and give back an answer that is among the expected ones.

        Args:
            method: HTTP method.
            path: Path on the registry, or an absolute address that the registry gave.
            ok: Status codes that the caller understands.
            push: The login must allow writing.
            headers: Further headers.
            data: Body.
            stream: Leave the body of the answer on the wire.
            once: Do not repeat: the caller has to look first how far the request came.

        Raises:
            RegistryError: One of its kinds, each naming repository and request.
        """
        url = self._absolute(path)
        expected = frozenset(ok)
        attempts = 1 if once else self.settings.attempts
        for attempt in range(1, attempts + 1):
            try:
                answer = self._send(method, url, push=push, headers=headers, data=data, stream=stream)
            except UnreachableError:
                if attempt == attempts:
                    raise
                self._pause(attempt, "")
                continue
            if answer.status_code in expected:
                return answer
            if answer.status_code not in TRANSIENT or attempt == attempts:
                raise self._failure(method, url, answer)
            self._pause(attempt, answer.headers.get("Retry-After", ""))
        raise AssertionError("unreachable")  # the last attempt returned or raised

    def _pause(self, attempt: int, retry_after: str) -> None:
        pause = self.settings.backoff_s * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311  # jitter
        if retry_after.isdigit():
            pause = max(pause, min(float(retry_after), _RETRY_AFTER_MAX_S))
        self.settings.sleep(pause)

    def _send(
        self,
        method: str,
        url: str,
        *,
        push: bool,
        headers: Mapping[str, str] | None,
        data: bytes | None,
        stream: bool,
    ) -> requests.Response:
        """One attempt; logs in when the registry asks for it."""
        ours = self._is_ours(url)

        def send(authorization: str) -> requests.Response:
            extra = {"Authorization": authorization} if authorization and ours else {}
            return self._raw(method, url, headers={**(headers or {}), **extra}, data=data, stream=stream)

        login = self.login
        answer = send(login.authorization(login.scope(push=push)))
        if answer.status_code == UNAUTHORIZED and ours:
            # A token that expired meanwhile is refused like none: ask for a new one, once.
            answer = send(login.answer_challenge(answer, push=push))
        if answer.status_code in REFUSED and ours and not push and not login.rejected and login.credential():
            authorization = login.anonymous(answer)
            anonymous = send(authorization)
            if anonymous.status_code not in REFUSED:
                login.go_on_anonymously(authorization)
                return anonymous
        return answer

    def _raw(self, method: str, url: str, **arguments: Any) -> requests.Response:
        settings = self.settings
        try:
            return self._session.request(
                method,
                url,
                timeout=(settings.connect_timeout_s, settings.read_timeout_s),
                # Given with each request, since the environment would override the session's.
                verify=self._authorities,
                **arguments,
            )
        except requests.exceptions.SSLError as error:
            raise CertificateError(
                "the registry's certificate is not trusted here",
                where=f"{self.reference.host}: {_reason(error)}",
                fix="give the authority's certificate with --ca-file; plain HTTP only with --plain-http",
            ) from error
        except (requests.exceptions.RequestException, OSError) as error:
            raise UnreachableError(
                f"the registry {self.reference.host} does not answer",
                where=f"{method} {shown(url)}: {_reason(error)}",
                fix="check the name, the network and that the registry runs",
            ) from error

    def _absolute(self, path: str) -> str:
        if not self._base:
            self._base = f"{self._scheme()}://{self.reference.api_host}"
        return urljoin(self._base, path)

    def _scheme(self) -> str:
        """HTTP when it was asked for, or when a registry on this machine does not speak TLS."""
        if self.settings.plain_http:
            return "http"
        if self._authorities is not True or not self.reference.is_loopback:
            return "https"
        try:
            answer = self._raw("GET", f"http://{self.reference.api_host}/v2/")
        except UnreachableError:
            return "http"  # the request itself will say so, with its retries
        # Go's TLS server answers a plain request with 400 and this sentence.
        return "https" if answer.status_code == 400 and "HTTPS" in answer.text else "http"  # noqa: PLR2004

    def _is_ours(self, url: str) -> bool:
        """Logins go to the registry itself only, never to a store that it points to."""
        return url.startswith(self._base + "/")

    def _failure(self, method: str, url: str, answer: requests.Response) -> RegistryError:
        where = f"{method} {shown(url)} -> HTTP {answer.status_code}"
        details = _messages(answer)
        status = answer.status_code
        host = self.reference.host
        if status == UNAUTHORIZED and not self.login.rejected and self.login.credential():
            return self.login.refused()
        if status in REFUSED:
            return AccessDeniedError(
                f"the registry {host} refuses access to {self.reference.repository}",
                where=where,
                details=details,
                fix=f"check the rights of this login on {self.reference.repository}",
            )
        if status == NOT_FOUND:
            return NotFoundError(
                f"{self.reference.name} does not have what was asked for",
                where=where,
                details=details,
                fix="check the name; a private repository also answers like this to strangers",
            )
        if status == TOO_MANY:
            return RateLimitedError(
                f"the registry {host} asks to come back later",
                where=where,
                details=details,
                fix="try again later",
            )
        if status in TRANSIENT:
            return RegistryFailureError(
                f"the registry {host} fails with HTTP {status}",
                where=where,
                details=details,
                fix="look at the registry's log and its free disk space; nothing was tagged",
            )
        return RegistryError(f"the registry {host} answers HTTP {status}", where=where, details=details)


def _messages(answer: requests.Response) -> list[str]:
    """The registry's own words, as the distribution specification writes them."""
    try:
        errors = answer.json()["errors"]
        return [f"{item.get('code', '')}: {item.get('message', '')}" for item in errors][:5]
    except (requests.exceptions.RequestException, ValueError, KeyError, TypeError, AttributeError):
        return []  # also when the answer breaks off: its status says enough


def _reason(error: BaseException) -> str:
    """The innermost sentence of a chain of wrapped errors."""
    inner: BaseException = error
    while True:
        following = getattr(inner, "reason", None) or inner.__cause__ or inner.__context__
        if not isinstance(following, BaseException):
            return f"{type(inner).__name__}: {inner}"[:200]
        inner = following
