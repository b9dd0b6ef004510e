"""The Triton kernels on a GPU: against float64, under graph replays with changing lengths, and timed."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import reference
import timing
import torch
from blackwell_kernels import Scope, paged_mqa_logits, sparse_mla_decode

if TYPE_CHECKING:
    from collections.abc import Callable

HEADS, WIDTH = 64, 512
#: Sums of 8192 products; tensor cores of SM90 add FP8 products with fewer bits than float32 has.
_LOGIT_TOLERANCE = 2e-3
#: Rounding of probabilities and of the result to bfloat16.
_OUTPUT_TOLERANCE = 3 * 2.0**-9
_SCALE = WIDTH**-0.5


class Case(NamedTuple):
    """Arguments of the indexer."""

    q: torch.Tensor
    cache: torch.Tensor
    weights: torch.Tensor
    lengths: torch.Tensor
    page_table: torch.Tensor


def indexer_case(sequences: int, columns: int, seed: int) -> Case:
    """q, cache, weights, lengths and a page table without order."""
    random = torch.Generator("cuda").manual_seed(seed)
    pages = (columns + 63) // 64
    keys = torch.randn(sequences * pages, 64, 128, generator=random, device="cuda").to(torch.float8_e4m3fn)
    scales = torch.rand(sequences * pages, 64, generator=random, device="cuda") + 0.01
    cache = torch.cat([keys.view(torch.uint8).flatten(1), scales.view(torch.uint8)], 1)
    q = torch.randn(sequences, 1, HEADS, 128, generator=random, device="cuda").to(torch.float8_e4m3fn)
    weights = torch.randn(sequences, HEADS, generator=random, device="cuda")
    table = torch.randperm(sequences * pages, generator=random, device="cuda").view(sequences, pages)
    lengths = torch.randint(0, columns + 1, (sequences, 1), generator=random, device="cuda", dtype=torch.int32)
    lengths[0] = columns
    return Case(q, cache.view(-1, 64, 1, 132), weights, lengths, table.to(torch.int32))


def check_logits(tensors: Case, seen: torch.Tensor, where: str) -> int:
    """Every logit up to the lengths against float64.

    Raises:
        WrongError: Says where and by how much.
    """
    q, cache, weights, lengths, table = tensors
    for row, length in enumerate(lengths.flatten().tolist()):
        if not length:
            continue
        pages = cache.flatten(1)[table[row].long()]
        keys = pages[:, : 64 * 128].contiguous().view(torch.float8_e4m3fn).view(-1, 128)[:length].double()
        scales = pages[:, 64 * 128 :].contiguous().view(torch.float32).view(-1)[:length].double()
        products = (keys @ q[row, 0].double().T).clamp(min=0)
        wanted = scales * (products @ weights[row].double())
        size = scales * (products @ weights[row].double().abs())
        wrong = ~((seen[row, :length].double() - wanted).abs() <= _LOGIT_TOLERANCE * size + 1e-9)
        if wrong.any():
            column = int(wrong.nonzero()[0])
            raise reference.WrongError(
                f"{where}: logit [{row}, {column}] is {float(seen[row, column])}, not {float(wanted[column])}"
            )
    return int(lengths.sum())


def attention_scope(sequences: int, width: int, page_size: int, seed: int) -> Scope:
    """Random tokens in pages, a width of indices with some of -1, ragged lengths; spare places are NaN."""
    random = torch.Generator("cuda").manual_seed(seed)
    pages = (sequences * width + page_size - 1) // page_size + 1
    stride = (page_size * 584 + 575) // 576 * 576
    cache = torch.full((pages, stride), 0xFF, dtype=torch.uint8, device="cuda")
    latent = torch.randn(pages, page_size, 448, generator=random, device="cuda").to(torch.float8_e4m3fn)
    rope = torch.randn(pages, page_size, 64, generator=random, device="cuda").to(torch.bfloat16)
    values = cache[:, : page_size * 576].view(pages, page_size, 576)
    values[..., :448], values[..., 448:] = latent.view(torch.uint8), rope.view(torch.uint8)
    powers = torch.randint(124, 131, (pages, page_size, 7), generator=random, device="cuda")
    cache[:, page_size * 576 : page_size * 584].view(pages, page_size, 8)[..., :7] = powers.to(torch.uint8)
    indices = torch.randperm(pages * page_size, generator=random, device="cuda")[: sequences * width]
    indices = indices.view(sequences, width).to(torch.int32)
    indices[torch.rand(sequences, width, generator=random, device="cuda") < 0.05] = -1
    lengths = torch.randint(0, width + 1, (sequences,), generator=random, device="cuda", dtype=torch.int32)
    lengths[0] = width
    return Scope(cache, indices, lengths, page_size)


def gathered(scope: Scope, sequence: int) -> torch.Tensor:
    """The vectors that a sequence attends to, in float64."""
    cache, indices, lengths, page_size = scope
    count = indices.shape[1] if lengths is None else int(lengths[sequence])
    index = indices[sequence, :count]
    index = index[index >= 0].long()
    page, place = index // page_size, index % page_size
    values = cache[:, : page_size * 576].view(-1, page_size, 576)[page, place]
    powers = cache[:, page_size * 576 : page_size * 584].view(-1, page_size, 8)[page, place, :7]
    latent = values[:, :448].contiguous().view(torch.float8_e4m3fn).double().unflatten(1, (7, 64))
    exact = (latent * torch.exp2(powers.double() - 127)[..., None]).flatten(1)
    return torch.cat([exact, values[:, 448:].contiguous().view(torch.bfloat16).double()], 1)


def check_attention(
    q: torch.Tensor,
    scopes: list[Scope],
    sinks: torch.Tensor,
    seen: tuple[torch.Tensor, torch.Tensor],
    where: str,
) -> int:
    """Outputs and lse of every sequence against float64.

    Raises:
        WrongError: Says where and by how much.
    """
    out, lse = seen
    for sequence in range(q.shape[0]):
        keys = torch.cat([gathered(scope, sequence) for scope in scopes])
        scores = q[sequence].double() @ keys.T * _SCALE
        wanted_lse = torch.logsumexp(scores, 1)
        wanted = torch.softmax(scores, 1) @ keys * torch.sigmoid(wanted_lse - sinks.double())[:, None]
        if not len(keys):
            wanted = torch.zeros_like(q[sequence], dtype=torch.float64)
        most = float((out[sequence].double() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-9))
        same = torch.allclose(lse[sequence].double(), wanted_lse, rtol=1e-4, atol=1e-4)
        if not (most <= _OUTPUT_TOLERANCE and same):
            raise reference.WrongError(f"{where}: sequence {sequence}, {len(keys)} tokens, off by {most}")
    return int(out.numel())


def queries(sequences: int, heads: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and sinks."""
    random = torch.Generator("cuda").manual_seed(seed)
    q = 2 * torch.randn(sequences, heads, WIDTH, generator=random, device="cuda")
    return q.to(torch.bfloat16), torch.randn(heads, generator=random, device="cuda")


def check_all() -> dict[str, object]:
    """Ragged batches of both kernels, then replays of captured launches whose lengths change."""
    compared = 0
    for number, (sequences, columns) in enumerate(
        [(1, 1), (3, 64), (7, 2048), (32, 2049), (600, 130), (2, 40_000)]
    ):
        tensors = indexer_case(sequences, columns, number)
        seen = paged_mqa_logits(*tensors, columns)
        compared += check_logits(tensors, seen, f"{sequences}x{columns}")
    for number, (sequences, heads) in enumerate([(1, 16), (8, 16), (64, 16), (300, 8), (3, 64), (2, 20)]):
        scopes = [
            attention_scope(sequences, 128, 256, number),
            attention_scope(sequences, 512 - number, 64, 9 + number),
        ]
        q, sinks = queries(sequences, heads, number)
        out, lse = sparse_mla_decode(q, *scopes, sinks=sinks, softmax_scale=_SCALE)
        compared += check_attention(q, scopes, sinks, (out, lse), f"{sequences} sequences, {heads} heads")
    return {"compared": compared, "replays": replay()}


def replay(replays: int = 2000) -> int:
    """One captured launch of each kernel, with contents and lengths that change."""
    tensors = indexer_case(8, 4096, 1)
    scopes = [attention_scope(8, 128, 256, 2), attention_scope(8, 512, 64, 3)]
    q, sinks = queries(8, 16, 4)
    paged_mqa_logits(*tensors, 4096)
    sparse_mla_decode(q, *scopes, sinks=sinks, softmax_scale=_SCALE)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = paged_mqa_logits(*tensors, 4096)
        out, lse = sparse_mla_decode(q, *scopes, sinks=sinks, softmax_scale=_SCALE)
    for number in range(replays):
        fresh = number % 100 == 0
        if fresh:
            for old, new in zip(tensors, indexer_case(8, 4096, number), strict=True):
                old.copy_(new)
            for scope, width, page_size in zip(scopes, (128, 512), (256, 64), strict=True):
                for old, new in zip(
                    scope[:3], attention_scope(8, width, page_size, number + 5)[:3], strict=True
                ):
                    old.copy_(new)
        graph.replay()
        if fresh:
            torch.cuda.synchronize()
            check_logits(tensors, logits, f"replay {number}")
            check_attention(q, scopes, sinks, (out, lse), f"replay {number}")
    torch.cuda.synchronize()
    return replays


def times() -> list[dict[str, object]]:
    """The indexer against DeepGEMM's, sparse attention against what SGLang would call; H = 16."""
    table: list[dict[str, object]] = []
    for sequences, columns in [(b, t) for t in (2048, 32_768) for b in (1, 8, 32)]:
        tensors = indexer_case(sequences, columns, 1)
        tensors.lengths.fill_(columns)
        run = partial(paged_mqa_logits, *tensors, columns)
        row = {"kernel": "indexer", "rows": sequences, "columns": columns}
        table.append(_row(row, {"ours": run}, {"DeepGEMM": deep_gemm(tensors, columns)}))
        wide = torch.zeros(sequences, 262_144 // 64, dtype=torch.int32, device="cuda")
        wide[:, : tensors.page_table.shape[1]] = tensors.page_table
        long = partial(paged_mqa_logits, *tensors._replace(page_table=wide), 262_144)
        table[-1]["ours, room for 262144"] = timing.time_graph(timing.repeated(long))
    for sequences in (1, 8, 32, 64):
        scopes = [attention_scope(sequences, 128, 256, 1), attention_scope(sequences, 512, 64, 2)]
        scopes = [scope._replace(lengths=None) for scope in scopes]
        q, sinks = queries(sequences, 16, 3)
        attend = partial(sparse_mla_decode, q, *scopes, sinks=sinks, softmax_scale=_SCALE)
        row = {"kernel": "attention", "rows": sequences, "columns": 640}
        table.append(_row(row, {"ours": attend}, {"SGLang's": sglang_attention(q, scopes, sinks)}))
    return table


def _row(
    row: dict[str, Any], ours: dict[str, Callable[[], object]], rivals: dict[str, Callable[[], object]]
) -> dict[str, Any]:
    for side, launches in (("ours", ours), ("peers", rivals)):
        row[side] = {name: timing.time_graph(timing.repeated(launch)) for name, launch in launches.items()}
    print("ROW " + json.dumps(row), flush=True)
    return row


def deep_gemm(tensors: Case, columns: int) -> Callable[[], object]:
    """DeepGEMM's kernel, once its answer is right."""
    import deep_gemm as package  # type: ignore[import-not-found]  # noqa: PLC0415

    q, cache, weights, lengths, table = tensors
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    plan = package.get_paged_mqa_logits_metadata(lengths, 64, processors)
    run: Callable[[], torch.Tensor] = partial(
        package.fp8_paged_mqa_logits, q, cache, weights, lengths, table, plan, columns, clean_logits=False
    )
    check_logits(tensors, run(), "DeepGEMM")
    return run


def sglang_attention(q: torch.Tensor, scopes: list[Scope], sinks: torch.Tensor) -> Callable[[], object]:
    """SGLang's own entry for GPUs without FlashMLA, whichever backend it takes here."""
    from sglang.kernels.ops.attention import flash_mla_sm120 as module  # type: ignore[import-not-found]  # noqa: PLC0415

    def view(scope: Scope) -> torch.Tensor:
        shape, stride = (len(scope.cache), scope.page_size, 1, 584), (scope.cache.stride(0), 584, 584, 1)
        return scope.cache.view(torch.float8_e4m3fn).as_strided(shape, stride)

    first, more = scopes
    return partial(
        module.flash_mla_with_kvcache_sm120,
        q=q[:, None],
        k_cache=view(first),
        indices=first.indices[:, None],
        topk_length=None,
        attn_sink=sinks,
        head_dim_v=WIDTH,
        softmax_scale=_SCALE,
        extra_k_cache=view(more),
        extra_indices_in_kvcache=more.indices[:, None],
        extra_topk_length=None,
    )
