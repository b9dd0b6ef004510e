"""Takes device code that no target can run out of libraries; only `records` and `run` need other packages."""
