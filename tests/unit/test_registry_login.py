"""Where a login may go: to the registry and its token service over TLS, nowhere else."""

from pathlib import Path

import pytest
import requests

from tooling.registry.credentials import DockerConfig
from tooling.registry.errors import AccessDeniedError
from tooling.registry.login import Login, shown
from tooling.registry.reference import parse_reference
from tooling.registry.transport import Settings, Transport

STORED = DockerConfig(Path("config.json"), auths={"r.test": {"auth": "dTpzZWNyZXQ="}})
REFERENCE = parse_reference("r.test/org/image")


def _refused(challenge: str) -> requests.Response:
    answer = requests.Response()
    answer.status_code = 401
    answer.headers["WWW-Authenticate"] = challenge
    return answer


def _never(*_: object, **__: object) -> requests.Response:
    raise AssertionError("nothing may be sent")


def _login(send: object = _never) -> Login:
    return Login(REFERENCE, STORED, plain_http=False, send=send, notify=lambda _: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("realm", ["http://auth.test/token", "ftp://auth.test/token", "", "//auth.test/token"])
def test_a_login_is_never_sent_to_a_token_service_without_tls(realm: str):
    with pytest.raises(AccessDeniedError, match="unprotected"):
        _login().answer_challenge(_refused(f'Bearer realm="{realm}",service="r.test"'), push=False)


def test_an_unknown_kind_of_challenge_gets_nothing():
    with pytest.raises(AccessDeniedError, match="unknown kind"):
        _login().answer_challenge(_refused("Negotiate"), push=False)


def test_the_token_service_is_asked_for_reading_only_where_reading_is_enough():
    asked: list[str] = []

    def send(_method: str, _url: str, **arguments: dict[str, str]) -> requests.Response:
        asked.append(arguments["params"]["scope"])
        answer = requests.Response()
        answer.status_code = 200
        answer._content = b'{"token": "t"}'
        return answer

    login = _login(send)
    challenge = 'Bearer realm="https://auth.test/token",service="r.test",scope="repository:*:*"'
    assert login.answer_challenge(_refused(challenge), push=False) == "Bearer t"
    login.answer_challenge(_refused(challenge), push=True)
    assert asked == ["repository:org/image:pull", "repository:org/image:pull,push"]


def test_addresses_are_shown_without_what_may_be_secret():
    assert shown("https://user:pass@r.test:5000/v2/x?_state=secret&token=secret") == "https://r.test:5000/v2/x"


@pytest.mark.parametrize(
    ("url", "ours"),
    [
        ("https://r.test/v2/x", True),
        ("https://r.test.evil/v2/x", False),
        ("https://store.test/v2/x", False),
        ("http://r.test/v2/x", False),
    ],
)
def test_only_the_registry_itself_gets_the_login(url: str, ours: bool):
    transport = Transport(REFERENCE, Settings(login=STORED))
    transport._absolute("/v2/")
    assert transport._is_ours(url) is ours
    transport.close()


def test_nothing_that_is_printed_holds_the_secret():
    login = _login()
    login.credential()
    transport = Transport(REFERENCE, Settings(login=STORED))
    for text in (repr(login), repr(transport), repr(STORED), str(login.refused())):
        assert "secret" not in text
        assert "dTpzZWNyZXQ=" not in text
    transport.close()
