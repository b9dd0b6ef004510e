"""Verify: boot an image, or attach to what runs, hold it against the gates, and write one record of it."""

from tooling.verify.record import VerifyRecord
from tooling.verify.run import verify_attached, verify_stack

__all__ = ["VerifyRecord", "verify_attached", "verify_stack"]
