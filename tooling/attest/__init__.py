"""Attestations: in-toto statements about one image digest, made from records and read back into them."""
