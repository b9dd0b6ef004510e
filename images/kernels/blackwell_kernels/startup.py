"""What a new group does before its first real round: prove that memory carries data, choose its paths."""

from __future__ import annotations

import json
import os
import struct
import sys
from typing import TYPE_CHECKING

import torch

from blackwell_kernels import plans
from blackwell_kernels.errors import KernelError, StalledError
from blackwell_kernels.library import require_library
from blackwell_kernels.slab import KINDS, Round, Slab

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blackwell_kernels.vote import Vote

_RUNS, _WARM, _ROUNDS = 5, 3, 40
_FUSED = KINDS.index("all_reduce_residual_rmsnorm_unrounded")


def raise_if_stalled(slab: Slab) -> None:
    """Raise a diagnosis if there is one.

    Raises:
        StalledError: A kernel of this rank gave up waiting.
    """
    if text := slab.diagnosis():
        raise StalledError(text)


def check_data(slab: Slab, device: torch.device) -> None:
    """Run every path once with numbers that only the sum over the right ranks gives.

    Peer access that was granted and carries nothing, or maps a private copy, ends here and not in wrong tokens.

    Raises:
        KernelError: A path gave something else. StalledError: a peer's data never came.
    """
    sizes = slab.sizes
    rows = min(sizes.rows, 2 * sizes.world)
    pattern = torch.arange(rows * sizes.hidden, device=device).remainder(7).reshape(rows, sizes.hidden)
    # Below 2^8 times 7: exact in bfloat16 on every rank, and a different summand from each.
    x = (pattern + (1 << slab.rank)).to(torch.bfloat16)
    wanted = (pattern * sizes.world + (1 << sizes.world) - 1).to(torch.bfloat16)
    for path, name in enumerate(plans.PATHS):
        if not sizes.takes(path, rows):
            continue
        out = torch.full_like(x, float("nan"))
        slab.run(path, 0, Round(x, None, None, 0.0, out, out))
        torch.cuda.synchronize()
        raise_if_stalled(slab)
        if not torch.equal(out, wanted):
            raise KernelError(f"{name}: sums are {out[0, :4].tolist()}, not {wanted[0, :4].tolist()}")


def default_plans(slab: Slab, hidden_sizes: Sequence[int]) -> dict[int, plans.Plan]:
    """Without a measurement: push, one-shot for up to two rows a rank."""
    few = min(slab.sizes.one_shot_rows, 2 * slab.sizes.world, slab.sizes.rows)
    limits = {(few, 0), (slab.sizes.rows, 1)} if few < slab.sizes.rows else {(few, 0)}
    return dict.fromkeys(hidden_sizes, plans.Plan(tuple(sorted(limits))))


def find_plans(
    slab: Slab, vote: Vote, hidden_sizes: Sequence[int], device: torch.device
) -> dict[int, plans.Plan]:
    """Plans kept from an earlier start on the same topology, or measured now; the same on all ranks.

    Raises:
        GroupError: A rank could not measure.
    """
    facts = _facts(slab, vote, hidden_sizes, device)
    path = plans.plan_folder() / f"{plans.topology_key(facts)}.json"
    # Rank 0 alone reads: containers of one group may have different caches.
    kept = path.read_bytes() if slab.rank == 0 and path.is_file() else b""
    text = vote.gather(kept)[0].decode("utf-8", "replace")
    if text and (found := plans.read_plans(text, hidden_sizes)):
        return found
    times = {}
    for hidden in hidden_sizes:
        mine = vote.agree("no measurement", lambda size=hidden: measure(slab, size, device))  # type: ignore[misc]
        packed = struct.pack(f"<{len(mine)}d", *mine.values())
        unpacked = (struct.unpack(f"<{len(mine)}d", data) for data in vote.gather(packed))
        times[hidden] = plans.slowest([dict(zip(mine, values, strict=True)) for values in unpacked])
    chosen = {hidden: plans.choose(table) for hidden, table in times.items()}
    if slab.rank == 0:
        try:
            plans.write_plans(path, facts, chosen, times)
        except OSError as error:
            print(f"blackwell_kernels: the measured plan is not kept: {error}", file=sys.stderr, flush=True)
    return chosen


def _facts(slab: Slab, vote: Vote, hidden_sizes: Sequence[int], device: torch.device) -> dict[str, object]:
    """What a plan depends on; gathered, so that every rank has the same."""
    properties = torch.cuda.get_device_properties(device)
    mine = {
        "device": properties.name,
        "bus": f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}",
        "host": os.uname().nodename,
        "processors": properties.multi_processor_count,
    }
    ranks = [json.loads(data) for data in vote.gather(json.dumps(mine).encode())]
    sizes = slab.sizes._asdict() | {"hidden": list(hidden_sizes)}
    return {"ranks": ranks, **sizes, "library": require_library().bk_version()}


def measure(slab: Slab, hidden: int, device: torch.device) -> dict[tuple[int, int], float]:
    """Seconds a round of the fused kernel on this rank.

    Returns:
        (rows, path) -> median of five runs of 40 rounds each, in the same order on every rank.

    Raises:
        StalledError: A peer did not come.
    """
    weight = torch.ones(hidden, dtype=torch.bfloat16, device=device)
    times: dict[tuple[int, int], float] = {}
    for rows in plans.measured_rows(slab.sizes.rows):
        x = torch.randn(rows, hidden, device=device).to(torch.bfloat16)
        tensors = Round(x, x, weight, 1e-6, torch.empty_like(x), torch.empty_like(x))
        for path in range(len(plans.PATHS)):
            if slab.sizes.takes(path, rows):
                times[rows, path] = sorted(_seconds(slab, path, tensors) for _ in range(_RUNS))[_RUNS // 2]
                raise_if_stalled(slab)
    return times


def _seconds(slab: Slab, path: int, tensors: Round) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    slab.run(path, _FUSED, tensors, times=_WARM)
    begin.record()
    slab.run(path, _FUSED, tensors, times=_ROUNDS)
    end.record()
    end.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / 1e3 / _ROUNDS
