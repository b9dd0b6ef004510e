"""A request as an operator sends it, for the tests of the host program."""

from __future__ import annotations

import copy
from typing import Any

from tooling.host.reading import parse_request
from tooling.host.request import SCHEMA, Request

DIGEST = "sha256:" + "a1" * 32
IMAGE_ID = "sha256:" + "b2" * 32

REQUEST: dict[str, Any] = {
    "schema": SCHEMA,
    "release": "cu130-0.5.23-20261129-a1a1a1a1a1a1",
    "reference": f"registry.example:5000/stacks/cu130@{DIGEST}",
    "digest": DIGEST,
    "image_id": IMAGE_ID,
    "sizes": {"compressed": 3_000_000, "unpacked": 8_000_000},
    "stack": "cu130",
    "contract": {
        "gpus": ["0", "1"],
        "gpu_mode": "cdi",
        "arguments": ["serve", "--model-path", "/models/m"],
        "environment": {"NCCL_DEBUG": "WARN", "HF_HUB_OFFLINE": "1"},
        "environment_files": ["/etc/blackwell/token.env"],
        "mounts": [{"source": "/srv/models", "target": "/models", "read_only": True}],
        "cache_mount": {"source_root": "/var/cache/stacks", "target": "/home/engine/.cache"},
        "ports": [{"address": "127.0.0.1", "host": 30000, "container": 30000}],
        "ipc": "",
        "shm_bytes": 1 << 34,
        "memlock": -1,
        "log_max_bytes": 1000,
        "log_files": 2,
        "stop_grace_seconds": 120,
        "labels": {"prometheus.io/port": "30000"},
        "user": "1000",
        "health": {
            "port": 30000,
            "model": "m",
            "prompt": "What is 17*23?",
            "expect": "391",
            "ready_timeout_seconds": 900,
        },
    },
    "model": {"id": "org/m", "revision": "0123abc", "path": "/srv/models/m"},
    "requirements": {"driver_minimum": "580.65.06", "target": "sm_120", "gpu_count": 2},
}


def document(**changes: Any) -> dict[str, Any]:
    """The example with changes; `contract__gpus=[]` changes a field of an inner object."""
    made = copy.deepcopy(REQUEST)
    for name, value in changes.items():
        *path, last = name.split("__")
        inner = made
        for part in path:
            inner = inner[part]
        inner[last] = value
    return made


def request(**changes: Any) -> Request:
    """The example as a checked request."""
    return parse_request(document(**changes))
