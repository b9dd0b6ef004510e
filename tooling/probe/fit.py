"""Does a stack with a model fit a machine? Answered before gigabytes are pulled. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic import Field

from tooling.probe.judge import driver_wanted
from tooling.probe.tables import at_least
from tooling.records import Record

if TYPE_CHECKING:
    from tooling.probe.records import HostRecord
    from tooling.stack.model import Stack

GIB = 2**30
#: CUDA context, graphs and workspaces of an engine on each GPU; the part of a GPU that engines take at most.
OVERHEAD_BYTES = 3 * GIB
USABLE = 0.94


class FitVerdict(StrEnum):
    """Whether to pull."""

    COMPATIBLE = "compatible"  # everything that was asked for, on a target of the stack
    RUNNABLE = "runnable"  # starts, with the named reservations
    NOT = "not"


class FitRequest(Record):
    """What is to run.

    Attributes:
        weights_bytes: All weights, as loaded.
        cache_bytes: KV cache that the service needs, all GPUs together.
        gpus: GPUs that the model is spread over.
        image_bytes: Free disk that the pull and its unpacking need.
        model_disk_bytes: Free disk for the model's files; 0 when they are there.
        reservations: What these sizes leave out.
    """

    weights_bytes: int = Field(gt=0)
    cache_bytes: int = Field(default=0, ge=0)
    gpus: int = Field(default=1, ge=1)
    image_bytes: int = Field(default=0, ge=0)
    model_disk_bytes: int = Field(default=0, ge=0)
    reservations: tuple[str, ...] = ()


class Fit(Record):
    """The answer.

    Attributes:
        verdict: compatible, runnable or not.
        reasons: Why not, or why not fully; empty only for compatible.
        needed_bytes: Memory on each GPU that the model needs.
        available_bytes: Memory of the smallest GPU chosen that an engine can take.
        cache_room_bytes: KV cache for which there is room beside the weights, all GPUs together.
        gpus: Numbers of the GPUs that would be used.
    """

    verdict: FitVerdict
    reasons: tuple[str, ...] = ()
    needed_bytes: int
    available_bytes: int
    cache_room_bytes: int = 0
    gpus: tuple[int, ...] = ()


def capability_of(target: str) -> str:
    """`12.0` of `sm_120`."""
    digits = re.sub(r"\D", "", target)
    return f"{digits[:-1]}.{digits[-1]}"


def fit(host: HostRecord, stack: Stack, request: FitRequest) -> Fit:
    """Hold a machine against a stack and a model."""
    against: list[str] = []
    reservations = list(request.reservations)
    required = {capability_of(target) for target in stack.targets.required}
    optional = {capability_of(target) for target in stack.targets.optional}
    known = required | optional
    usable = [gpu for gpu in host.gpus if not known or gpu.compute_capability in known]
    unknown = [gpu for gpu in host.gpus if not gpu.compute_capability]
    if not usable and unknown and stack.cuda:
        reservations.append("the compute capability could not be read: cuInit was not possible here")
        usable = unknown
    usable = sorted(usable, key=lambda gpu: -(gpu.memory_free_bytes or gpu.memory_bytes or 0))[: request.gpus]
    if not stack.cuda:
        reservations.append("this stack runs on the CPU: GPU memory is not looked at")
    elif len(usable) < request.gpus:
        have = ", ".join(f"{gpu.name} ({gpu.compute_capability or '?'})" for gpu in host.gpus) or "no GPU"
        against.append(f"needs {request.gpus} GPU(s) of {', '.join(sorted(known))}; here: {have}")
    elif any(gpu.compute_capability in optional - required for gpu in usable):
        reservations.append("an optional target of the stack: served where the packages allow it, never a gate")
    needed = (request.weights_bytes + request.cache_bytes) // request.gpus + OVERHEAD_BYTES
    sizes = [int((gpu.memory_bytes or 0) * USABLE) for gpu in usable]
    available = min(sizes, default=0)
    if stack.cuda and len(usable) == request.gpus:
        against += _memory(needed, available)
        busy = [gpu for gpu in usable if gpu.memory_free_bytes is not None and gpu.memory_free_bytes < needed]
        if busy and available >= needed:
            reservations.append(
                f"GPUs {[gpu.index for gpu in busy]} are in use now: free memory is below the need"
            )
    for reason, version in driver_wanted(stack.cuda or "", (gpu.compute_capability for gpu in usable)):
        enough = at_least(host.driver, version) if host.driver else None
        if enough is None:
            reservations.append(f"the driver is not known; {reason} needs {version}")
        elif not enough:
            against.append(f"driver {host.driver}: {reason} needs {version}")
    against += _disk(host, request)
    verdict = FitVerdict.NOT if against else FitVerdict.RUNNABLE if reservations else FitVerdict.COMPATIBLE
    return Fit(
        verdict=verdict, reasons=(*against, *reservations), needed_bytes=needed, available_bytes=available,
        cache_room_bytes=max(0, available * len(usable) - request.weights_bytes - OVERHEAD_BYTES * len(usable)),
        gpus=tuple(sorted(gpu.index for gpu in usable)),
    )  # fmt: skip


def _memory(needed: int, available: int) -> list[str]:
    if available >= needed:
        return []
    return [f"needs {needed / GIB:.1f} GiB on each GPU, an engine can take {available / GIB:.1f} GiB"]


def _disk(host: HostRecord, request: FitRequest) -> list[str]:
    need = request.image_bytes + request.model_disk_bytes
    if not need:
        return []
    if not host.disks:
        return ["free disk is not known"]
    disk = host.disks[-1]  # the engine's own folder comes last
    if disk.free >= need:
        return []
    return [f"needs {need / GIB:.1f} GiB of disk at {disk.path}, {disk.free / GIB:.1f} GiB are free"]
