"""Stored logins, where the Docker client keeps them: its configuration file and its credential helpers."""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tooling.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Docker Hub is stored under this key, for historical reasons.
_HUB_KEY = "https://index.docker.io/v1/"
_HUB_HOSTS = {"docker.io", "index.docker.io", "registry-1.docker.io"}
#: Seconds that a credential helper gets; one that asks a person would hang otherwise.
HELPER_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Credential:
    """A login; never shown.

    Attributes:
        username: Account name.
        secret: Password or personal token.
        identity_token: OAuth2 refresh token, where the login left one instead of a password.
        source: Where it is stored, for messages.
    """

    username: str = field(repr=False)
    secret: str = field(repr=False)
    identity_token: str = field(default="", repr=False)
    source: str = ""

    def basic(self) -> str:
        """The value of an HTTP Authorization header."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.secret}".encode()).decode()


@dataclass(frozen=True)
class DockerConfig:
    """The Docker client's configuration, as far as logins go.

    Attributes:
        path: The file.
        auths: Logins stored in the file itself, by registry.
        helpers: Credential helper by registry.
        default_helper: Helper for every other registry.
    """

    path: Path
    auths: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    helpers: Mapping[str, str] = field(default_factory=dict)
    default_helper: str = ""

    @classmethod
    def load(cls, directory: Path | None = None) -> Self:
        """Read `config.json`; a missing file is an empty configuration.

        Args:
            directory: Defaults to `$DOCKER_CONFIG`, else `~/.docker`.

        Raises:
            InputError: The file cannot be read as such.
        """
        home = directory or Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
        path = home / "config.json"
        try:
            document = json.loads(path.read_text())
            auths = dict(document.get("auths") or {})
            helpers = dict(document.get("credHelpers") or {})
            default = str(document.get("credsStore") or "")
        except FileNotFoundError:
            return cls(path)
        except (OSError, ValueError, AttributeError, TypeError) as error:
            # The text may hold a secret: only the kind of the error is shown.
            raise InputError(
                f"the Docker client's configuration cannot be read ({type(error).__name__})", where=str(path)
            ) from None
        return cls(path, auths, helpers, default)

    def credential(self, host: str) -> Credential | None:
        """The login for a registry, or None.

        Raises:
            InputError: A login is stored but cannot be read.
        """
        for key in _keys(host):
            if helper := self.helpers.get(key):
                return _ask_helper(helper, key)
        entry_key = next(
            (key for key in self.auths if _host_of(key) in {_host_of(key_) for key_ in _keys(host)}), ""
        )
        entry = self.auths.get(entry_key) or {}
        if entry.get("auth") or entry.get("identitytoken"):
            return self._from_entry(entry_key, entry)
        return _ask_helper(self.default_helper, _keys(host)[0]) if self.default_helper else None

    def _from_entry(self, key: str, entry: Mapping[str, Any]) -> Credential:
        try:
            decoded = base64.b64decode(entry.get("auth") or "", validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise InputError(
                f"the stored login for {_host_of(key)} cannot be decoded",
                where=str(self.path),
                fix=f"docker logout {_host_of(key)}, then docker login again",
            ) from None
        username, _, secret = decoded.partition(":")
        return Credential(username, secret.rstrip("\0"), str(entry.get("identitytoken") or ""), str(self.path))


def _keys(host: str) -> list[str]:
    """Under which names the login of a host may be stored, the usual one first."""
    if host in _HUB_HOSTS:
        return [_HUB_KEY, *sorted(_HUB_HOSTS)]
    return [host, f"https://{host}", f"http://{host}"]


def _host_of(key: str) -> str:
    """Keys may carry a scheme and a path: `https://host/v1/` is `host`."""
    return key.removeprefix("https://").removeprefix("http://").split("/", 1)[0]


def _ask_helper(helper: str, key: str) -> Credential | None:
    """Ask `docker-credential-<helper> get`; its answer never reaches a log."""
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"], input=key, capture_output=True, text=True, timeout=HELPER_TIMEOUT_S, check=False
        )
    except FileNotFoundError as error:
        raise InputError(
            f"the credential helper {program} is not installed",
            where=key,
            fix=f"install it, or remove it from the Docker client's configuration and log in to {key} again",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"the credential helper {program} did not answer within {HELPER_TIMEOUT_S:g} s", where=key
        ) from error
    if done.returncode != 0:
        if "credentials not found" in done.stdout + done.stderr:
            return None
        raise InputError(
            f"the credential helper {program} failed with exit code {done.returncode}",
            where=key,
            fix=f"run: echo {key} | {program} get",
        )
    try:
        answer = json.loads(done.stdout)
        username, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError):
        raise InputError(f"the credential helper {program} gave no login", where=key) from None
    if username == "<token>":
        return Credential("", "", secret, program)
    return Credential(username, secret, "", program)
