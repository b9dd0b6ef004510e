"""Hook of the top-k of sparse attention's indexer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import blackwell_kernels
from blackwell_kernels.sglang_plugin.settings import Feature
from blackwell_kernels.topk import check_topk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from blackwell_kernels.sglang_plugin.counters import Counters
    from blackwell_kernels.sglang_plugin.settings import Settings

_TARGET = "sglang.kernels.ops.attention.dsv4.topk.topk_transform_paged"


def hooks(_: set[Feature], counters: Counters, __: Settings) -> Mapping[str, Callable[..., Any]]:
    """The hook by target.

    Raises:
        ImportError: The kernels' library cannot be loaded.
    """
    blackwell_kernels.require_library()
    return {_TARGET: _hook(counters)}


def why_not(  # noqa: PLR0917  # the engine's own arguments
    scores: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
    out: torch.Tensor,
    raw: torch.Tensor | None,
) -> str:
    """Why a call cannot go to our kernel, or an empty string."""
    if raw is not None:
        return "raw indices are asked for"
    try:
        check_topk(scores, lengths, page_table, page_size, out.shape[1], out)
    except ValueError as error:
        return str(error)
    return ""


def _hook(counters: Counters) -> Callable[..., Any]:
    def hook(  # noqa: PLR0917  # the signature of the seam
        original: Callable[..., Any],
        scores: torch.Tensor,
        seq_lens: torch.Tensor,
        page_tables: torch.Tensor,
        out_page_indices: torch.Tensor,
        page_size: int,
        out_raw_indices: torch.Tensor | None = None,
    ) -> None:
        shape = f"{scores.shape[0]}x{scores.shape[1]} k {out_page_indices.shape[1]}"
        reason = why_not(scores, seq_lens, page_tables, page_size, out_page_indices, out_raw_indices)
        if reason:
            counters.fell_back(Feature.TOPK, reason, shape)
            original(scores, seq_lens, page_tables, out_page_indices, page_size, out_raw_indices)
            return
        blackwell_kernels.topk_transform(
            scores, seq_lens, page_tables, page_size, out_page_indices.shape[1], out=out_page_indices
        )
        counters.ran(Feature.TOPK, shape)

    return hook
