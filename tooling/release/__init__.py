"""Releases: a policy over signed evidence decides whether an immutable tag may exist."""
