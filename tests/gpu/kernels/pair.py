"""One process a GPU over CUDA IPC, against NCCL with the norms of torch and FlashInfer, in one run."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import processes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_ROWS = (1, 4, 8, 16, 32, 64, 128, 256)
_HIDDEN = (4096, 7168)


def times(peers: Path | None) -> list[dict[str, object]]:
    """Times of rank 0, every graph being replayed by all ranks together."""
    import torch  # noqa: PLC0415

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["PAIR_PEERS"] = str(peers or "")
    world = torch.cuda.device_count()
    results = processes.run(world, "pair.timed", one_gpu=False, timeout=140.0)
    table: list[dict[str, object]] = processes.all_ok(results, "pair")[0]
    for row in table:
        medians = "  ".join(f"{name} {one['median']:.2f}" for name, one in row["times"].items())  # type: ignore[attr-defined]
        print(f"{row['rows']}x{row['hidden']}: {medians} us | planned {row['planned']}")
    return table


def timed(rank: int, world: int, device: int, exchange: Callable[[bytes], list[bytes]]) -> list[dict[str, Any]]:
    """The scenario of one rank."""
    import reference  # noqa: PLC0415
    import timing  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from blackwell_kernels import AllReduceGroup, plans  # noqa: PLC0415

    torch.cuda.set_device(device)
    torch.distributed.init_process_group(
        "nccl", rank=rank, world_size=world, device_id=torch.device("cuda", device)
    )
    group = AllReduceGroup(world, rank, exchange, 256 * max(_HIDDEN) * 2, _HIDDEN, device, patience=30.0)
    rows_found = []
    for hidden in _HIDDEN:
        for rows in _ROWS:
            xs, residual, weight = reference.inputs(world, rows, hidden, rows)
            x, norm = xs[rank], Norm(rows, hidden)

            def fused(x: Any = x, residual: Any = residual, weight: Any = weight) -> None:
                group.all_reduce_residual_rmsnorm(x, residual, weight, reference.EPS)

            def nccl(x: Any = x, residual: Any = residual, weight: Any = weight, norm: Any = norm) -> None:
                out = x.clone()
                torch.distributed.all_reduce(out)
                norm(out, residual, weight)

            found = {}
            for number, name in enumerate(plans.PATHS):
                group.forced = number
                out, residual_out = group.all_reduce_residual_rmsnorm(x, residual, weight, reference.EPS)
                reference.check(2, xs, residual, weight, out, residual_out, f"{name} {rows}x{hidden}")
                exchange(b"ready")
                found[name] = timing.time_graph(timing.repeated(fused))
                group.raise_if_stalled()
            group.forced = None
            exchange(b"ready")
            found[f"NCCL, then {norm.name}"] = timing.time_graph(timing.repeated(nccl))
            planned = plans.PATHS[group.plans[hidden].path(rows)]
            rows_found.append(
                {"world": world, "hidden": hidden, "rows": rows, "planned": planned, "times": found}
            )
    group.close()
    torch.distributed.destroy_process_group()
    return rows_found


class Norm:
    """The best norm at hand: FlashInfer's fused one where its library is carried, otherwise torch's."""

    def __init__(self, rows: int, hidden: int) -> None:
        import pathlib  # noqa: PLC0415

        import peers  # noqa: PLC0415

        path = os.environ.get("PAIR_PEERS", "")
        self.library = peers.load(pathlib.Path(path)) if path else None
        self.name = "FlashInfer's fused add and norm" if path else "torch's add and norm"
        self.rows, self.hidden = rows, hidden

    def __call__(self, x: Any, residual: Any, weight: Any) -> None:
        """In place where the library does so."""
        import reference  # noqa: PLC0415
        import torch  # noqa: PLC0415

        if self.library is None:
            torch.nn.functional.rms_norm(x + residual, (self.hidden,), weight, reference.EPS)
            return
        status = self.library.peer_add_rmsnorm(
            *(x.data_ptr(), residual.data_ptr(), weight.data_ptr(), self.rows, self.hidden, reference.EPS),
            torch.cuda.current_stream().cuda_stream,
        )
        if status:
            raise RuntimeError(f"fused_add_rmsnorm: CUDA error {status}")
