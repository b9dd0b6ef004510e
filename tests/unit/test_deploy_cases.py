"""A rollback that brings the image back and nothing else is none: record against container, by field."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.unit.host_examples import IMAGE_ID, request
from tooling.host.containers import differences
from tooling.host.contract import generation_labels
from tooling.host.plan import Snapshot, decide
from tooling.host.state import Current, Generation

MOUNTS = [
    {"source": f"/srv/{name}", "target": f"/{name}", "read_only": name != "out"} for name in ("a", "b", "out")
]
GENERATION = Generation(
    number=7,
    request=request(
        contract__mounts=MOUNTS, contract__cache_mount=None, contract__environment={"DATABASE_URL": "db:5432"}
    ),
    image=IMAGE_ID,
    previous=6,
    operation="op",
    created="2026-11-29T00:00:00+00:00",
)


def _container() -> dict[str, Any]:
    """What the engine shows of a container that is as generation 7 was recorded."""
    contract = GENERATION.request.contract
    return {
        "Image": IMAGE_ID,
        "Config": {
            "Env": ["PATH=/bin", "DATABASE_URL=db:5432"],
            "Labels": {**contract.labels, **generation_labels(GENERATION.request, 7)},
            "Cmd": list(contract.arguments),
            "User": "1000",
            "StopTimeout": 120,
        },
        "HostConfig": {
            "Mounts": [
                {"Source": one["source"], "Target": one["target"], "ReadOnly": one["read_only"]}
                for one in MOUNTS
            ],
            "PortBindings": {"30000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "30000"}]},
            "DeviceRequests": [{"DeviceIDs": ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]}],
            "Init": True,
            "NetworkMode": "default",
            "IpcMode": "private",
            "ShmSize": 1 << 34,
            "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}],
        },
    }


def test_a_generation_that_came_back_whole():
    assert differences(_container(), GENERATION) == []


@pytest.mark.parametrize(
    ("part", "field", "value", "told"),
    [
        ("Config", "Env", ["PATH=/bin"], "environment"),
        ("Config", "User", "", "user"),
        ("Config", "Cmd", ["serve"], "arguments"),
        ("HostConfig", "Mounts", [], "mounts"),
        ("HostConfig", "PortBindings", {}, "ports"),
        ("HostConfig", "DeviceRequests", None, "gpus"),
        ("HostConfig", "ShmSize", 1 << 26, "shm"),
        ("HostConfig", "Ulimits", None, "memlock"),
        ("HostConfig", "Init", None, "init"),
    ],
)
def test_the_image_alone_is_not_the_generation(part: str, field: str, value: object, told: str):
    container = copy.deepcopy(_container())
    container[part][field] = value
    assert container["Image"] == GENERATION.image
    assert [line.partition(":")[0] for line in differences(container, GENERATION)] == [told]


def test_before_is_the_record_before_and_not_the_newest_file():
    # 8 was tried last and never served; 9 was made after the rollback to 7 and serves.
    current = Current(9, (6, 7, 9), "deploy", 7, "running", "2026-11-29T00:00:00+00:00")
    snapshot = Snapshot(current, known=(6, 7, 8, 9), previous={7: 6, 8: 7, 9: 7}, serving=True)
    decision = decide("rollback", snapshot)
    assert (decision.action, decision.target) == ("swap", 7)
