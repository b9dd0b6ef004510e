"""The throughput gate: SGLang's compiled load client, checked from all sides, and its calibration."""
