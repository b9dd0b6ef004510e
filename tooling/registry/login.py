"""Logging in to a registry: stored logins, basic and bearer challenges, and what a refused login means.

A login that expired is worse than none: a public image is then refused although everybody else may have it. For
reading, a refused login is therefore followed by an anonymous try, and the person is told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tooling.registry.credentials import Credential, DockerConfig
from tooling.registry.errors import AccessDeniedError, LoginRejectedError, RegistryError, UnreachableError
from tooling.registry.reference import Reference, is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import requests

UNAUTHORIZED, FORBIDDEN = 401, 403
REFUSED = frozenset({UNAUTHORIZED, FORBIDDEN})
#: Answers that a later attempt may change.
TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})


@dataclass
class Login:
    """Who we are to the registry of one repository.

    Attributes:
        reference: Names host and repository.
        stored: Where logins are stored; None: where the Docker client keeps them.
        plain_http: The user asked for plain HTTP.
        send: Sends one request, without any login of its own.
        notify: Told when a stored login is refused and anonymous access works.
        rejected: That has happened.
    """

    reference: Reference
    stored: DockerConfig | None
    plain_http: bool
    send: Callable[..., requests.Response]
    notify: Callable[[str], None]
    rejected: bool = False
    _tokens: dict[str, str] = field(default_factory=dict, repr=False)
    _credential: Credential | None = field(default=None, repr=False)
    _credential_read: bool = False

    def authorization(self, scope: str) -> str:
        """What is sent unasked: whatever the registry accepted for this scope before."""
        return self._tokens.get(scope, "")

    def scope(self, *, push: bool) -> str:
        """The rights that are asked for, as registries name them."""
        return f"repository:{self.reference.repository}:{'pull,push' if push else 'pull'}"

    def credential(self) -> Credential | None:
        """The stored login for this registry, read once."""
        if not self._credential_read:
            stored = self.stored if self.stored is not None else DockerConfig.load()
            self._credential = stored.credential(self.reference.host)
            self._credential_read = True
        return self._credential

    def answer_challenge(self, refused: requests.Response, *, push: bool) -> str:
        """Authorization for a registry that asked for one.

        Raises:
            AccessDeniedError: There is no login, or it is refused.
        """
        scope = self.scope(push=push)
        self._tokens[scope] = self._log_in(refused, scope, push=push)
        return self._tokens[scope]

    def anonymous(self, refused: requests.Response) -> str:
        """Authorization of somebody without a login: a token where the registry gives one, else nothing."""
        scheme, parameters = parse_challenge(refused.headers.get("WWW-Authenticate", ""))
        token = self._token(parameters, self.scope(push=False), None) if scheme == "bearer" else None
        return f"Bearer {token}" if token else ""

    def go_on_anonymously(self, authorization: str) -> None:
        """The stored login was refused and this worked: use it from now on, and say so."""
        self._tokens[self.scope(push=False)] = authorization
        self.rejected = True
        credential = self._credential
        host = self.reference.host
        self.notify(
            f"stored credential for {host} rejected, anonymous access works"
            f" (stored in {credential.source if credential else '?'};"
            f" docker logout {host}, or log in again with a new token)"
        )

    def refused(self) -> AccessDeniedError:
        """The error for a login, or the lack of one, that the registry does not accept."""
        host = self.reference.host
        if self._credential is None:
            return AccessDeniedError(
                f"the registry {host} gives nobody without a login access",
                where=self.reference.name,
                fix=f"docker login {host}",
            )
        return LoginRejectedError(
            f"stored credential for {host} rejected: wrong, expired or revoked",
            where=f"stored in {self._credential.source}",
            fix=f"docker logout {host}, then docker login {host} with a new token",
        )

    def _log_in(self, refused: requests.Response, scope: str, *, push: bool) -> str:
        """Authorization for a registry that asked for one."""
        scheme, parameters = parse_challenge(refused.headers.get("WWW-Authenticate", ""))
        if push and self.rejected:
            raise self.refused()  # writing has no anonymous way
        credential = None if self.rejected else self.credential()
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
                self.go_on_anonymously(f"Bearer {token}")
        if token is None:
            raise self.refused()
        return f"Bearer {token}"

    def _token(self, parameters: Mapping[str, str], scope: str, credential: Credential | None) -> str | None:
        """Ask the token service that the registry named; None when it refuses this login.

        Raises:
            RegistryError: The service may not be asked, fails, or gives no token.
        """
        realm = parameters.get("realm", "")
        parts = urlsplit(realm)
        if parts.scheme != "https" and not (self.plain_http or is_loopback(parts.netloc)):
            raise AccessDeniedError(
                "the registry wants the login sent over an unprotected connection",
                where=f"{self.reference.host} -> {shown(realm)}",
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
            answer = self.send("POST", realm, data=form)
        else:
            headers = {"Authorization": credential.basic()} if credential else {}
            answer = self.send("GET", realm, params=query, headers=headers)
        if answer.status_code in REFUSED:
            return None
        if answer.status_code in TRANSIENT:
            raise UnreachableError(
                f"the token service of {self.reference.host} fails with HTTP {answer.status_code}",
                where=shown(realm),
                fix="try again later",
            )
        try:
            document = answer.json()
            return str(document.get("token") or document["access_token"])
        except (ValueError, KeyError, AttributeError) as error:
            raise RegistryError(
                f"the token service of {self.reference.host} gave no token (HTTP {answer.status_code})",
                where=shown(realm),
            ) from error


def parse_challenge(header: str) -> tuple[str, dict[str, str]]:
    """Read a `WWW-Authenticate` header: scheme in lower case, parameters."""
    scheme, _, rest = header.strip().partition(" ")
    pairs = re.findall(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))', rest)
    return scheme.lower(), {name.lower(): quoted or bare for name, quoted, bare in pairs}


def shown(url: str) -> str:
    """An address without query and user: both may carry secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
