import base64
import json
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from tooling.attest.statement import Predicate, Statement, StatementError
from tooling.errors import ToolkitError
from tooling.sign import bundle as bundles
from tooling.sign.errors import KeyFileError, MalformedBundleError, TamperedError, WrongKeyError
from tooling.sign.keys import SigningKey, Trust, write_key_pair
from tooling.sign.passphrase import PASSPHRASE_VARIABLE, read_passphrase

PASSPHRASE = "correct horse battery"  # noqa: S105
DIGEST = "sha256:" + "a" * 64


class Note(Predicate):
    PREDICATE_TYPE = "urn:test:note"
    number: int


def _statement(number: int = 1) -> Statement:
    return Statement.about("example/image", DIGEST, Note(number=number))


KEY = SigningKey.generate()
OTHER = SigningKey.generate()
TRUST = Trust((KEY.public,))


def _edited(bundle: bytes, **envelope: object) -> bytes:
    document = json.loads(bundle)
    document["dsseEnvelope"].update(envelope)
    return json.dumps(document).encode()


def test_a_signed_statement_comes_back_as_it_was():
    signed = bundles.verify(bundles.sign(_statement(7), KEY), TRUST)
    assert signed.statement.read(Note).number == 7
    assert signed.statement.digest == DIGEST
    assert signed.key_id == KEY.id


def test_an_edited_number_is_found():
    bundle = bundles.sign(_statement(1), KEY)
    changed = base64.b64encode(_statement(2).payload()).decode()
    with pytest.raises(TamperedError, match="changed after it was signed"):
        bundles.verify(_edited(bundle, payload=changed), TRUST)


def test_a_key_that_is_not_trusted_is_named():
    with pytest.raises(WrongKeyError, match=OTHER.id[:12]):
        bundles.verify(bundles.sign(_statement(), OTHER), TRUST)


def test_a_forged_hint_does_not_help_a_stranger():
    document = json.loads(bundles.sign(_statement(), OTHER))
    document["verificationMaterial"]["publicKey"]["hint"] = KEY.id
    document["dsseEnvelope"]["signatures"][0]["keyid"] = KEY.id
    with pytest.raises(TamperedError):
        bundles.verify(json.dumps(document).encode(), TRUST)
    del document["dsseEnvelope"]["signatures"][0]["keyid"]
    with pytest.raises(TamperedError):
        bundles.verify(json.dumps(document).encode(), TRUST)


def test_while_a_key_is_replaced_both_are_believed():
    both = Trust((KEY.public, OTHER.public))
    assert bundles.verify(bundles.sign(_statement(), KEY), both).key_id == KEY.id
    assert bundles.verify(bundles.sign(_statement(), OTHER), both).key_id == OTHER.id


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "dsseEnvelope": {}}',
        b'{"mediaType": "application/json"}',
    ],
)
def test_what_is_no_bundle_is_one_clear_error(text: bytes):
    with pytest.raises(MalformedBundleError):
        bundles.verify(text, TRUST)


def test_no_signature_and_two_signatures_are_both_refused():
    bundle = bundles.sign(_statement(), KEY)
    one = json.loads(bundle)["dsseEnvelope"]["signatures"][0]
    for signatures in ([], [one, one]):
        with pytest.raises(MalformedBundleError):
            bundles.verify(_edited(bundle, signatures=signatures), TRUST)


def test_another_payload_type_is_refused_before_anything_is_read():
    with pytest.raises(MalformedBundleError, match="text/plain"):
        bundles.verify(_edited(bundles.sign(_statement(), KEY), payloadType="text/plain"), TRUST)


@given(st.binary(max_size=200))
def test_random_bytes_never_end_in_a_traceback(data: bytes):
    with pytest.raises(ToolkitError):
        bundles.verify(data, TRUST)


def test_the_predicate_is_read_as_its_own_type_only():
    class Swapped(Predicate):
        PREDICATE_TYPE = "urn:test:other"

    with pytest.raises(StatementError, match="urn:test:note"):
        _statement().read(Swapped)


def test_a_key_pair_is_written_once_and_only_its_owner_can_read_it(tmp_path: Path):
    private, public = write_key_pair(tmp_path / "k" / "release", KEY, PASSPHRASE)
    assert private.stat().st_mode & 0o777 == 0o600
    assert b"ENCRYPTED" in private.read_bytes()
    assert SigningKey.load(private, PASSPHRASE).id == KEY.id
    assert Trust.load(public).keys[0].id == KEY.id
    assert Trust.load(public.parent).get(KEY.id) is not None
    with pytest.raises(KeyFileError, match="exists already"):
        write_key_pair(tmp_path / "k" / "release", OTHER, PASSPHRASE)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path):
    private, _ = write_key_pair(tmp_path / "k", KEY, PASSPHRASE)
    private.chmod(0o644)
    with pytest.raises(KeyFileError, match="readable by others"):
        SigningKey.load(private, PASSPHRASE)


def test_wrong_passphrase_missing_file_and_bare_key_are_told_apart(tmp_path: Path):
    private, _ = write_key_pair(tmp_path / "k", KEY, PASSPHRASE)
    with pytest.raises(KeyFileError, match="wrong passphrase"):
        SigningKey.load(private, "not the passphrase")
    with pytest.raises(KeyFileError, match="No such file"):
        SigningKey.load(tmp_path / "none", PASSPHRASE)
    bare = tmp_path / "bare.key"
    bare.touch(0o600)
    bare.write_bytes(
        KEY.private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    with pytest.raises(KeyFileError, match="not protected"):
        SigningKey.load(bare, PASSPHRASE)


def test_a_short_passphrase_makes_no_key(tmp_path: Path):
    with pytest.raises(KeyFileError, match="shorter than 12"):
        write_key_pair(tmp_path / "k", KEY, "short")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "private",
    [rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())],
    ids=["rsa", "p384"],
)
def test_only_p256_is_trusted(tmp_path: Path, private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
    (tmp_path / "x.pub").write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    with pytest.raises(KeyFileError, match="not ECDSA P-256"):
        Trust.load(tmp_path)


def test_trusting_nobody_is_an_error(tmp_path: Path):
    with pytest.raises(KeyFileError, match="holds no public key"):
        Trust.load(tmp_path)


def test_a_private_key_in_the_directory_of_trust_is_named(tmp_path: Path):
    (tmp_path / "oops.pub").write_bytes(KEY.private_pem(PASSPHRASE))
    with pytest.raises(KeyFileError, match="private key lies where a public one belongs"):
        Trust.load(tmp_path)


def test_a_key_never_shows_itself():
    assert "EllipticCurve" not in repr(KEY)
    assert repr(KEY) == f"SigningKey(id='{KEY.id}')"


def test_the_passphrase_comes_from_a_file_then_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "p"
    file.write_text("from the file\n")
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "from the environment")
    assert read_passphrase(file) == "from the file"
    assert read_passphrase() == "from the environment"


def test_without_a_terminal_nobody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(PASSPHRASE_VARIABLE, raising=False)
    with Path(os.devnull).open() as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        with pytest.raises(KeyFileError, match="nobody can be asked"):
            read_passphrase()
    (tmp_path / "empty").touch()
    with pytest.raises(KeyFileError, match="empty"):
        read_passphrase(tmp_path / "empty")
