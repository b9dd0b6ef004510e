"""Where the fused path hangs in the engine's code: it was moved once, and its seams say which form is here."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection

    import torch

_FUSION = "sglang.srt.layers.flashinfer_comm_fusion"


@cache
def _module(name: str) -> Any:
    """A module of the engine, looked up once: the hooks ask twice a layer."""
    return importlib.import_module(name)


class FusedPath(Protocol):
    """What the hooks of the fused kernel ask of the engine.

    Attributes:
        gate: Dotted name of the function that says whether a number of rows takes the fused path.
    """

    gate: str

    def group(self, *, attention: bool) -> Any:
        """The coordinator whose ranks the fused kernel sums over, after attention or after the feed-forward."""

    def reserved(self) -> bool:
        """Whether the engine does something of its own there that we must not come between."""

    def declined(
        self, group: Any, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        """What to answer for a call that nobody fuses."""


class LayerBoundary:
    """SGLang 0.5.23: the layer boundary. A declined call is summed and normed by the caller."""

    gate = "sglang.srt.layers.layer_boundary.residual.add_norm.flashinfer_ar_fusion_applies"

    def group(self, *, attention: bool) -> Any:
        """By the engine's own function."""
        return _module(_FUSION).resolve_fusion_group(use_attn_tp_group=attention)[2]

    def reserved(self) -> bool:
        """Data-parallel attention, or the CuTe DSL's fusion."""
        module = _module(self.gate.rpartition(".")[0])
        return bool(module.is_dp_attention_enabled() or module.uses_cutedsl_ar_fusion())

    def declined(self, *_: Any) -> tuple[None, None]:
        """SGLang's own word for it."""
        return None, None


class Communicator:
    """SGLang 0.5.16: the layer communicator. A declined call is normed by the caller and *not* summed.

    `_forward_with_allreduce_fusion` goes on with `norm_module.forward(x, residual)`, on one rank's part of the
    sum; so the sum is done here.
    """

    gate = "sglang.srt.layers.communicator.apply_flashinfer_allreduce_fusion"

    def group(self, *, attention: bool) -> Any:
        """As `ensure_workspace_initialized` chooses."""
        parallel = _module("sglang.srt.runtime_context").get_parallel()
        if attention:
            return parallel.attn_tp_group
        return parallel.moe_ep_group if parallel.moe_ep_size > 1 else parallel.moe_tp_group

    def reserved(self) -> bool:
        """Data-parallel attention."""
        return bool(_module("sglang.srt.layers.communicator").is_dp_attention_enabled())

    def declined(
        self, group: Any, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The engine's sum, then the norm as its `RMSNorm.forward_native` has it."""
        total = group.all_reduce(x).float() + residual.float()
        normed = total * total.pow(2).mean(-1, keepdim=True).add(eps).rsqrt()
        return (normed * weight.float()).to(x.dtype), total.to(x.dtype)


def fused_path(targets: Collection[str]) -> FusedPath:
    """The form whose gate is among the seams of this engine.

    Raises:
        LookupError: None is, or more than one.
    """
    forms: tuple[FusedPath, ...] = (LayerBoundary(), Communicator())
    found = [form for form in forms if form.gate in targets]
    if len(found) != 1:
        raise LookupError(f"the seams have {len(found)} gates of the fused path")
    return found[0]
