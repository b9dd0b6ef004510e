"""Where the checkout is: the stacks and the image sources are read from it."""

from __future__ import annotations

import os
from pathlib import Path

from tooling.errors import InputError


def checkout() -> Path:
    """The checkout to work on: `BLACKWELL_STACKS_ROOT`, else the nearest folder upwards with `stacks/`.

    Raises:
        InputError: There is none.
    """
    given = os.environ.get("BLACKWELL_STACKS_ROOT")
    start = Path(given) if given else Path.cwd()
    for directory in (start,) if given else (start, *start.parents):
        if (directory / "stacks").is_dir() and (directory / "images").is_dir():
            return directory.resolve()
    raise InputError(
        "no checkout here: neither this folder nor one above it has stacks/ and images/",
        where=str(start),
        fix="go into the checkout, or set BLACKWELL_STACKS_ROOT",
    )
