"""Build, prove, release, deploy and roll back NVIDIA Blackwell inference stacks."""
