from pathlib import Path

import pytest
import yaml

from tooling.registry.access import Access, diagnose_answer, report
from tooling.registry.reference import parse_reference

CASE = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "registry-expired-login-on-public-image.yaml").read_text()
)
IMAGE = parse_reference("ghcr.io/org/image:tag")


def test_the_case_an_expired_login_on_a_public_image():
    told = diagnose_answer(IMAGE, CASE["input"]["text"], login_stored=True, anonymous_works=True)
    assert told.access is Access.LOGIN_REJECTED_ANONYMOUS_WORKS
    assert told.diagnosis.startswith("stored credential for ghcr.io rejected, anonymous access works")
    assert "logout" in told.advice
    assert "new token" in told.advice
    assert not told.engine_can_pull  # REFUSE, before the outage


@pytest.mark.parametrize(
    "answer",
    [
        'Error response from daemon: Head "https://ghcr.io/v2/org/image/manifests/tag": denied: denied',
        "Error response from daemon: unauthorized: authentication required",
        (
            'failed to resolve reference "ghcr.io/org/image:tag": failed to authorize: failed to fetch oauth'
            " token: unexpected status from GET request to https://ghcr.io/token: 403 Forbidden: denied"
        ),
        (
            "Error response from daemon: pull access denied for org/image, repository does not exist or may"
            " require 'docker login': denied: requested access to the resource is denied"
        ),
        (
            "Error response from daemon: Get https://r.test/v2/: unauthorized: HTTP Basic: Access denied."
            " The provided password or token is incorrect or your account has 2FA enabled"
        ),
        "denied: Your authorization token has expired. Reauthenticate and try again.",
        "unauthorized: incorrect username or password",
        "Error response from daemon: manifest for org/image:tag not found: manifest unknown",
        "no basic auth credentials",
    ],
)
def test_other_wordings_of_the_same_cause(answer: str):
    told = diagnose_answer(IMAGE, answer, login_stored=True, anonymous_works=True)
    assert told.access is Access.LOGIN_REJECTED_ANONYMOUS_WORKS


@pytest.mark.parametrize(
    ("login_stored", "anonymous_works", "expected"),
    [
        (True, True, Access.LOGIN_REJECTED_ANONYMOUS_WORKS),
        (True, False, Access.DENIED),
        (True, None, Access.DENIED),
        (False, False, Access.LOGIN_NEEDED),
        (False, None, Access.DENIED),
    ],
)
def test_denied_alone_decides_nothing(login_stored: bool, anonymous_works: bool | None, expected: Access):
    told = diagnose_answer(IMAGE, "denied: denied", login_stored=login_stored, anonymous_works=anonymous_works)
    assert told.access is expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("toomanyrequests: You have reached your pull rate limit", Access.RATE_LIMITED),
        ("x509: certificate signed by unknown authority", Access.CERTIFICATE),
        ("http: server gave HTTP response to HTTPS client", Access.CERTIFICATE),
        ("dial tcp: lookup ghcr.io: no such host", Access.UNREACHABLE),
        ("dial tcp 127.0.0.1:5000: connect: connection refused", Access.UNREACHABLE),
        ("net/http: TLS handshake timeout", Access.UNREACHABLE),
        ("write /var/lib/docker/tmp/x: no space left on device", Access.DISK_FULL),
        ("manifest unknown: manifest unknown", Access.NOT_FOUND),
        ("something nobody has seen", Access.UNKNOWN),
    ],
)
def test_other_causes_are_not_blamed_on_the_login(answer: str, expected: Access):
    assert diagnose_answer(IMAGE, answer, login_stored=False).access is expected
    if expected is not Access.NOT_FOUND:
        told = diagnose_answer(IMAGE, answer, login_stored=True, anonymous_works=True)
        assert told.access is expected


@pytest.mark.parametrize("access", Access)
def test_every_kind_has_a_sentence(access: Access):
    assert report(IMAGE, access).diagnosis
