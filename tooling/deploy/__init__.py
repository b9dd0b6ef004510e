"""The operator's side of a deploy: inventory, ssh, preflight, the request to the host program, exports."""
