"""HTTP to one registry: scheme, trust, login, retries. Everything above it sees answers or named errors."""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import requests

from tooling.registry.credentials import Credential, DockerConfig
from tooling.registry.errors import (
    AccessDeniedError,
    CertificateError,
    LoginRejectedError,
    NotFoundError,
    RateLimitedError,
    RegistryError,
    RegistryFailureError,
    UnreachableError,
)
from tooling.registry.reference import Reference, is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, TOO_MANY = 401, 403, 404, 429
#: Answers that a later attempt may change.
_TRANSIENT = frozenset({408, TOO_MANY, 500, 502, 503, 504})
#: Longest pause that a registry may ask for, in seconds.
_RETRY_AFTER_MAX_S = 60.0


@dataclass(frozen=True)
class Settings:
    """How to speak to registries.

    Attributes:
        ca_file: PEM file with the only authorities to believe; None: those of the system.
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
        login_rejected: The stored login was refused and anonymous access is used instead.
    """

    reference: Reference
    settings: Settings = field(default_factory=Settings)
    login_rejected: bool = False

    def __post_init__(self) -> None:
        self._session = requests.Session()
        # No netrc: it would send a login that nobody asked for.
        self._session.auth = lambda request: request
        self._tokens: dict[str, str] = {}
        self._credential: Credential | None = None
        self._credential_read = False
        self._base = ""

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    # --- requests -----------------------------------------------------------------------------------------

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
            if answer.status_code not in _TRANSIENT or attempt == attempts:
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

        def send(authorization: str) -> requests.Response:
            extra = {"Authorization": authorization} if authorization and self._is_ours(url) else {}
            return self._raw(method, url, headers={**(headers or {}), **extra}, data=data, stream=stream)

        scope = f"repository:{self.reference.repository}:{'pull,push' if push else 'pull'}"
        used = self._tokens.get(scope, "")
        answer = send(used)
        if answer.status_code == UNAUTHORIZED and self._is_ours(url):
            # A token that expired meanwhile is refused like none: ask for a new one, once.
            self._tokens[scope] = self._log_in(answer, scope, push=push)
            answer = send(self._tokens[scope])
        if (
            answer.status_code in {UNAUTHORIZED, FORBIDDEN}
            and not push
            and not self.login_rejected
            and self._stored_login()
            and self._is_ours(url)
        ):
            anonymous = self._anonymous(answer, scope)
            answer = self._try_anonymous(answer, anonymous, send, scope)
        return answer

    def _try_anonymous(
        self, refused: requests.Response, token: str, send: Callable[[str], requests.Response], scope: str
    ) -> requests.Response:
        answer = send(token)
        if answer.status_code in {UNAUTHORIZED, FORBIDDEN}:
            return refused
        self._reject_login()
        self._tokens[scope] = token
        return answer

    def _raw(self, method: str, url: str, **arguments: Any) -> requests.Response:
        settings = self.settings
        try:
            return self._session.request(
                method,
                url,
                timeout=(settings.connect_timeout_s, settings.read_timeout_s),
                # Given with each request, since the environment would override the session's.
                verify=str(settings.ca_file) if settings.ca_file else True,
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
                where=f"{method} {_shown(url)}: {_reason(error)}",
                fix="check the name, the network and that the registry runs",
            ) from error

    # --- where ----------------------------------------------------------------------------------------------

    def _absolute(self, path: str) -> str:
        if not self._base:
            self._base = f"{self._scheme()}://{self.reference.api_host}"
        return urljoin(self._base, path)

    def _scheme(self) -> str:
        """HTTP when it was asked for, or when a registry on this machine does not speak TLS."""
        if self.settings.plain_http:
            return "http"
        if self.settings.ca_file or not self.reference.is_loopback:
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

    # --- login ----------------------------------------------------------------------------------------------

    def _stored_login(self) -> Credential | None:
        if not self._credential_read:
            login = self.settings.login if self.settings.login is not None else DockerConfig.load()
            self._credential = login.credential(self.reference.host)
            self._credential_read = True
        return self._credential

    def _reject_login(self) -> None:
        self.login_rejected = True
        credential = self._credential
        self.settings.notify(
            f"stored credential for {self.reference.host} rejected, anonymous access works"
            f" (stored in {credential.source if credential else '?'}; docker logout {self.reference.host},"
            " or log in again with a new token)"
        )

    def _log_in(self, refused: requests.Response, scope: str, *, push: bool) -> str:
        """Authorization for a registry that asked for one."""
        scheme, parameters = parse_challenge(refused.headers.get("WWW-Authenticate", ""))
        credential = None if self.login_rejected else self._stored_login()
        if scheme == "basic":
            if credential is None:
                raise AccessDeniedError(
                    f"the registry {self.reference.host} asks for a login and none is stored",
                    where=self.reference.name,
                    fix=f"docker login {self.reference.host}",
                )
            return credential.basic()
        if scheme != "bearer":
            raise AccessDeniedError(
                f"the registry {self.reference.host} asks for a login of an unknown kind",
                where=scheme or "no WWW-Authenticate header",
            )
        token = self._token(parameters, scope, credential)
        if token is None and credential is not None and not push:
            token = self._token(parameters, scope, None)
            if token is not None:
                self._reject_login()
        if token is None:
            raise self._refused_login(credential)
        return f"Bearer {token}"

    def _anonymous(self, refused: requests.Response, scope: str) -> str:
        """Authorization of somebody without a login: a token where the registry gives one, else nothing."""
        scheme, parameters = parse_challenge(refused.headers.get("WWW-Authenticate", ""))
        token = self._token(parameters, scope, None) if scheme == "bearer" else None
        return f"Bearer {token}" if token else ""

    def _refused_login(self, credential: Credential | None) -> AccessDeniedError:
        host = self.reference.host
        if credential is None:
            return AccessDeniedError(
                f"the registry {host} gives nobody without a login access",
                where=self.reference.name,
                fix=f"docker login {host}",
            )
        return LoginRejectedError(
            f"stored credential for {host} rejected: wrong, expired or revoked",
            where=f"stored in {credential.source}",
            fix=f"docker logout {host}, then docker login {host} with a new token",
        )

    def _token(self, parameters: Mapping[str, str], scope: str, credential: Credential | None) -> str | None:
        """Ask the token service that the registry named; None when it refuses this login.

        Raises:
            RegistryError: The service may not be asked, fails, or gives no token.
        """
        realm = parameters.get("realm", "")
        parts = urlsplit(realm)
        if parts.scheme != "https" and not (self.settings.plain_http or is_loopback(parts.netloc)):
            raise AccessDeniedError(
                "the registry wants the login sent over an unprotected connection",
                where=f"{self.reference.host} -> {_shown(realm)}",
                fix="nothing was sent; ask the registry's owner for https",
            )
        query = {"service": parameters.get("service", ""), "scope": scope}
        if credential and credential.identity_token:
            form = {
                **query,
                "grant_type": "refresh_token",
                "refresh_token": credential.identity_token,
                "client_id": "blackwell-stacks",
            }
            answer = self._raw("POST", realm, data=form)
        else:
            headers = {"Authorization": credential.basic()} if credential else {}
            answer = self._raw("GET", realm, params=query, headers=headers)
        if answer.status_code in {UNAUTHORIZED, FORBIDDEN}:
            return None
        if answer.status_code in _TRANSIENT:
            raise UnreachableError(
                f"the token service of {self.reference.host} fails with HTTP {answer.status_code}",
                where=_shown(realm),
                fix="try again later",
            )
        try:
            document = answer.json()
            return str(document.get("token") or document["access_token"])
        except (ValueError, KeyError, AttributeError) as error:
            raise RegistryError(
                f"the token service of {self.reference.host} gave no token (HTTP {answer.status_code})",
                where=_shown(realm),
            ) from error

    # --- failures -------------------------------------------------------------------------------------------

    def _failure(self, method: str, url: str, answer: requests.Response) -> RegistryError:
        where = f"{method} {_shown(url)} -> HTTP {answer.status_code}"
        details = _messages(answer)
        status = answer.status_code
        host = self.reference.host
        if status == UNAUTHORIZED and self._credential and not self.login_rejected:
            return self._refused_login(self._credential)
        if status in {UNAUTHORIZED, FORBIDDEN}:
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
        if status in _TRANSIENT:
            return RegistryFailureError(
                f"the registry {host} fails with HTTP {status}",
                where=where,
                details=details,
                fix="look at the registry's log and its free disk space; nothing was tagged",
            )
        return RegistryError(f"the registry {host} answers HTTP {status}", where=where, details=details)


def parse_challenge(header: str) -> tuple[str, dict[str, str]]:
    """Read a `WWW-Authenticate` header: scheme in lower case, parameters."""
    scheme, _, rest = header.strip().partition(" ")
    pairs = re.findall(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))', rest)
    return scheme.lower(), {name.lower(): quoted or bare for name, quoted, bare in pairs}


def _messages(answer: requests.Response) -> list[str]:
    """The registry's own words, as the distribution specification writes them."""
    try:
        errors = answer.json()["errors"]
        return [f"{item.get('code', '')}: {item.get('message', '')}" for item in errors][:5]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _shown(url: str) -> str:
    """An address without query and user: both may carry secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _reason(error: BaseException) -> str:
    """The innermost sentence of a chain of wrapped errors."""
    inner: BaseException = error
    while True:
        following = getattr(inner, "reason", None) or inner.__cause__ or inner.__context__
        if not isinstance(following, BaseException):
            return f"{type(inner).__name__}: {inner}"[:200]
        inner = following
