"""Gates: checks on a running engine whose results decide whether a release may exist."""
