"""The kernels in Triton: what runs on the device. Launches and checks are in `indexer` and `sparse_mla`.

One latent vector a token is key and value of all heads, so a tile of tokens is read once for 16 heads and goes
through the tensor cores. A sequence is cut into parts (split-K) that a second kernel brings together.
"""

# Arguments are Triton's, typed at the launch; compile-time ones are written large, as is the custom there.
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0917, PLR2004
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def paged_mqa_logits_kernel(
    q,  # FP8 [rows, heads, 128]
    keys,  # FP8 view of the cache
    scales,  # float32 view of the cache
    weights,  # float32 [rows, heads]
    lengths,  # int32 [rows]
    page_table,  # int32 [sequences, pages]
    out,  # float32 [rows, columns]
    table_stride,
    out_stride,
    columns,
    parts,
    NEXT: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Program (row, part) takes pages part, part + parts, .. of a row, up to its real length."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    length = tl.minimum(tl.load(lengths + row), columns)
    head = tl.arange(0, HEADS)
    value = tl.arange(0, WIDTH)
    slot = tl.arange(0, PAGE)
    query = tl.load(q + row.to(tl.int64) * HEADS * WIDTH + head[None, :] * WIDTH + value[:, None])
    weight = tl.load(weights + row * HEADS + head)
    table = page_table + (row // NEXT).to(tl.int64) * table_stride
    line = out + row.to(tl.int64) * out_stride
    for number in range(part, tl.cdiv(length, PAGE), parts):
        page = tl.load(table + number).to(tl.int64)
        key = tl.load(keys + page * (PAGE * WIDTH + PAGE * 4) + slot[:, None] * WIDTH + value[None, :])
        scale = tl.load(scales + page * (PAGE * WIDTH // 4 + PAGE) + PAGE * WIDTH // 4 + slot)
        products = tl.dot(key, query)
        logits = tl.sum(tl.maximum(products, 0.0) * weight[None, :], 1) * scale
        column = number * PAGE + slot
        tl.store(line + column, logits, mask=column < length)


@triton.jit
def _count(lengths, sequence, width, HAS_LENGTHS: tl.constexpr):
    """How many indices of a sequence count."""
    count = width
    if HAS_LENGTHS:
        count = tl.maximum(tl.minimum(tl.load(lengths + sequence), width), 0)
    return count


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
        rope = tl.load(ropes + ((start + 448) // 2)[:, None] + place[None, :], mask=there[:, None], other=0.0)
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
        # Parts go on where the first scope's tiles ended: all have the same number of tiles, or one less.
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
