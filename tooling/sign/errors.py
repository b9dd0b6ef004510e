"""What can be wrong with a key or a signature."""

from __future__ import annotations

from tooling.errors import CheckError, InputError


class KeyFileError(InputError):
    """A key file, its passphrase or a directory of trust cannot be used."""


class SignatureError(CheckError):
    """Base of the reasons for which a signed record is not believed."""


class MalformedBundleError(SignatureError):
    """The file is not a Sigstore bundle v0.3 with one DSSE signature."""


class WrongKeyError(SignatureError):
    """The record is signed, but by no key that is trusted here."""


class TamperedError(SignatureError):
    """A trusted key is named, but the signature does not fit the content."""
