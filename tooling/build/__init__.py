"""Build the image of a stack, check what is in it, and write down how it came to be."""

from tooling.build.builder import build
from tooling.build.record import BuildRecord

__all__ = ["BuildRecord", "build"]
