"""Why a file is left as it is."""

from __future__ import annotations


class NotUnderstoodError(ValueError):
    """Something in a file is not as we know it, so the file is not touched."""
