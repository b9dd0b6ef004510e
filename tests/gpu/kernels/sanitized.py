"""A small run of every kernel for a memory checker or race detector, which slow kernels down a hundredfold."""

from __future__ import annotations

import mhc_checks
import topk_checks
import torch
import virtual
from blackwell_kernels import topk_transform


def small() -> dict[str, object]:
    """All paths and kinds on few rows, hyper-connections too; top-k with one block and with a team."""
    compared = 0
    for world, hidden in ((2, 512), (4, 512), (8, 8192)):
        ranks = virtual.Ranks(world, 12, hidden, patience=3.0)
        for number, rows in enumerate((1, 9, 12)):
            compared += virtual.check_round(ranks, rows, hidden, number, 0.02 * (number % 2))
        ranks.close()
    both = mhc_checks.Ranks(2, 3, 1280)
    for tokens in (1, 3):
        xs, shared, mixing = both.inputs(tokens, tokens)
        compared += mhc_checks.check_paths(both, xs, shared, mixing, f"{tokens}x1280")
    both.ranks.close()
    for rows, columns in ((2, 3000), (1, 40_000)):
        logits, lengths, table = topk_checks.case(rows, columns, "ties", 64, 1)
        seen = topk_transform(logits, lengths, table, 64, 512)
        if not torch.equal(seen, topk_checks.expected(logits, lengths, table, 64, 512)):
            raise AssertionError(f"top-k of {rows}x{columns}")
        compared += rows
    return {"comparisons": compared}
