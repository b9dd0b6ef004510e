"""OCI registries over the plain distribution API, and OCI layout directories."""
