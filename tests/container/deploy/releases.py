"""Real releases of a stand-in engine in a real registry: signed, verified, made in a second."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.container.tiny_image import PYTHON, python_layer
from tests.unit.release_examples import CPU_POLICY, FACTS, KEY, TRUST, build_run, gate_run
from tooling.gates.records import Verdict
from tooling.registry.manifest import MANIFEST, Manifest
from tooling.release.evidence import write_evidence
from tooling.release.publish import Released, ReleaseRequest, release

if TYPE_CHECKING:
    from tooling.registry.repository import Repository

STACK = "standin"
#: The images have no census to compare.
POLICY = CPU_POLICY.model_copy(update={"census_not_worse": False})
STACK_FILE = f"""\
name: {STACK}
description: a stand-in engine for the tests of deploys
platform: {{glibc: "2.36", python: "3.11"}}
engine: {{name: none, package: hello, version: 1.0.0}}
base: {{bootstrap: {{suite: bookworm, packages: [python3.11]}}}}
layers: [{{name: all}}]
serve: {{command: [python], port: 8000}}
run:
  shm_gb: 0.0625
  cache: /kernels
  stop_grace_seconds: 10
  health:
    questions: [{{prompt: "What is 17*23?", expect: "391"}}]
    ready_timeout_seconds: 20
    interval_seconds: 0.05
budget: {{build_disk_gb: 1}}
"""
_STAND_IN = Path(__file__).parents[1] / "host" / "stand_in.py"


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _descriptor(content: bytes, kind: str) -> dict[str, Any]:
    return {
        "mediaType": f"application/vnd.oci.image.{kind}",
        "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
        "size": len(content),
    }


class Shelf:
    """Makes images and releases; layers that they share are made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = python_layer()
        self.python_blob = gzip.compress(self.python, compresslevel=1, mtime=0)

    def image(
        self, repository: Repository, version: str, *, architecture: str = "amd64", **behaviour: Any
    ) -> Manifest:
        """Push an image; only its last layer, of some hundred bytes, is its own."""
        about = {"version": version, "load_s": 0.1, **behaviour}
        tars = [
            self.python,
            _tar({"stand_in.py": _STAND_IN.read_bytes()}),
            _tar({"stand-in.json": json.dumps(about).encode()}),
        ]
        blobs = [self.python_blob, *(gzip.compress(tar, mtime=0) for tar in tars[1:])]
        config = json.dumps(
            {
                "architecture": architecture,
                "os": "linux",
                "config": {
                    "Entrypoint": [PYTHON, "/stand_in.py"],
                    "Labels": {"org.blackwell-stacks.stack": STACK},
                },
                "rootfs": {
                    "type": "layers",
                    "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars],
                },
            }
        ).encode()
        for blob in (config, *blobs):
            repository.upload(blob)
        manifest = Manifest.parse(
            json.dumps(
                {
                    "schemaVersion": 2,
                    "mediaType": MANIFEST,
                    "config": _descriptor(config, "config.v1+json"),
                    "layers": [_descriptor(blob, "layer.v1.tar+gzip") for blob in blobs],
                }
            ).encode()
        )
        repository.put_manifest(manifest)
        return manifest

    def release(
        self, repository: Repository, version: str, *, policy: Any = POLICY, **behaviour: Any
    ) -> Released:
        """Push an image and release it."""
        image = self.image(repository, version, **behaviour)
        now = datetime.now(UTC)
        started, ended = ((now - timedelta(minutes=minutes)).isoformat() for minutes in (2, 1))
        evidence = self.folder / f"evidence-{version}"
        write_evidence(build_run(digest=image.digest), KEY, evidence)
        write_evidence(
            gate_run("correctness", Verdict.PASS, digest=image.digest, started=started, ended=ended),
            KEY,
            evidence,
        )
        request = ReleaseRequest(
            stack=STACK,
            engine_version="1.0.0",
            policy=policy,
            tool_version="0.1.0",
            evidence=evidence,
            facts=FACTS,
        )
        return release(request, repository, image.digest, key=KEY, trust=TRUST, now=now)
