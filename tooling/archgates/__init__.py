"""Arch gates: the conditions in installed packages that decide by GPU architecture what code may run."""
