"""From release, stack, host and workload to the request that the host program gets: one pure function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tooling.deploy.image import ImageFacts
from tooling.deploy.preflight import gpu_mode
from tooling.errors import InputError
from tooling.host.reading import parse_request
from tooling.host.request import SCHEMA, Request
from tooling.records import Record
from tooling.release.verify import Verification
from tooling.stack.model import Stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.deploy.inventory import GpuGroup, Host, Model, Workload
    from tooling.deploy.preflight import Seen, SeenModel

_GIB = 1 << 30
_MB = 10**6
#: Hugging Face's libraries stay off the network: the pinned files are there, or the start fails at once.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


class Wanted(Record):
    """What goes onto every host of one deploy.

    Attributes:
        reference: `registry/repository`, without tag and digest: where the hosts pull.
        release: The verified release.
        image: Its image.
        stack: Its stack.
        records: Signed statements, for the host to keep and to check.
        trust: Public keys (PEM).
        accepted: What was accepted below `qualified`, and why; empty when nothing had to be.
        pull: `registry`, or `present` when the image is brought to the hosts before.
        keep: Earlier generations whose images stay on the host.
    """

    reference: str
    release: Verification
    image: ImageFacts
    stack: Stack
    records: tuple[dict[str, Any], ...] = ()
    trust: tuple[str, ...] = ()
    accepted: str = ""
    pull: str = "registry"
    keep: int = 3


def mounted_model(stack: Stack, model: Model, seen: SeenModel) -> tuple[dict[str, Any], str]:
    """The mount that brings a model into the container, and its path there.

    Of a Hugging Face cache the whole folder of this one model is mounted: the files of a revision are links to
    blobs beside it. No other model of the cache is seen by the engine.
    """
    source = seen.repository or seen.path
    folder = source.rsplit("/", 1)[-1]
    target = f"{stack.run.models}/{folder}"
    inside = f"{target}/snapshots/{model.revision}" if seen.repository else target
    return {"source": source, "target": target, "read_only": True}, inside


def serve_words(stack: Stack, workload: Workload, path: str) -> list[str]:
    """Arguments of the container: `serve` with the model, and what the workload adds.

    Raises:
        InputError: The workload repeats what the contract says by itself.
    """
    own = {stack.run.model_argument, stack.run.name_argument} if workload.model else set()
    for word in workload.arguments:
        name = word.lstrip("-").partition("=")[0]
        if word.startswith("--") and name in own:
            raise InputError(
                f"--{name} is set from the pinned model; it cannot be an argument as well",
                where="workload.arguments",
                fix="change the model (id, revision) instead",
            )
    words = ["serve"]
    if workload.model and path:
        words += [f"--{stack.run.model_argument}", path]
        words += [f"--{stack.run.name_argument}", workload.model.id]
    return [*words, *workload.arguments]


def contract_of(
    stack: Stack, host: Host, group: GpuGroup, workload: Workload, seen: Seen, *, accepted: str = ""
) -> dict[str, Any]:
    """The run contract as the host program reads it."""
    run = stack.run
    health = workload.health or run.health
    mounts, path = [], ""
    if workload.model is not None and seen.model is not None:
        mount, path = mounted_model(stack, workload.model, seen.model)
        mounts.append(mount)
    labels = {}
    if run.metrics_path:
        # Prometheus' Docker discovery shows them as __meta_docker_container_label_prometheus_io_...
        labels = {
            "prometheus.io/scrape": "true",
            "prometheus.io/path": run.metrics_path,
            "prometheus.io/port": str(stack.serve.port),
        }
    if accepted:
        labels["org.blackwell-stacks.accepted"] = accepted
    return {
        "gpus": list(group.gpus),
        "gpu_mode": gpu_mode(host, group, seen),
        "arguments": serve_words(stack, workload, path),
        "environment": {**OFFLINE, **run.environment, **workload.environment},
        "environment_files": list(workload.environment_files),
        "mounts": mounts,
        "cache_mount": {"source_root": host.jit_cache, "target": run.cache} if run.cache else None,
        "ports": [{"address": host.bind, "host": group.port, "container": stack.serve.port}],
        "ipc": "host" if run.ipc == "host" else "",
        "shm_bytes": int(run.shm_gb * _GIB) if run.shm_gb and run.ipc != "host" else 0,
        "memlock": -1 if run.memlock_unlimited else 0,
        "log_max_bytes": run.log_max_mb * _MB,
        "log_files": run.log_files,
        "stop_grace_seconds": run.stop_grace_seconds,
        "labels": labels,
        "health": {
            "port": stack.serve.port,
            "model": workload.model.id if workload.model else "",
            **health.model_dump(mode="json"),
        },
    }


def build_request(wanted: Wanted, host: Host, group: GpuGroup, workload: Workload, seen: Seen) -> Request:
    """The request for one group of one host, checked by the host program's own reader.

    Args:
        wanted: What is deployed.
        host: Where.
        group: Which GPUs there.
        workload: What is served.
        seen: What the host looks like.

    Raises:
        InputError: Something that the inventory or the stack says cannot be done.
    """
    image, release = wanted.image, wanted.release
    missing = image.missing(seen.engine.images)
    model = None
    if workload.model is not None:
        path = seen.model.path if seen.model else ""
        model = {"id": workload.model.id, "revision": workload.model.revision, "path": path}
    document = {
        "schema": SCHEMA,
        "release": release.release.name,
        "reference": f"{wanted.reference}@{release.digest}",
        "digest": release.digest,
        "image_id": image.image_id,
        "sizes": {
            "compressed": sum(layer.compressed for layer in missing),
            "unpacked": sum(layer.unpacked for layer in missing),
            "layers": [
                {"diff_id": each.diff_id, "compressed": each.compressed, "unpacked": each.unpacked}
                for each in image.layers
            ],
        },
        "stack": wanted.stack.name,
        "group": group.name,
        "contract": contract_of(wanted.stack, host, group, workload, seen, accepted=wanted.accepted),
        "model": model,
        "requirements": {
            "driver_minimum": release.release.policy.driver_min if group.gpus else "",
            "target": target_of(wanted.stack, release.release.policy.compute_capabilities),
            "gpu_count": len(group.gpus),
            "platform": image.platform,
        },
        "attestations": [
            release.record_sha256,
            *(item.payload_sha256 for item in release.release.attestations),
        ],
        "records": list(wanted.records),
        "trust": list(wanted.trust),
        "keep": wanted.keep,
        "pull": wanted.pull,
    }
    return parse_request(document, source=f"request for {host.name}")


def target_of(stack: Stack, capabilities: Sequence[str]) -> str:
    """The GPU architecture that the host must show, e.g. `sm_120`; empty for a stack without CUDA."""
    if not stack.targets.required:
        return ""
    if len(capabilities) == 1:
        return f"sm_{capabilities[0].replace('.', '')}"
    return stack.targets.required[0].rstrip("af")
