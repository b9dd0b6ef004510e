"""Where a passphrase may come from: a file, an environment variable or a prompt; never a command line."""

from __future__ import annotations

import getpass
import os
import sys
from typing import TYPE_CHECKING

from tooling.sign.errors import KeyFileError

if TYPE_CHECKING:
    from pathlib import Path

#: The variable that holds the passphrase where nobody can be asked.
PASSPHRASE_VARIABLE = "BLACKWELL_STACKS_PASSPHRASE"  # noqa: S105  # a name


def read_passphrase(file: Path | None = None, *, confirm: bool = False) -> str:
    """Find the passphrase: the file when one is named, else the variable, else a prompt on a terminal.

    Args:
        file: Its first line is the passphrase.
        confirm: Ask twice, for a new key.

    Raises:
        KeyFileError: There is none, or the two answers differ.
    """
    if file is not None:
        try:
            lines = file.read_text().splitlines()
        except OSError as error:
            raise KeyFileError(
                f"the passphrase file cannot be read: {error.strerror}", where=str(file)
            ) from error
        if not lines or not lines[0]:
            raise KeyFileError("the passphrase file is empty", where=str(file))
        return lines[0]
    if value := os.environ.get(PASSPHRASE_VARIABLE):
        return value
    if not sys.stdin.isatty():
        raise KeyFileError(
            "a passphrase is needed and nobody can be asked",
            fix=f"set {PASSPHRASE_VARIABLE} or give --passphrase-file",
        )
    answer = getpass.getpass("passphrase of the signing key: ")
    if confirm and getpass.getpass("once more: ") != answer:
        raise KeyFileError("the two passphrases differ")
    if not answer:
        raise KeyFileError("the passphrase is empty")
    return answer
