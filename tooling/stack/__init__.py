"""A stack: the declaration of an image, its lock and what is demanded of it."""

from tooling.stack.loading import load_stack, stack_names
from tooling.stack.model import Stack

__all__ = ["Stack", "load_stack", "stack_names"]
