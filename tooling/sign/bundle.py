"""A signed statement as one file: a DSSE envelope in a Sigstore bundle v0.3, as cosign reads and writes it.

Without a transparency log and without a time stamp a signature says who holds the key, and no more.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import UnverifiedSignatureError, VerificationError
from securesystemslib.signer import Signature

from tooling.attest.statement import PAYLOAD_TYPE, Statement, parse_statement
from tooling.records import canonical_json, sha256_of
from tooling.sign.errors import MalformedBundleError, TamperedError, WrongKeyError

if TYPE_CHECKING:
    from tooling.sign.keys import PublicKey, SigningKey, Trust

BUNDLE_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"


@dataclass(frozen=True)
class Signed:
    """A statement that a trusted key has signed.

    Attributes:
        statement: What was said.
        payload_sha256: Hash of the signed bytes; this is what other records name it by.
        key_id: Who signed.
        bundle: The file it came in.
    """

    statement: Statement
    payload_sha256: str
    key_id: str
    bundle: bytes


def sign(statement: Statement, key: SigningKey) -> bytes:
    """Sign a statement.

    Returns:
        The bundle file's bytes.
    """
    envelope = Envelope(statement.payload(), PAYLOAD_TYPE, {})
    envelope.sign(key.signer())
    (signature,) = envelope.to_dict()["signatures"]
    return canonical_json(
        {
            "mediaType": BUNDLE_MEDIA_TYPE,
            "verificationMaterial": {"publicKey": {"hint": key.id}},
            "dsseEnvelope": {
                "payload": base64.b64encode(envelope.payload).decode(),
                "payloadType": PAYLOAD_TYPE,
                # No key id here: cosign's own ids differ from every scheme, and it skips what it does not know.
                "signatures": [{"sig": signature["sig"]}],
            },
        }
    )


def verify(bundle: bytes, trust: Trust) -> Signed:
    """Check a bundle against the trusted keys and read its statement; nothing unsigned is ever parsed as one.

    Every trusted key is tried, since a bundle's key hint is unsigned and only helps to word the refusal.

    Raises:
        MalformedBundleError: It is no bundle of this kind.
        WrongKeyError: It is signed by none of the trusted keys.
        TamperedError: It names a trusted key but the signature does not fit.
        StatementError: The signature is good, the text is no in-toto statement.
    """
    envelope, hint = _read(bundle)
    signer = _signer_of(envelope, trust)
    if signer is None:
        if trust.get(hint):
            raise TamperedError(
                "the record was changed after it was signed",
                where=f"key {hint[:12]}",
                fix="fetch the record again from where it was made",
            )
        raise WrongKeyError(
            f"the record is signed by {f'key {hint[:12]}' if hint else 'a key'} that is not trusted here",
            details=[f"trusted: {key.id[:12]} {key.name}" for key in trust.keys],
            fix="add the signer's public key to the directory of trust, if it is one of yours",
        )
    return Signed(parse_statement(envelope.payload), sha256_of(envelope.payload), signer.id, bundle)


def _signer_of(envelope: Envelope, trust: Trust) -> PublicKey | None:
    (given,) = envelope.signatures.values()
    for key in trust.keys:
        try:
            key.verifier().verify_signature(Signature(key.id, given.signature), envelope.pae())
        except (UnverifiedSignatureError, VerificationError):
            continue
        return key
    return None


def _read(bundle: bytes) -> tuple[Envelope, str]:
    """The envelope and the id of the key that is said to have signed."""
    try:
        document: dict[str, Any] = json.loads(bundle)
        if document["mediaType"] != BUNDLE_MEDIA_TYPE:
            raise MalformedBundleError(f"the bundle is a {document['mediaType']}, not a {BUNDLE_MEDIA_TYPE}")
        raw = document["dsseEnvelope"]
        if raw["payloadType"] != PAYLOAD_TYPE:
            raise MalformedBundleError(f"the bundle carries a {raw['payloadType']}, not an in-toto statement")
        (signature,) = raw["signatures"]
        hint = str(signature.get("keyid") or document["verificationMaterial"]["publicKey"].get("hint") or "")
        parsed = Signature(hint, base64.b64decode(signature["sig"], validate=True).hex())
        envelope = Envelope(base64.b64decode(raw["payload"], validate=True), PAYLOAD_TYPE, {hint: parsed})
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error) as error:
        raise MalformedBundleError(
            f"the file is no Sigstore bundle with one DSSE signature: {type(error).__name__} {error}"
        ) from error
    return envelope, hint
