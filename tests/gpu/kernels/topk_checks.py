"""Top-k against the documented order: NaN largest, equal values by column, -inf ordinary, lengths real."""

from __future__ import annotations

import reference
import torch
from blackwell_kernels import topk_transform


def expected(
    logits: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor, page_size: int, k: int
) -> torch.Tensor:
    """By stable sorting in float64, row by row."""
    out = torch.full((logits.shape[0], k), -1, dtype=torch.int32, device=logits.device)
    for row, length in enumerate(lengths.clamp(0, logits.shape[1]).tolist()):
        values = logits[row, :length].double()
        values = torch.where(torch.isnan(values), float("inf"), values) + 0.0
        ranks = torch.isnan(logits[row, :length]).double()
        # Stable, descending by (is NaN, value): sort by the less important key first.
        order = torch.sort(values, descending=True, stable=True).indices
        order = order[torch.sort(ranks[order], descending=True, stable=True).indices]
        columns = order[:k].sort().values
        slots = table[row, columns // page_size].long() * page_size + columns % page_size
        out[row, : columns.numel()] = slots.to(torch.int32)
    return out


def case(
    rows: int, columns: int, kind: str, page_size: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of a kind, lengths from 0 to all columns, and a page table without order."""
    generator = torch.Generator("cuda").manual_seed(seed)
    logits = torch.randn(rows, columns, generator=generator, device="cuda")
    if kind == "ties":
        logits = (logits * 2).round()
    elif kind == "same":
        logits = torch.zeros_like(logits)
        logits[:, ::2] = -0.0
    elif kind == "special":
        pick = torch.rand(rows, columns, generator=generator, device="cuda")
        logits[pick < 0.3] = float("-inf")
        logits[pick > 0.999] = float("nan")
        logits[(pick > 0.99) & (pick <= 0.999)] = float("inf")
    elif kind == "narrow":
        logits = 1.0 + logits * 1e-6
    elif kind == "no -inf fits":
        logits[:] = float("-inf")
        logits[:, -7:] = 1.0
    lengths = torch.randint(0, columns + 1, (rows,), generator=generator, device="cuda", dtype=torch.int32)
    lengths[0] = columns
    pages = (columns + page_size - 1) // page_size
    table = torch.stack([torch.randperm(pages, generator=generator, device="cuda") for _ in range(rows)])
    return logits, lengths, table.to(torch.int32)


def check_all() -> dict[str, object]:
    """Sizes on both sides of every limit of the kernel; ordinary launches, strided rows and graph replays."""
    compared = 0
    shapes = [(1, 1), (3, 511), (2, 513), (4, 2049), (5, 16384), (3, 16385), (1, 65536), (7, 65537)]
    shapes += [(2, 131071), (1, 262144), (64, 32768), (300, 20481), (33, 4099), (40, 100_000)]
    for number, (rows, columns) in enumerate(shapes):
        for kind in ("normal", "ties", "same", "special", "narrow", "no -inf fits"):
            for k in (512, 2048):
                page_size = (64, 1, 256)[number % 3]
                logits, lengths, table = case(rows, columns, kind, page_size, seed=number)
                wanted = expected(logits, lengths, table, page_size, k)
                seen = torch.full_like(wanted, -7)
                for _ in range(2):  # the second one finds the workspace as the first one left it
                    topk_transform(logits, lengths, table, page_size, k, out=seen)
                    if not torch.equal(seen, wanted):
                        raise reference.WrongError(_difference(seen, wanted, f"{rows}x{columns} {kind} k={k}"))
                compared += rows
    logits, lengths, table = case(6, 70_000, "normal", 64, 3)
    wide = torch.full((6, 80_001), float("nan"), device="cuda")
    wide[:, 1:70_001] = logits
    for view in (wide[:, 1:70_001], logits):
        seen = topk_transform(view, lengths, table, 64, 2048)
        if not torch.equal(seen, expected(logits, lengths, table, 64, 2048)):
            raise reference.WrongError("strided rows")
    return {"rows_compared": compared, "replays": replay(logits, lengths, table)}


def replay(logits: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor, replays: int = 3000) -> int:
    """A captured launch, with logits and lengths that change between replays."""
    graph, seen = torch.cuda.CUDAGraph(), torch.empty(6, 512, dtype=torch.int32, device="cuda")
    topk_transform(logits, lengths, table, 64, 512, out=seen)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        topk_transform(logits, lengths, table, 64, 512, out=seen)
    for number in range(replays):
        if number % 100 == 0:
            fresh, fresh_lengths, _ = case(6, 70_000, "ties" if number % 200 else "normal", 64, number)
            logits.copy_(fresh)
            lengths.copy_(fresh_lengths)
        graph.replay()
        if number % 100 == 0 and not torch.equal(seen, expected(logits, lengths, table, 64, 512)):
            raise reference.WrongError(f"top-k, replay {number}")
    torch.cuda.synchronize()
    return replays


def _difference(seen: torch.Tensor, wanted: torch.Tensor, where: str) -> str:
    row, place = (int(i) for i in (seen != wanted).nonzero()[0])
    return (
        f"top-k {where}: [{row}, {place}] is {int(seen[row, place])}, not {int(wanted[row, place])}; "
        f"{int((seen != wanted).sum())} of {wanted.numel()} wrong"
    )
