"""Logits of the sparse indexer over a paged FP8 cache, in Triton: checks of the arguments and the launch."""

from __future__ import annotations

import torch
import triton

from blackwell_kernels.triton_kernels import paged_mqa_logits_kernel

#: Keys a page, values a key, and bytes a key: 128 of FP8 and the float32 scale.
PAGE, WIDTH, KEY_BYTES = 64, 128, 132
HEADS = (32, 64)
#: Programs that are enough to fill a GPU; a row is cut into parts until there are so many.
_PROGRAMS = 512
WARPS, STAGES = 4, 2


def check_logits(  # noqa: PLR0917
    q: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    columns: int,
) -> None:
    """Refuse arguments that the kernel would misread.

    Raises:
        ValueError: Says which argument, and what was expected.
    """
    if q.dim() != 4 or q.dtype != torch.float8_e4m3fn or q.shape[2] not in HEADS or q.shape[3] != WIDTH:  # noqa: PLR2004
        raise ValueError(f"q: [sequences, next, 32 or 64, {WIDTH}] float8_e4m3fn, not {_seen(q)}")
    sequences, following, heads, _ = q.shape
    rows = sequences * following
    if cache.dtype != torch.uint8 or cache.dim() != 4 or cache.shape[1:] != (PAGE, 1, KEY_BYTES):  # noqa: PLR2004
        raise ValueError(f"cache: [pages, {PAGE}, 1, {KEY_BYTES}] uint8, not {_seen(cache)}")
    if weights.shape != (rows, heads) or weights.dtype != torch.float32:
        raise ValueError(f"weights: [{rows}, {heads}] float32, not {_seen(weights)}")
    if lengths.numel() != rows or lengths.shape[0] != sequences or lengths.dtype != torch.int32:
        raise ValueError(f"lengths: [{sequences}, {following}] int32, not {_seen(lengths)}")
    if page_table.dim() != 2 or page_table.dtype != torch.int32 or page_table.shape[0] != sequences:  # noqa: PLR2004
        raise ValueError(f"page_table: [{sequences}, pages] int32, not {_seen(page_table)}")
    if not 1 <= columns <= page_table.shape[1] * PAGE:
        raise ValueError(f"max_length: 1 to {page_table.shape[1] * PAGE} (pages of {PAGE}), not {columns}")
    for name, tensor in (("q", q), ("cache", cache), ("weights", weights), ("lengths", lengths)):
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: must be contiguous, not {_seen(tensor)}")
    if page_table.shape[1] > 1 and page_table.stride(1) != 1:
        raise ValueError(f"page_table: contiguous pages, not {_seen(page_table)}")


def _seen(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype} with strides {list(tensor.stride())}"


def run_logits(  # noqa: PLR0917
    q: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Launch on the current stream. The grid rests on shapes alone: a captured launch serves all lengths."""
    rows, columns = out.shape
    if rows == 0:
        return
    parts = max(1, min(triton.cdiv(columns, PAGE), _PROGRAMS // rows))
    paged_mqa_logits_kernel[(rows, parts)](
        q,
        cache.view(torch.float8_e4m3fn),
        cache.view(torch.float32),
        weights,
        lengths,
        page_table,
        out,
        page_table.stride(0),
        out.stride(0),
        columns,
        parts,
        NEXT=q.shape[1],
        HEADS=q.shape[2],
        WIDTH=WIDTH,
        PAGE=PAGE,
        num_warps=WARPS,
        num_stages=STAGES,
    )
