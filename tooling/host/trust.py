"""The evidence of a release, verified on the host by keys that the host keeps; openssl does the mathematics."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

from tooling.errors import CheckError

if TYPE_CHECKING:
    from tooling.host.request import Request

#: Directory below the root whose keys (`*.pub`) alone are believed, if there are any.
DIRECTORY = "trust"
_LIMIT_S = 30.0


def trusted_keys(root: Path, request: Request) -> tuple[tuple[str, ...], str]:
    """The keys to believe, and whose they are: the host's own before those that came with the request."""
    own = sorted((root / DIRECTORY).glob("*.pub")) if (root / DIRECTORY).is_dir() else []
    if own:
        return tuple(path.read_text(encoding="utf-8") for path in own), "the host's own"
    return request.trust, "the request's"


def verify_records(root: Path, request: Request) -> str:
    """Check every signed record of a request.

    Returns:
        What was checked, for people.

    Raises:
        CheckError: A record is not signed by a trusted key, speaks of another image, or none came and the host
            has keys of its own.
    """
    keys, whose = trusted_keys(root, request)
    if not keys:
        return "no keys are kept on this host and none came: signatures were not checked here"
    if not request.records:
        raise CheckError(
            "the request brings no signed record, and this host believes only signed ones",
            where=str(root / DIRECTORY),
            fix="send the release's records along (the toolkit does so with --trust)",
        )
    for number, record in enumerate(request.records):
        payload = verified_payload(record, keys, f"record {number + 1}")
        _speaks_of(payload, request.digest, f"record {number + 1}")
    return f"{len(request.records)} records are signed by {whose} keys and speak of this image"


def verified_payload(record: dict[str, Any], keys: Sequence[str], name: str) -> bytes:
    """The signed bytes of a Sigstore bundle with one DSSE signature.

    Raises:
        CheckError: No trusted key signed it.
    """
    try:
        envelope = record["dsseEnvelope"]
        kind = str(envelope["payloadType"])
        payload = base64.b64decode(envelope["payload"], validate=True)
        (signature,) = (base64.b64decode(one["sig"], validate=True) for one in envelope["signatures"])
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise CheckError(
            f"{name} is no signed record: {type(error).__name__} {error}",
            fix="fetch the release's records again",
        ) from error
    # Source: DSSE 1.0, protocol.md, pre-authentication encoding.
    encoded = b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)
    if not any(_verifies(encoded, signature, key) for key in keys):
        raise CheckError(
            f"{name} is signed by none of the {len(keys)} trusted keys, or was changed",
            fix="put the signer's public key into the host's trust directory if it is one of yours",
        )
    return payload


def _verifies(content: bytes, signature: bytes, key: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="blackwell-") as directory:
        paths = {name: Path(directory, name) for name in ("key", "signature", "content")}
        for name, data in (("key", key.encode()), ("signature", signature), ("content", content)):
            paths[name].write_bytes(data)
        argv = ["openssl", "dgst", "-sha256", "-verify", str(paths["key"])]
        argv += ["-signature", str(paths["signature"]), str(paths["content"])]
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False
            )
        except FileNotFoundError as error:
            raise CheckError(
                "openssl is not on this host, and signatures are to be checked", fix="install openssl"
            ) from error
    return done.returncode == 0 and b"Verified OK" in done.stdout


def _speaks_of(payload: bytes, digest: str, name: str) -> None:
    try:
        subjects = json.loads(payload)["subject"]
        named = {f"sha256:{subject['digest']['sha256']}" for subject in subjects}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckError(f"{name} is signed and is no statement about an image") from error
    if digest not in named:
        raise CheckError(
            f"{name} is about another image: {', '.join(sorted(named))}",
            where=digest,
            fix="send the records of this very image",
        )


def fingerprint(key: str) -> str:
    """Short name of a public key, for people."""
    return hashlib.sha256(key.strip().encode()).hexdigest()[:12]
