"""A release without a registry: what travels through ssh is what the host lacks, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tooling.registry.layout import export_layout

if TYPE_CHECKING:
    from tests.container.deploy.conftest import Box
    from tooling.release.publish import Released

pytestmark = pytest.mark.container
#: Largest upgrade of a patch alone, in bytes.
_PATCH = 4096


def _export(box: Box, release: Released, name: str) -> str:
    image = box.repository.manifest(release.verification.digest)
    export_layout(box.repository, image, release.name, box.folder / name)
    return f"oci:{box.folder / name}:{release.name}"


def test_only_missing_layers_travel(box: Box):
    first, second = box.release("one"), box.release("two", salt=box.group)
    sources = [_export(box, first, "first"), _export(box, second, "second")]
    refused = box.deploy(sources[0])
    assert refused.code == 2
    assert "add --via ssh" in str(refused.error)

    done = box.deploy(sources[0], "--via", "ssh")
    assert done.code == 0, done.err
    assert box.served_version() == "one"
    upgrade = box.deploy(sources[1], "--via", "ssh")
    assert upgrade.code == 0, upgrade.err
    assert box.served_version() == "two"
    assert 0 < upgrade.json["steps"][0]["bytes_sent"] < _PATCH
    # Back needs nothing at all, and what a registry of this machine holds goes the same way.
    assert box.run("rollback").code == 0
    third = box.release("three")
    relayed = box.deploy(third.name, "--via", "ssh")
    assert relayed.code == 0, relayed.err
    assert box.served_version() == "three"
    assert 0 < relayed.json["steps"][0]["bytes_sent"] < _PATCH


def test_a_damaged_layout_is_refused_by_the_engine_and_nothing_stops(box: Box):
    first, second = box.release("one"), box.release("two")
    assert box.deploy(first.name).code == 0
    source = _export(box, second, "damaged")
    layer = box.repository.manifest(second.verification.digest).layers[-1]
    blob = box.folder / "damaged" / "blobs" / "sha256" / layer.digest.removeprefix("sha256:")
    content = bytearray(blob.read_bytes())
    content[20] ^= 0xFF
    blob.write_bytes(content)
    done = box.deploy(source, "--via", "ssh")
    assert done.code == 1
    assert done.json["steps"][0]["state"] == "failed"
    assert box.served_version() == "one"
