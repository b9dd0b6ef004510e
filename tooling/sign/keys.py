"""ECDSA P-256 keys: made, stored under a passphrase, loaded; and the public keys that are trusted.

P-256 because cosign checks it. The id of a key is the SHA-256 of its public part (DER, SubjectPublicKeyInfo).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from securesystemslib.signer import CryptoSigner, SSlibKey

from tooling.sign.errors import KeyFileError

if TYPE_CHECKING:
    from pathlib import Path

#: Shorter ones are found by trying; the passphrase is all that protects a copied key file.
PASSPHRASE_MIN_LENGTH = 12


def key_id(public: ec.EllipticCurvePublicKey) -> str:
    """Hex SHA-256 of the DER form of a public key."""
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return sha256(der).hexdigest()


@dataclass(frozen=True)
class SigningKey:
    """A private key in memory; never printed, never in a record.

    Attributes:
        id: The id of its public part.
    """

    private: ec.EllipticCurvePrivateKey = field(repr=False)
    id: str

    @classmethod
    def generate(cls) -> Self:
        """Make a new key."""
        private = ec.generate_private_key(ec.SECP256R1())
        return cls(private, key_id(private.public_key()))

    @classmethod
    def load(cls, path: Path, passphrase: str) -> Self:
        """Read a key file.

        Raises:
            KeyFileError: It is missing, readable by others, no P-256 key, or the passphrase is wrong.
        """
        try:
            if path.stat().st_mode & 0o077:
                raise KeyFileError(
                    "the private key is readable by others", where=str(path), fix=f"chmod 600 {path}"
                )
            private = serialization.load_pem_private_key(path.read_bytes(), passphrase.encode())
        except OSError as error:
            raise KeyFileError(f"the private key cannot be read: {error.strerror}", where=str(path)) from error
        except TypeError as error:
            raise KeyFileError(
                "the private key is not protected by a passphrase",
                where=str(path),
                fix="make a new one with `keygen`",
            ) from error
        except ValueError as error:
            raise KeyFileError(
                "wrong passphrase, or no private key", where=str(path), fix="give the key's own passphrase"
            ) from error
        if not isinstance(private, ec.EllipticCurvePrivateKey) or private.curve.name != "secp256r1":
            raise KeyFileError("the key is not ECDSA P-256", where=str(path), fix="make one with `keygen`")
        return cls(private, key_id(private.public_key()))

    @property
    def public(self) -> PublicKey:
        """The public part."""
        return PublicKey(self.private.public_key(), self.id)

    def signer(self) -> CryptoSigner:
        """The same key for securesystemslib."""
        return CryptoSigner(self.private, SSlibKey.from_crypto(self.private.public_key(), self.id))

    def private_pem(self, passphrase: str) -> bytes:
        """PKCS#8, encrypted.

        Raises:
            KeyFileError: The passphrase is too short.
        """
        if len(passphrase) < PASSPHRASE_MIN_LENGTH:
            raise KeyFileError(
                f"the passphrase is shorter than {PASSPHRASE_MIN_LENGTH} characters", fix="choose a longer one"
            )
        return self.private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(passphrase.encode()),
        )


@dataclass(frozen=True)
class PublicKey:
    """A public key.

    Attributes:
        id: Hex SHA-256 of its DER form.
        name: The file it came from.
    """

    public: ec.EllipticCurvePublicKey = field(repr=False)
    id: str
    name: str = ""

    @classmethod
    def from_pem(cls, pem: bytes, name: str = "") -> Self:
        """Read one.

        Raises:
            KeyFileError: It is no ECDSA P-256 public key.
        """
        if b"PRIVATE KEY" in pem:
            raise KeyFileError(
                "a private key lies where a public one belongs", where=name, fix="move it away from here"
            )
        try:
            public = serialization.load_pem_public_key(pem)
        except ValueError as error:
            raise KeyFileError("the file is no PEM public key", where=name) from error
        if not isinstance(public, ec.EllipticCurvePublicKey) or public.curve.name != "secp256r1":
            raise KeyFileError("the key is not ECDSA P-256", where=name)
        return cls(public, key_id(public), name)

    def pem(self) -> bytes:
        """PEM, SubjectPublicKeyInfo: what cosign takes with `--key`."""
        return self.public.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def verifier(self) -> SSlibKey:
        """The same key for securesystemslib."""
        return SSlibKey.from_crypto(self.public, self.id)


@dataclass(frozen=True)
class Trust:
    """The public keys that are believed; two or more at once while a key is being replaced."""

    keys: tuple[PublicKey, ...]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read one public key file, or every `*.pub` of a directory.

        Raises:
            KeyFileError: Nothing is there, a file is no public key, or no key is found: trusting nobody is a
                mistake, never a policy.
        """
        try:
            files = sorted(path.glob("*.pub")) if path.is_dir() else [path]
            keys = tuple(PublicKey.from_pem(file.read_bytes(), str(file)) for file in files)
        except OSError as error:
            raise KeyFileError(f"no trusted key can be read: {error.strerror}", where=str(path)) from error
        if not keys:
            raise KeyFileError(
                "the directory of trust holds no public key (*.pub)",
                where=str(path),
                fix="copy the releaser's .pub file into it",
            )
        return cls(keys)

    def get(self, identifier: str) -> PublicKey | None:
        """The trusted key of this id."""
        return next((key for key in self.keys if key.id == identifier), None)


def write_key_pair(prefix: Path, key: SigningKey, passphrase: str) -> tuple[Path, Path]:
    """Write `<prefix>.key` (0600, encrypted) and `<prefix>.pub`.

    Returns:
        Both paths, private first.

    Raises:
        KeyFileError: A file of that name exists (a key is never overwritten), or it cannot be written.
    """
    private_path = prefix.with_name(prefix.name + ".key")
    public_path = prefix.with_name(prefix.name + ".pub")
    private_pem = key.private_pem(passphrase)
    for path in (private_path, public_path):
        if path.exists():
            raise KeyFileError("the key file exists already", where=str(path), fix="choose another name")
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        for path, content, mode in ((private_path, private_pem, 0o600), (public_path, key.public.pem(), 0o644)):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
    except OSError as error:
        raise KeyFileError(f"the key cannot be written: {error.strerror}", where=str(prefix)) from error
    return private_path, public_path
