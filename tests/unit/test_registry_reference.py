import json
from pathlib import Path

import pytest

from tooling.errors import InputError
from tooling.registry.credentials import DockerConfig
from tooling.registry.errors import ContentError
from tooling.registry.login import parse_challenge
from tooling.registry.manifest import MANIFEST, Manifest, artifact_manifest, index_manifest
from tooling.registry.reference import is_loopback, parse_reference
from tooling.registry.repository import image_tag, is_record_tag, record_tag

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "host", "repository", "tag", "digest"),
    [
        ("debian", "docker.io", "library/debian", "", ""),
        ("org/image:1", "docker.io", "org/image", "1", ""),
        ("ghcr.io/org/image:v1", "ghcr.io", "org/image", "v1", ""),
        (f"localhost:5000/a/b/c:t@{DIGEST}", "localhost:5000", "a/b/c", "t", DIGEST),
        (f"127.0.0.1:5000/x@{DIGEST}", "127.0.0.1:5000", "x", "", DIGEST),
        ("[::1]:5000/x:t", "[::1]:5000", "x", "t", ""),
    ],
)
def test_names_are_read_as_the_engine_reads_them(text: str, host: str, repository: str, tag: str, digest: str):
    reference = parse_reference(text)
    assert (reference.host, reference.repository, reference.tag, reference.digest) == (
        host,
        repository,
        tag,
        digest,
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "UPPER/case",
        "a b",
        "x:",
        "x:ta g",
        "x@sha256:short",
        "x@md5:aa",
        "../x",
        "host:99/../x",
        "a//b",
        "x:-t",
    ],
)
def test_what_is_no_name_is_one_clear_error(text: str):
    with pytest.raises(InputError):
        parse_reference(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("127.0.0.1:5000", True),
        ("127.9.9.9", True),
        ("[::1]:5000", True),
        ("::1", True),
        ("10.0.0.1:5000", False),
        ("localhost.evil.test", False),
        ("127.0.0.1.evil.test:5000", False),
    ],
)
def test_only_this_machine_is_loopback(host: str, expected: bool):
    assert is_loopback(host) is expected


def test_challenges_are_read_whatever_their_spacing():
    header = 'Bearer realm="https://auth.test/token?x=1,2" ,service=reg,scope="repository:a:pull,push"'
    assert parse_challenge(header) == (
        "bearer",
        {"realm": "https://auth.test/token?x=1,2", "service": "reg", "scope": "repository:a:pull,push"},
    )
    assert parse_challenge("") == ("", {})


def _config(directory: Path, document: object) -> DockerConfig:
    (directory / "config.json").write_text(json.dumps(document))
    return DockerConfig.load(directory)


@pytest.mark.parametrize(
    "key", ["r.test:5000", "https://r.test:5000", "https://r.test:5000/v1/", "http://r.test:5000"]
)
def test_a_login_is_found_under_each_spelling_of_its_registry(tmp_path: Path, key: str):
    credential = _config(tmp_path, {"auths": {key: {"auth": "dTpzZWNyZXQ="}}}).credential("r.test:5000")
    assert credential is not None
    assert (credential.username, credential.secret) == ("u", "secret")
    assert "secret" not in repr(credential)


def test_the_login_of_another_registry_is_never_sent(tmp_path: Path):
    config = _config(tmp_path, {"auths": {"r.test": {"auth": "dTpzZWNyZXQ="}}})
    for host in ("r.test:5000", "evil-r.test", "r.test.evil", "docker.io"):
        assert config.credential(host) is None


def test_docker_hub_is_stored_under_its_old_name(tmp_path: Path):
    config = _config(tmp_path, {"auths": {"https://index.docker.io/v1/": {"auth": "dTpw"}}})
    assert config.credential("docker.io") is not None


def test_no_configuration_is_no_login(tmp_path: Path):
    assert DockerConfig.load(tmp_path).credential("r.test") is None


@pytest.mark.parametrize("text", ["{", "[]", '{"auths": 5}'])
def test_a_broken_configuration_is_named_without_its_content(tmp_path: Path, text: str):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match="configuration cannot be read"):
        DockerConfig.load(tmp_path)


def test_an_undecodable_login_is_named_without_its_content(tmp_path: Path):
    config = _config(tmp_path, {"auths": {"r.test": {"auth": "!!secret!!"}}})
    with pytest.raises(InputError, match="cannot be decoded") as caught:
        config.credential("r.test")
    assert "secret" not in str(caught.value)


def test_a_missing_credential_helper_is_named(tmp_path: Path):
    config = _config(tmp_path, {"credsStore": "surely-not-there"})
    with pytest.raises(InputError, match="docker-credential-surely-not-there is not installed"):
        config.credential("r.test")


def test_a_helper_that_knows_nothing_is_no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    helper = tmp_path / "docker-credential-x"
    helper.write_text("#!/bin/sh\necho 'credentials not found in native keychain'; exit 1\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert _config(tmp_path, {"credsStore": "x"}).credential("r.test") is None
    helper.write_text("#!/bin/sh\necho 'exit status 2: secret' >&2; exit 1\n")
    with pytest.raises(InputError, match="failed with exit code 1") as caught:
        _config(tmp_path, {"credsStore": "x"}).credential("r.test")
    assert "secret" not in str(caught.value)


def test_equal_records_have_equal_manifests_and_index_order_does_not_matter():
    image = Manifest.parse(json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "layers": []}).encode())
    records = [
        artifact_manifest(subject=image, artifact_type="x/y", layer=text, annotations={})
        for text in (b"a", b"b", b"a")
    ]
    assert records[0].digest == records[2].digest != records[1].digest
    descriptors = [record.descriptor() for record in records]
    assert index_manifest(tuple(descriptors)).digest == index_manifest(tuple(reversed(descriptors))).digest
    assert len(index_manifest(tuple(descriptors)).manifests) == 2


@pytest.mark.parametrize("content", [b"", b"[]", b'{"mediaType": "text/plain"}', b'{"layers": 3}', b"\xff"])
def test_what_is_no_manifest_is_one_clear_error(content: bytes):
    with pytest.raises(ContentError):
        Manifest.parse(content)


def test_own_tags_tell_what_they_belong_to():
    other = "sha256:" + "b" * 64
    tag = record_tag(DIGEST, other)
    assert is_record_tag(tag, DIGEST)
    assert not is_record_tag(tag, other)
    assert not is_record_tag(image_tag(DIGEST), DIGEST)
    assert len(tag) <= 128
