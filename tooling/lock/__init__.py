"""Locks: which wheel of which index, by hash, and whether they belong together."""
