"""Scripts for a host's python3 (3.8 or newer), sent over stdin: standard library only, nothing stays there."""
