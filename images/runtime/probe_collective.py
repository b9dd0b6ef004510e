"""One rank of the collective rung: `probe_collective.py RANK WORLD FILE MODE`, MODE `nccl` or `symmetric`.

Sizes cross the points where NCCL changes its protocol: a library can pass with small messages and fail from
512 KiB on.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from typing import Any

SIZES = (8, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 16 << 20, 64 << 20)
ROUNDS = 5
PERIOD = 64


def tell(kind: str, **facts: Any) -> None:
    """One JSON line for the parent."""
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


def all_reduce(torch: Any, distributed: Any, rank: int, world: int) -> None:
    """Sums of whole numbers, which every order of addition gives exactly."""
    for size in SIZES:
        tell("begin", rung="all-reduce", size=size)
        count = size // 4
        ramp = torch.arange(count, device="cuda") % PERIOD
        want = (ramp * world + world * (world - 1) / 2).to(torch.float32)
        wrong = 0
        for _ in range(ROUNDS):
            data = (ramp + rank).to(torch.float32)
            distributed.all_reduce(data)
            wrong += int((data != want).sum().item())
        scratch = torch.zeros(count, device="cuda")
        distributed.all_reduce(scratch)
        torch.cuda.synchronize()
        clock = time.perf_counter()
        for _ in range(ROUNDS):
            distributed.all_reduce(scratch)
        torch.cuda.synchronize()
        elapsed = (time.perf_counter() - clock) / ROUNDS
        tell(
            "rung", rung="all-reduce", size=size, outcome="wrong-data" if wrong else "ok", wrong=wrong,
            values={"us": round(elapsed * 1e6, 1)},
        )  # fmt: skip


def symmetric(torch: Any, distributed: Any, rank: int, world: int) -> None:
    """Write into the next rank's symmetric memory, meet, and look at what the previous one wrote into ours."""
    from torch.distributed import _symmetric_memory as memory  # noqa: PLC0415

    tell("begin", rung="symmetric-memory")
    count = 1 << 18
    local = memory.empty(count, dtype=torch.float32, device="cuda")
    local.zero_()
    handle = memory.rendezvous(local, distributed.group.WORLD)
    handle.barrier()
    peer = handle.get_buffer((rank + 1) % world, (count,), torch.float32)
    peer.fill_(float(rank + 1))
    handle.barrier()
    torch.cuda.synchronize()
    wrong = int((local != float((rank - 1) % world + 1)).sum().item())
    tell("rung", rung="symmetric-memory", outcome="wrong-data" if wrong else "ok", wrong=wrong, size=count * 4)


def main() -> int:
    """Join the group, run, leave; what torch raises is reported as a failed rung with its first line."""
    rank, world, file, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    tell("begin", rung="import-torch")
    try:
        import torch  # noqa: PLC0415
        from torch import distributed  # noqa: PLC0415
    except ImportError as error:
        tell("rung", rung="import-torch", outcome="unavailable", log=str(error)[:300])
        return 0
    tell("begin", rung="communicator")
    try:
        torch.cuda.set_device(rank)
        distributed.init_process_group(
            "nccl", init_method=f"file://{file}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
        )
        version = ".".join(str(part) for part in torch.cuda.nccl.version())
        tell("note", rung="communicator", torch=torch.__version__, nccl=version)
        (all_reduce if mode == "nccl" else symmetric)(torch, distributed, rank, world)
        distributed.destroy_process_group()
    except (RuntimeError, ValueError, OSError) as error:
        tell("rung", rung="error", outcome="error", log=" ".join(str(error).split())[:400])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
