"""Signatures: ECDSA P-256 keys, DSSE envelopes in Sigstore bundles, trust as public key files; no network."""
