"""Logins, certificates and refusals, against real registries with password and token authentication."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from tests.container.release.conftest import quick
from tests.container.release.images import push_image
from tests.container.release.registry_server import PASSWORD, USER, serve
from tests.container.release.token_service import REFRESH_TOKEN, token_service
from tooling.registry.access import Access, probe_access
from tooling.registry.credentials import DockerConfig
from tooling.registry.errors import (
    AccessDeniedError,
    CertificateError,
    LoginRejectedError,
    NotFoundError,
    UnreachableError,
)
from tooling.registry.reference import parse_reference
from tooling.registry.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.container.release.registry_server import Authority, Server

pytestmark = pytest.mark.container


def _stored(directory: Path, host: str, secret: str, **entry: str) -> DockerConfig:
    """Write a Docker client configuration with one login, and read it as the toolkit does."""
    directory.mkdir(exist_ok=True)
    auth = base64.b64encode(f"{USER}:{secret}".encode()).decode()
    (directory / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth, **entry}}}))
    return DockerConfig.load(directory)


def test_password_and_own_authority(tls_server: Server, authority: Authority, tmp_path: Path):
    settings = quick(ca_file=authority.ca_file, login=_stored(tmp_path, tls_server.host, PASSWORD))
    with Repository(parse_reference(f"{tls_server.host}/test/tls"), settings) as repository:
        image = push_image(repository, "tls", tag="one")
        assert repository.digest_of_tag("one") == image.digest


def test_an_unknown_authority_is_named_and_nothing_is_sent(tls_server: Server, tmp_path: Path):
    settings = quick(login=_stored(tmp_path, tls_server.host, PASSWORD))
    with (
        Repository(parse_reference(f"{tls_server.host}/test/tls"), settings) as repository,
        pytest.raises(CertificateError, match="not trusted here"),
    ):
        repository.tags()


def test_a_wrong_password_is_not_a_missing_image(tls_server: Server, authority: Authority, tmp_path: Path):
    settings = quick(ca_file=authority.ca_file, login=_stored(tmp_path, tls_server.host, "expired-secret"))
    with Repository(parse_reference(f"{tls_server.host}/test/tls"), settings) as repository:
        with pytest.raises(LoginRejectedError, match="rejected: wrong, expired or revoked") as caught:
            repository.manifest("one")
        assert "expired-secret" not in str(caught.value.as_record())
        assert str(tmp_path) in caught.value.where


def test_no_login_where_one_is_needed(tls_server: Server, authority: Authority):
    settings = quick(ca_file=authority.ca_file)
    with (
        Repository(parse_reference(f"{tls_server.host}/test/tls"), settings) as repository,
        pytest.raises(AccessDeniedError, match="asks for a login and none is stored"),
    ):
        repository.manifest("one")


def test_a_credential_helper_is_asked(
    tls_server: Server, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    helper = tmp_path / "docker-credential-test"
    answer = json.dumps({"ServerURL": tls_server.host, "Username": USER, "Secret": PASSWORD})
    helper.write_text(f"#!/bin/sh\nread key\necho \"$key\" > {tmp_path}/asked\ncat <<'X'\n{answer}\nX\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {tls_server.host: "test"}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    settings = quick(ca_file=authority.ca_file, login=None)
    with Repository(parse_reference(f"{tls_server.host}/test/tls"), settings) as repository:
        push_image(repository, "helper", tag="two")
    assert (tmp_path / "asked").read_text().strip() == tls_server.host


@pytest.fixture(scope="module")
def token_server(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[tuple[Server, list[str]]]:
    directory = tmp_path_factory.mktemp("token")
    with token_service(authority) as (auth, seen), serve(directory, auth=auth) as server:
        settings = quick(login=_stored(directory / "login", server.host, PASSWORD))
        for name in ("test/public", "test/private"):
            with Repository(parse_reference(f"{server.host}/{name}"), settings) as repository:
                push_image(repository, name, tag="one")
        yield server, seen


def test_tokens_for_a_known_login(token_server: tuple[Server, list[str]], tmp_path: Path):
    server, _ = token_server
    settings = quick(login=_stored(tmp_path, server.host, PASSWORD))
    with Repository(parse_reference(f"{server.host}/test/private"), settings) as repository:
        assert repository.digest_of_tag("one")
        push_image(repository, "more", tag="two")


def test_an_identity_token_is_exchanged(token_server: tuple[Server, list[str]], tmp_path: Path):
    server, _ = token_server
    login = _stored(tmp_path, server.host, "", identitytoken=REFRESH_TOKEN)
    with Repository(parse_reference(f"{server.host}/test/private"), quick(login=login)) as repository:
        assert repository.digest_of_tag("one")


def test_everybody_may_read_a_public_image(token_server: tuple[Server, list[str]]):
    server, seen = token_server
    seen.clear()
    with Repository(parse_reference(f"{server.host}/test/public"), quick()) as repository:
        assert repository.digest_of_tag("one")
    assert seen == ["anonymous"]


def test_an_expired_login_on_a_public_image_reads_it_anonymously_and_says_so(
    token_server: tuple[Server, list[str]], tmp_path: Path
):
    server, seen = token_server
    seen.clear()
    told: list[str] = []
    login = _stored(tmp_path, server.host, "expired-secret")
    settings = quick(login=login, notify=told.append)
    with Repository(parse_reference(f"{server.host}/test/public"), settings) as repository:
        assert repository.digest_of_tag("one")
        assert repository.tags() == ["one"]
        with pytest.raises(LoginRejectedError):  # writing has no anonymous way
            push_image(repository, "x")
    assert seen[:2] == ["refused", "anonymous"]
    (message,) = told
    assert f"stored credential for {server.host} rejected, anonymous access works" in message
    assert "docker logout" in message
    assert "expired-secret" not in message


def test_an_expired_login_on_a_private_image_is_a_rejected_login(
    token_server: tuple[Server, list[str]], tmp_path: Path
):
    server, _ = token_server
    login = _stored(tmp_path, server.host, "expired-secret")
    with (
        Repository(parse_reference(f"{server.host}/test/private"), quick(login=login)) as repository,
        pytest.raises(AccessDeniedError),
    ):
        repository.manifest("one")


@pytest.mark.parametrize(
    ("name", "secret", "expected"),
    [
        ("test/public", None, Access.ANONYMOUS),
        ("test/public", PASSWORD, Access.LOGIN),
        ("test/public", "expired-secret", Access.LOGIN_REJECTED_ANONYMOUS_WORKS),
        ("test/private", "expired-secret", Access.LOGIN_REJECTED),
        ("test/private", None, Access.LOGIN_NEEDED),
        ("test/private", PASSWORD, Access.LOGIN),
    ],
)
def test_access_is_probed_before_anything_depends_on_it(
    token_server: tuple[Server, list[str]], tmp_path: Path, name: str, secret: str | None, expected: Access
):
    server, _ = token_server
    login = _stored(tmp_path, server.host, secret) if secret else DockerConfig(tmp_path / "none")
    report = probe_access(parse_reference(f"{server.host}/{name}:one"), quick(login=login))
    assert report.access is expected
    # The Docker Engine sends what is stored: an expired login stops it although the image is public.
    assert report.engine_can_pull is (expected in {Access.ANONYMOUS, Access.LOGIN})
    if secret == "expired-secret":  # noqa: S105
        assert "stored credential" in report.diagnosis
        assert secret not in report.model_dump_json()


def test_a_missing_image_is_not_a_matter_of_login(token_server: tuple[Server, list[str]], tmp_path: Path):
    server, _ = token_server
    login = _stored(tmp_path, server.host, PASSWORD)
    report = probe_access(parse_reference(f"{server.host}/test/private:none"), quick(login=login))
    assert report.access is Access.NOT_FOUND
    assert not report.engine_can_pull


def test_nobody_listens(tmp_path: Path):
    del tmp_path
    slept: list[float] = []
    with Repository(parse_reference("127.0.0.1:1/test/x"), quick(sleep=slept.append)) as repository:
        with pytest.raises(UnreachableError, match="does not answer"):
            repository.tags()
        assert len(slept) == 4
        assert slept == sorted(slept) or max(slept) > min(slept)
    report = probe_access(parse_reference("127.0.0.1:1/test/x:1"), quick())
    assert report.access is Access.UNREACHABLE


def test_an_unknown_tag_is_not_found(tls_server: Server, authority: Authority, tmp_path: Path):
    settings = quick(ca_file=authority.ca_file, login=_stored(tmp_path, tls_server.host, PASSWORD))
    with (
        Repository(parse_reference(f"{tls_server.host}/test/none"), settings) as repository,
        pytest.raises(NotFoundError),
    ):
        repository.manifest("x")
