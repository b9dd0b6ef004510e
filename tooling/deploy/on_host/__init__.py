"""Scripts that are sent to a host's python3 (3.8 or newer) over stdin; standard library only, nothing stays there."""
