"""Reads device code out of files. Standard library only: it is also sent into images and runs there."""
