"""Sparse decode attention over DeepSeek-V4's paged latent cache, in Triton: the kernels and their launch.

One latent vector a token is key and value of all heads, so a tile of tokens is read once for 16 heads and goes
through the tensor cores. A sequence is cut into parts (split-K) that a second kernel brings together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

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


@triton.jit
def _count(lengths, sequence, width, HAS_LENGTHS: tl.constexpr):
    """How many indices of a sequence count."""
    if HAS_LENGTHS:
        return tl.maximum(tl.minimum(tl.load(lengths + sequence), width), 0)
    return width


@triton.jit
def _attend(
    query,
    values,  # FP8 view of the cache
    ropes,  # bfloat16 view
    scales,  # uint8 view
    indices,
    count,
    first,
    step,
    page_stride,
    scale_log2,
    highest,
    total,
    sums,
    PAGE: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Tiles first, first + step, .. of one scope; `highest`, `total` and `sums` are the running softmax."""
    token = tl.arange(0, TOKENS)
    group = tl.arange(0, GROUPS)
    place = tl.arange(0, GROUP)
    for tile in range(first, tl.cdiv(count, TOKENS), step):
        number = tile * TOKENS + token
        index = tl.load(indices + number, mask=number < count, other=-1)
        there = index >= 0
        page = (index // PAGE).to(tl.int64) * page_stride
        slot = index % PAGE
        start = page + slot * 576
        latent = tl.load(
            values + start[:, None, None] + group[None, :, None] * GROUP + place[None, None, :],
            mask=there[:, None, None] & (group < GROUPS - 1)[None, :, None],
            other=0.0,
        )
        # A power of two is a float32 without mantissa: its byte is the exponent; 0 is 2^-127, 255 is NaN.
        exponent = tl.load(
            scales + (page + PAGE * 576 + slot * 8)[:, None] + group[None, :],
            mask=there[:, None] & (group < GROUPS - 1)[None, :],
            other=127,
        ).to(tl.int32)
        bits = tl.where(exponent == 0, 0x00400000, exponent << 23)
        power = tl.where(exponent == 255, float("nan"), bits.to(tl.float32, bitcast=True))
        rope = tl.load(
            ropes + ((start + 448) // 2)[:, None] + place[None, :], mask=there[:, None], other=0.0
        )
        exact = (latent.to(tl.float32) * power[:, :, None]).to(tl.bfloat16)
        pieces = tl.where((group < GROUPS - 1)[None, :, None], exact, rope[:, None, :])
        vector = tl.reshape(pieces, (TOKENS, WIDTH))
        scores = tl.dot(query, tl.trans(vector)) * scale_log2
        scores = tl.where(there[None, :], scores, float("-inf"))
        peak = tl.maximum(highest, tl.max(scores, 1))
        # Nothing seen yet: any finite peak gives zeros without -inf - -inf.
        finite = tl.where(peak == float("-inf"), 0.0, peak)
        weight = tl.exp2(scores - finite[:, None])
        shrink = tl.exp2(highest - finite)
        total = total * shrink + tl.sum(weight, 1)
        sums = tl.dot(weight.to(tl.bfloat16), vector, acc=sums * shrink[:, None])
        highest = peak
    return highest, total, sums


@triton.jit
def sparse_mla_part_kernel(
    q,  # bfloat16 [sequences, heads, 512]
    values,
    ropes,
    scales,
    indices,
    lengths,
    more_values,
    more_ropes,
    more_scales,
    more_indices,
    more_lengths,
    part_sums,  # float32 [sequences, heads, parts, 512]
    part_peaks,  # float32 [sequences, heads, parts], base 2
    part_totals,
    heads,
    parts,
    width,
    page_stride,
    more_width,
    more_page_stride,
    scale_log2,
    HAS_LENGTHS: tl.constexpr,
    HAS_MORE: tl.constexpr,
    HAS_MORE_LENGTHS: tl.constexpr,
    PAGE: tl.constexpr,
    MORE_PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Program (sequence, 16 heads, part): its tiles of the first scope, then of the second."""
    sequence = tl.program_id(0)
    part = tl.program_id(2)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, WIDTH)
    row = sequence.to(tl.int64) * heads + head
    query = tl.load(q + row[:, None] * WIDTH + column[None, :], mask=(head < heads)[:, None], other=0.0)
    highest = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    sums = tl.zeros((HEADS, WIDTH), tl.float32)
    count = _count(lengths, sequence, width, HAS_LENGTHS)
    highest, total, sums = _attend(
        query,
        values,
        ropes,
        scales,
        indices + sequence.to(tl.int64) * width,
        count,
        part,
        parts,
        page_stride,
        scale_log2,
        highest,
        total,
        sums,
        PAGE,
        TOKENS,
        WIDTH,
        GROUP,
        GROUPS,
    )
    if HAS_MORE:
        # Parts go on where the first scope's tiles ended, so that all have the same number of tiles, or one less.
        used = tl.cdiv(count, TOKENS) % parts
        highest, total, sums = _attend(
            query,
            more_values,
            more_ropes,
            more_scales,
            more_indices + sequence.to(tl.int64) * more_width,
            _count(more_lengths, sequence, more_width, HAS_MORE_LENGTHS),
            (part + parts - used) % parts,
            parts,
            more_page_stride,
            scale_log2,
            highest,
            total,
            sums,
            MORE_PAGE,
            TOKENS,
            WIDTH,
            GROUP,
            GROUPS,
        )
    kept = head < heads
    tl.store(part_peaks + row * parts + part, highest, mask=kept)
    tl.store(part_totals + row * parts + part, total, mask=kept)
    # Sums of a part without a token are not read.
    tl.store(
        part_sums + (row * parts + part)[:, None] * WIDTH + column[None, :],
        sums,
        mask=(kept & (highest != float("-inf")))[:, None],
    )


@triton.jit
def sparse_mla_combine_kernel(
    part_sums,
    part_peaks,
    part_totals,
    sinks,  # float32 [heads]
    out,  # bfloat16 [sequences, heads, 512]
    lse,  # float32 [sequences, heads]
    heads,
    parts,
    HAS_SINKS: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Program (sequence, head) brings its parts together, in their order."""
    row = tl.program_id(0).to(tl.int64) * heads + tl.program_id(1)
    part = tl.arange(0, PARTS)
    column = tl.arange(0, WIDTH)
    peaks = tl.load(part_peaks + row * parts + part, mask=part < parts, other=float("-inf"))
    totals = tl.load(part_totals + row * parts + part, mask=part < parts, other=0.0)
    peak = tl.max(peaks, 0)
    finite = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(totals * tl.exp2(peaks - finite), 0)
    whole = total
    if HAS_SINKS:
        sink = tl.load(sinks + tl.program_id(1)) * 1.4426950408889634
        whole = total + tl.exp2(sink - finite)
    sums = tl.zeros((WIDTH,), tl.float32)
    for number in range(parts):
        its_peak = tl.load(part_peaks + row * parts + number)
        seen = its_peak != float("-inf")
        its_sums = tl.load(part_sums + (row * parts + number) * WIDTH + column, mask=seen, other=0.0)
        sums += its_sums * tl.exp2(its_peak - finite)
    tl.store(out + row * WIDTH + column, tl.where(peak == float("-inf"), 0.0, sums / whole).to(tl.bfloat16))
    tl.store(lse + row, (peak + tl.log2(total)) * 0.6931471805599453)


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
    """Into how many parts a sequence is cut; rests on shapes alone, so that a captured launch serves all lengths."""
    tiles = sum(triton.cdiv(width, BLOCK_TOKENS) for width in widths)
    programs = sequences * triton.cdiv(heads, BLOCK_HEADS)
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
