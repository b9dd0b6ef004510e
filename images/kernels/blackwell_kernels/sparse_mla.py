"""Sparse decode attention over DeepSeek-V4's paged latent cache, in Triton: checks and launches."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from blackwell_kernels.triton_kernels import sparse_mla_combine_kernel, sparse_mla_part_kernel

#: A token's vector: 448 FP8 values in groups of 64 with a power of two each, then 64 bfloat16 values.
WIDTH, GROUP, GROUPS = 512, 64, 8
#: Bytes of a token's values and of its scales; in a page all values come first.
VALUE_BYTES, SCALE_BYTES = 576, 8
MAX_HEADS = 128
#: Heads and tokens of a tile.
BLOCK_HEADS, BLOCK_TOKENS = 16, 32
WARPS, STAGES = 8, 1
COMBINE_WARPS, COMBINE_STAGES = 4, 1
MAX_PARTS = 64
#: Programs that are enough to fill a GPU with one of 8 warps a multiprocessor.
_PROGRAMS = 192
_ALIGNMENT = 16
_LOG2_E = 1.4426950408889634


class Scope(NamedTuple):
    """One cache and the tokens of it that each sequence attends to.

    Attributes:
        cache: [pages, bytes] uint8, rows of at least page_size * 584 bytes and a multiple of 16 apart.
        indices: [sequences, width] int32, token t is slot t % page_size of page t // page_size; -1 is none.
        lengths: [sequences] int32, how many of the indices count; None for all.
        page_size: Tokens a page.
    """

    cache: torch.Tensor
    indices: torch.Tensor
    lengths: torch.Tensor | None
    page_size: int


def check_attention(q: torch.Tensor, scopes: tuple[Scope, ...], sinks: torch.Tensor | None) -> None:
    """Refuse arguments that the kernels would misread.

    Raises:
        ValueError: Says which argument, and what was expected.
    """
    if q.dim() != 3 or q.dtype != torch.bfloat16 or q.shape[2] != WIDTH or not q.is_contiguous():  # noqa: PLR2004
        raise ValueError(f"q: [sequences, heads, {WIDTH}] bfloat16 contiguous, not {_seen(q)}")
    sequences, heads, _ = q.shape
    if not 1 <= heads <= MAX_HEADS:
        raise ValueError(f"q: 1 to {MAX_HEADS} heads, not {heads}")
    if sinks is not None and (sinks.shape != (heads,) or sinks.dtype != torch.float32):
        raise ValueError(f"sinks: [{heads}] float32, not {_seen(sinks)}")
    for name, scope in zip(("", "more_"), scopes, strict=False):
        _check_scope(name, scope, sequences)


def _check_scope(name: str, scope: Scope, sequences: int) -> None:
    cache, indices, lengths, page_size = scope
    least = page_size * (VALUE_BYTES + SCALE_BYTES)
    if page_size < 1:
        raise ValueError(f"{name}page_size: at least 1, not {page_size}")
    if cache.dim() != 2 or cache.dtype != torch.uint8 or cache.shape[1] < least or cache.stride(1) != 1:  # noqa: PLR2004
        raise ValueError(f"{name}cache: [pages, {least} or more] uint8, not {_seen(cache)}")
    if cache.shape[1] % 2 or cache.stride(0) % _ALIGNMENT or cache.data_ptr() % _ALIGNMENT:
        raise ValueError(f"{name}cache: pages must be aligned to {_ALIGNMENT} bytes, not {_seen(cache)}")
    if indices.dim() != 2 or indices.dtype != torch.int32 or indices.shape[0] != sequences:  # noqa: PLR2004
        raise ValueError(f"{name}indices: [{sequences}, width] int32, not {_seen(indices)}")
    if not indices.is_contiguous() or not indices.shape[1]:
        raise ValueError(f"{name}indices: contiguous, at least one a row, not {_seen(indices)}")
    if lengths is not None and (lengths.shape != (sequences,) or lengths.dtype != torch.int32):
        raise ValueError(f"{name}lengths: [{sequences}] int32, not {_seen(lengths)}")


def _seen(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype} with strides {list(tensor.stride())}"


def parts_of(sequences: int, heads: int, widths: tuple[int, ...]) -> int:
    """Into how many parts a sequence is cut. Rests on shapes alone: a captured launch serves all lengths."""
    tiles = sum(-(-width // BLOCK_TOKENS) for width in widths)
    programs = sequences * -(-heads // BLOCK_HEADS)
    return max(1, min(MAX_PARTS, tiles, _PROGRAMS // programs))


def run_attention(
    q: torch.Tensor, scopes: tuple[Scope, ...], sinks: torch.Tensor | None, softmax_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch both kernels on the current stream; returns (out, lse)."""
    sequences, heads, _ = q.shape
    out = torch.empty_like(q)
    lse = torch.empty((sequences, heads), dtype=torch.float32, device=q.device)
    if sequences == 0:
        return out, lse
    parts = parts_of(sequences, heads, tuple(scope.indices.shape[1] for scope in scopes))
    sums = torch.empty((sequences, heads, parts, WIDTH), dtype=torch.float32, device=q.device)
    peaks, totals = torch.empty((2, sequences, heads, parts), dtype=torch.float32, device=q.device)
    first, more = scopes[0], scopes[-1]
    sparse_mla_part_kernel[(sequences, triton.cdiv(heads, BLOCK_HEADS), parts)](
        q,
        *_views(first),
        *_views(more),
        sums,
        peaks,
        totals,
        heads,
        parts,
        first.indices.shape[1],
        first.cache.stride(0),
        more.indices.shape[1],
        more.cache.stride(0),
        softmax_scale * _LOG2_E,
        HAS_LENGTHS=first.lengths is not None,
        HAS_MORE=len(scopes) > 1,
        HAS_MORE_LENGTHS=more.lengths is not None,
        PAGE=first.page_size,
        MORE_PAGE=more.page_size,
        HEADS=BLOCK_HEADS,
        TOKENS=BLOCK_TOKENS,
        WIDTH=WIDTH,
        GROUP=GROUP,
        GROUPS=GROUPS,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    sparse_mla_combine_kernel[(sequences, heads)](
        sums,
        peaks,
        totals,
        sinks,
        out,
        lse,
        heads,
        parts,
        HAS_SINKS=sinks is not None,
        PARTS=triton.next_power_of_2(parts),
        WIDTH=WIDTH,
        num_warps=COMBINE_WARPS,
        num_stages=COMBINE_STAGES,
    )
    return out, lse


def _views(scope: Scope) -> tuple[torch.Tensor | None, ...]:
    """One cache as the three types that are in it, with the indices and lengths."""
    cache = scope.cache
    return (
        cache.view(torch.float8_e4m3fn),
        cache.view(torch.bfloat16),
        cache,
        scope.indices,
        scope.lengths,
    )
