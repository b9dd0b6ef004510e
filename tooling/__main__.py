"""`python -m tooling` is the console script."""

from tooling.cli import main

main()
