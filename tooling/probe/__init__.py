"""What a host and a container can really do. Only `collect` touches the world; all else is pure."""
