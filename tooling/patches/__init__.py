"""Patch series: verified edits of installed packages, each a diff with a header that says why."""
