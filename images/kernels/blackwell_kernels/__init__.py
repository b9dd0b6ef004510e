"""Placeholder until branch kernels brings the package."""
