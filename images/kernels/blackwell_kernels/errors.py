"""What can go wrong here; one family, so that a plugin can catch it whole."""

from __future__ import annotations


class KernelError(RuntimeError):
    """A kernel, or what it needs, cannot be used."""


class LibraryError(KernelError, ImportError):
    """The compiled library is missing, cannot be loaded, or has another interface than this package."""


class GroupError(KernelError):
    """The ranks did not become a group; every rank raises it, and none keeps anything."""


class StalledError(KernelError):
    """A rank waited longer than its bound; says for whom, where and in which round."""
