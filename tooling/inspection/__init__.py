"""What can be proved of an image without a GPU, in one table: `inspect_image`."""

from tooling.inspection.inspect import inspect_image

__all__ = ["inspect_image"]
