"""The host program: deploys, rolls back and reconciles the stacks of one GPU host, through the Docker CLI.

It travels to hosts as one file (`bundle.py` makes it), so it needs nothing but Python 3.9 and the standard
library, and of this package only `tooling.errors`.
"""
