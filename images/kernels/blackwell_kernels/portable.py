"""The operators that are written in Triton, for GPUs and builds without the faster ones of others.

Fallbacks: DeepGEMM's indexer and FlashInfer's sparse attention are to be preferred where they are there. Needs
Triton, not the compiled library. Under Triton's interpreter (`TRITON_INTERPRET=1`) they take CPU tensors.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
import triton

from blackwell_kernels.indexer import check_logits, run_logits
from blackwell_kernels.sparse_mla import Scope, check_attention, run_attention

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_NAMESPACE = torch.library.Library("blackwell_kernels", "FRAGMENT")
_KEYS = ("CUDA", "CPU") if triton.knobs.runtime.interpret else ("CUDA",)


def _define(schema: str, real: object, fake: object) -> None:
    name = schema.partition("(")[0]
    _NAMESPACE.define(schema)
    for key in _KEYS:
        _NAMESPACE.impl(name, real, key)
    torch.library.register_fake(f"blackwell_kernels::{name}", fake, lib=_NAMESPACE)


def _device_of(*tensors: torch.Tensor | None) -> AbstractContextManager[object]:
    """Makes the device of the tensors current, since Triton launches there.

    Raises:
        ValueError: They are not on one device.
    """
    devices = {tensor.device for tensor in tensors if tensor is not None}
    if len(devices) != 1:
        raise ValueError(f"all tensors on one device, not {', '.join(sorted(map(str, devices)))}")
    device = devices.pop()
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _logits(  # noqa: PLR0917  # an operator's signature
    q: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    max_length: int,
) -> torch.Tensor:
    with _device_of(q, cache, weights, lengths, page_table):
        check_logits(q, cache, weights, lengths, page_table, max_length)
        out = _fake_logits(q, cache, weights, lengths, page_table, max_length)
        run_logits(q, cache, weights, lengths, page_table, out)
    return out


def _fake_logits(  # noqa: PLR0917
    q: torch.Tensor,
    cache: torch.Tensor,  # noqa: ARG001  # a fake has the signature of the real one
    weights: torch.Tensor,  # noqa: ARG001
    lengths: torch.Tensor,  # noqa: ARG001
    page_table: torch.Tensor,  # noqa: ARG001
    max_length: int,
) -> torch.Tensor:
    return q.new_empty((q.shape[0] * q.shape[1], max_length), dtype=torch.float32)


_define(
    "paged_mqa_logits(Tensor q, Tensor cache, Tensor weights, Tensor lengths, Tensor page_table,"
    " int max_length) -> Tensor",
    _logits,
    _fake_logits,
)


def paged_mqa_logits(  # noqa: PLR0917  # DeepGEMM's order
    q: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    max_length: int,
) -> torch.Tensor:
    """Logits of the sparse indexer, `fp8_paged_mqa_logits` of DeepGEMM without its schedule metadata.

    With k[t] the 128 FP8 values and ks[t] the scale of token t of a row's sequence:
    logits[row, t] = ks[t] * sum over heads h of weights[row, h] * max(q[row, h] . k[t], 0), t < lengths[row].
    What lies behind a row's length is not written (DeepGEMM's `clean_logits=False`). Products are summed by
    the tensor cores in float32. The cost follows the lengths, which are read on the
    device; the grid rests on shapes alone, so that a captured launch serves all lengths up to `max_length`.

    Args:
        q: [sequences, next, heads, 128] float8_e4m3fn contiguous, heads 32 or 64; a row is one of the `next`
            queries of a sequence.
        cache: [pages, 64, 1, 132] uint8 contiguous. A page is 64 x 128 FP8 values, then 64 float32 scales.
        weights: [sequences * next, heads] float32 contiguous; softmax scale and scale of q are in it.
        lengths: [sequences, next] int32 (or [sequences] for next = 1), in tokens; below 0 counts as 0.
        page_table: [sequences, pages] int32, pages contiguous; read up to ceil(length / 64) pages of a row.
        max_length: Columns of the result, at most 64 a page of the table.

    Returns:
        [sequences * next, max_length] float32.

    Raises:
        ValueError: A shape, type, device or stride is not as above.
    """
    result: torch.Tensor = torch.ops.blackwell_kernels.paged_mqa_logits(
        q, cache, weights, lengths, page_table, max_length
    )
    return result


def _attention(  # noqa: PLR0917  # an operator's signature
    q: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    lengths: torch.Tensor | None,
    page_size: int,
    more_cache: torch.Tensor | None,
    more_indices: torch.Tensor | None,
    more_lengths: torch.Tensor | None,
    more_page_size: int,
    sinks: torch.Tensor | None,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    scopes = [Scope(cache, indices, lengths, page_size)]
    if more_cache is not None and more_indices is not None:
        scopes.append(Scope(more_cache, more_indices, more_lengths, more_page_size))
    elif more_cache is not None or more_indices is not None or more_lengths is not None:
        raise ValueError("more_cache and more_indices belong together: give both or neither")
    tensors = (*(tensor for scope in scopes for tensor in scope[:3]), sinks)
    with _device_of(q, *tensors):
        check_attention(q, tuple(scopes), sinks)
        return run_attention(q, tuple(scopes), sinks, softmax_scale)


def _fake_attention(q: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[:2], dtype=torch.float32)


_define(
    "sparse_mla_decode(Tensor q, Tensor cache, Tensor indices, Tensor? lengths, int page_size,"
    " Tensor? more_cache, Tensor? more_indices, Tensor? more_lengths, int more_page_size,"
    " Tensor? sinks, float softmax_scale) -> (Tensor, Tensor)",
    _attention,
    _fake_attention,
)


def sparse_mla_decode(
    q: torch.Tensor,
    scope: Scope,
    more: Scope | None = None,
    *,
    sinks: torch.Tensor | None = None,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode attention of DeepSeek-V4 over selected tokens of one or two paged caches.

    A token's vector k has 512 values: 448 of FP8 (e4m3) times a power of two (ue8m0) for each 64 of them, then
    64 of bfloat16. It is key and value. Over the list of all tokens that both scopes name:
    lse[b, h] = log(sum over t of exp(softmax_scale * q[b, h] . k[t])),
    out[b, h] = sum over t of exp(softmax_scale * q[b, h] . k[t] - lse[b, h]) * k[t] * s, where s is
    1 / (1 + exp(sinks[h] - lse[b, h])), or 1 without sinks. A token that is named twice counts twice. Without
    any token (or with scores of -inf alone) out is 0 and lse is -inf. Probabilities are rounded to bfloat16
    before they meet the values, as the tensor cores want them; sums are float32.

    The cost follows the lengths, which are read on the device; grids rest on shapes alone, so that a captured
    launch serves all lengths.

    Args:
        q: [sequences, heads, 512] bfloat16 contiguous, 1 to 128 heads (16 a tile).
        scope: The tokens, e.g. of the sliding window. Its cache is [pages, bytes] uint8: in a page the values
            of all tokens come first, 576 bytes each, then 8 bytes of scales each (7 and one unused); pages
            start on multiples of 16 bytes. An index is page * page_size + place, -1 is none.
        more: A second scope, e.g. the compressed tokens that the indexer chose.
        sinks: [heads] float32, in units of the scores; None for none.
        softmax_scale: Factor of the scores; 512^-0.5 for DeepSeek-V4.

    Returns:
        (out, lse): [sequences, heads, 512] bfloat16 and [sequences, heads] float32, natural logarithm, without
        the sink.

    Raises:
        ValueError: A shape, type, device or stride is not as above.
    """
    second = more or (None, None, None, 1)
    out, lse = torch.ops.blackwell_kernels.sparse_mla_decode(q, *scope, *second, sinks, softmax_scale)
    return out, lse
