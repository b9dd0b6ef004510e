"""Hook of the logits of sparse attention's indexer: our Triton kernel for SGLang's TileLang one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import blackwell_kernels
from blackwell_kernels.indexer import check_logits
from blackwell_kernels.sglang_plugin.settings import Feature

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from blackwell_kernels.sglang_plugin.counters import Counters
    from blackwell_kernels.sglang_plugin.settings import Settings

_TARGET = "sglang.kernels.ops.attention.dsa.tilelang_kernel.tilelang_fp8_paged_mqa_logits"


def hooks(_: set[Feature], counters: Counters, __: Settings) -> Mapping[str, Callable[..., Any]]:
    """The hook by target.

    Raises:
        ImportError: Triton cannot be loaded.
    """
    return {_TARGET: _hook(counters, blackwell_kernels.paged_mqa_logits)}


def why_not(  # noqa: PLR0917  # the engine's own arguments
    q: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    columns: int,
    *,
    clean: bool,
) -> str:
    """Why a call cannot go to our kernel, or an empty string."""
    if clean:
        return "columns behind the lengths are to be filled"
    try:
        check_logits(q, cache, weights, lengths, page_table, columns)
    except ValueError as error:
        return str(error)
    return ""


def _hook(counters: Counters, ours: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def hook(  # noqa: PLR0917  # the signature of the seam
        original: Callable[..., Any],
        q_fp8: torch.Tensor,
        kvcache_fp8: torch.Tensor,
        weight: torch.Tensor,
        seq_lens: torch.Tensor,
        page_table: torch.Tensor,
        deep_gemm_metadata: Any,
        max_seq_len: int,
        clean_logits: bool = True,
    ) -> Any:
        shape = f"{q_fp8.shape[0]}x{max_seq_len}"
        tensors = (q_fp8, kvcache_fp8, weight, seq_lens, page_table)
        reason = why_not(*tensors, max_seq_len, clean=clean_logits)
        if reason:
            counters.fell_back(Feature.INDEXER, reason, shape)
            return original(*tensors, deep_gemm_metadata, max_seq_len, clean_logits)
        result = ours(*tensors, max_seq_len)
        counters.ran(Feature.INDEXER, shape)
        return result

    return hook
