"""The local key: made on first use, so that a new machine can go through the whole chain.

It says that the holder of this account signed, and no more. Releases for other people are signed with a key
of `keygen` that is kept elsewhere.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.sign.keys import SigningKey, write_key_pair
from tooling.sign.passphrase import PASSPHRASE_VARIABLE, read_passphrase

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = "local"


def keys_folder() -> Path:
    """`blackwell-stacks/keys` in the user's configuration folder: the local key, and whom this user trusts."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "blackwell-stacks" / "keys"


def local_key(
    say: Callable[[str], None], passphrase_file: Path | None = None, folder: Path | None = None
) -> SigningKey:
    """The local key; made when there is none.

    The passphrase comes from the file, the environment, or a prompt. Where nobody can be asked a random one is
    written beside a new key, readable by this user alone, and used from then on.

    Args:
        say: Told which key signs, and what it is worth.
        passphrase_file: Its first line is the passphrase.
        folder: Another place than the user's configuration folder.

    Raises:
        KeyFileError: The passphrase is wrong, or files cannot be read or written.
    """
    place = folder or keys_folder()
    private, kept = place / f"{_NAME}.key", place / f"{_NAME}.passphrase"
    if private.is_file():
        asked_for = passphrase_file or (
            None if os.environ.get(PASSPHRASE_VARIABLE) or not kept.is_file() else kept
        )
        key = SigningKey.load(private, read_passphrase(asked_for))
        say(f"signing with the local key {key.id[:12]} ({private}): it names this account and proves no more")
        return key
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    given = passphrase_file or os.environ.get(PASSPHRASE_VARIABLE)
    unattended = not given and not sys.stdin.isatty()
    if unattended:
        descriptor = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(24) + "\n")
    key = SigningKey.generate()
    write_key_pair(place / _NAME, key, read_passphrase(kept if unattended else passphrase_file, confirm=True))
    say(f"made a local signing key {key.id[:12]}: {private}; it names this account and proves no more")
    if unattended:
        say(f"nobody could be asked for a passphrase: a random one is in {kept}, for this user alone to read")
    return key
