"""Takes device code that no target can run out of libraries. All but `records` and `run` is standard library only."""
