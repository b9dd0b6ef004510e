"""Hooks of the all-reduce kernels: made before graphs are captured, asked for every call, refused by shape.

Every decision rests on what all ranks of a group share (shapes, types, what was prepared): a rank that took
another way than its peers would leave them waiting.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

import torch

import blackwell_kernels
from blackwell_kernels.sglang_plugin import messages
from blackwell_kernels.sglang_plugin.engines import fused_path
from blackwell_kernels.sglang_plugin.seams import engine_version, seams_of
from blackwell_kernels.sglang_plugin.settings import Feature

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from blackwell_kernels.sglang_plugin.counters import Counters
    from blackwell_kernels.sglang_plugin.engines import FusedPath
    from blackwell_kernels.sglang_plugin.settings import Settings

#: What `_resolve_outplace_all_reduce_method` answers for ours; SGLang's own names are others.
METHOD = "blackwell_kernels"
#: Largest tensor that a group reduces, in bytes; above it the engine's own path, bound by bandwidth, is better.
MAX_BYTES = 256 * 8192 * 2
ALIGNMENT = 16
_FUSION = "sglang.srt.layers.flashinfer_comm_fusion"
_COORDINATOR = "sglang.srt.distributed.parallel_state.GroupCoordinator"
_RUNNER = "sglang.srt.model_executor.runner.base_runner.BaseRunner"


class Groups:
    """The kernel groups of this process, by the ranks that they join."""

    def __init__(
        self, features: set[Feature], counters: Counters, settings: Settings, path: FusedPath | None
    ) -> None:
        self.features = features
        self.counters = counters
        self.settings = settings
        self._path = path
        self._by_ranks: dict[tuple[int, ...], list[Any]] = {}
        #: Coordinator, width and type of what was prepared for the fused kernel.
        self._fused: list[tuple[Any, int, torch.dtype]] = []
        self._off = False

    def prepare(self, hidden: int, dtype: torch.dtype) -> None:
        """Make the groups of a model, on all ranks together; must run outside graph capture.

        Args:
            hidden: Width of the hidden states.
            dtype: Their type.
        """
        coordinators = []
        if Feature.ALLREDUCE in self.features:
            parallel = importlib.import_module("sglang.srt.runtime_context").get_parallel()
            coordinators.append(parallel.tp_group)
        if self._path is not None:
            sides = [self._path.group(attention=side) for side in (True, False)]
            coordinators += sides
            self._fused += [(one, hidden, dtype) for one in sides if one.world_size > 1]
        for coordinator in coordinators:
            if coordinator.world_size > 1 and self.find(coordinator, 1, hidden, dtype) is None:
                self._make(coordinator, hidden)
        if not self._by_ranks:
            self._disable_all("every group has one rank: nothing is reduced")

    def _make(self, coordinator: Any, hidden: int) -> None:
        ranks = tuple(coordinator.ranks)

        def exchange(data: bytes) -> list[bytes]:
            gathered: list[Any] = [None] * coordinator.world_size
            torch.distributed.all_gather_object(gathered, data, group=coordinator.cpu_group)
            return gathered

        try:
            group = blackwell_kernels.AllReduceGroup(
                group_size=coordinator.world_size,
                rank=coordinator.rank_in_group,
                exchange=exchange,
                max_bytes=MAX_BYTES,
                hidden_sizes=(hidden,),
                device=coordinator.device,
            )
        except (RuntimeError, ValueError, OSError) as error:
            # The group's own vote makes all ranks fail together.
            self._disable_all(f"the group of ranks {ranks} was not made: {error}")
            return
        self._by_ranks.setdefault(ranks, []).append(group)
        self.counters.identity["rank"] = torch.distributed.get_rank()
        name = f"ranks {'-'.join(map(str, ranks))} hidden {hidden}"
        self.counters.add_launches(name, group.counters)
        for feature in sorted(self.features):
            messages.prepared(feature, f"{name}, rank {coordinator.rank_in_group}")

    def _disable_all(self, reason: str) -> None:
        """Nothing of ours runs from now on. The groups stay: peers may still have their memory mapped."""
        self._off = True
        for feature in sorted(self.features):
            self.counters.disable(feature, reason)
            if self.settings.strict:
                messages.end_process(f"{feature}: {reason}")

    def find(self, coordinator: Any, rows: int, hidden: int, dtype: torch.dtype) -> Any | None:
        """The group that reduces a shape over a coordinator's ranks; None when there is none."""
        groups = () if self._off else self._by_ranks.get(tuple(coordinator.ranks), ())
        return next((group for group in groups if group.supports(rows, hidden, dtype)), None)

    def fuses(self, rows: int) -> bool:
        """Whether the fused kernel takes a number of rows on every side that reduces at all."""
        return bool(self._fused) and all(
            self.find(coordinator, rows, hidden, dtype) is not None
            for coordinator, hidden, dtype in self._fused
        )


def hooks(features: set[Feature], counters: Counters, settings: Settings) -> Mapping[str, Callable[..., Any]]:
    """The hooks of the requested all-reduce features, by target.

    Raises:
        ImportError: The kernels' library cannot be loaded.
    """
    blackwell_kernels.require_library()
    path = None
    if Feature.ALLREDUCE_RMSNORM in features:
        seams = seams_of(engine_version(), [Feature.ALLREDUCE_RMSNORM])
        path = fused_path([seam.target for seam in seams])
    groups = Groups(features, counters, settings, path)
    found: dict[str, Callable[..., Any]] = {
        f"{_RUNNER}._pre_initialize_flashinfer_allreduce_workspace": _preparing(groups)
    }
    if path is not None:
        found[path.gate] = _gate(groups, path)
        found[f"{_FUSION}.flashinfer_allreduce_residual_rmsnorm"] = _fused(groups, path, counters)
    if Feature.ALLREDUCE in features:
        found[f"{_COORDINATOR}._resolve_outplace_all_reduce_method"] = _choosing(groups, counters)
        found[f"{_COORDINATOR}._all_reduce_out_place"] = _reducing(groups, counters)
    return found


def _preparing(groups: Groups) -> Callable[..., Any]:
    """SGLang's own place for collective set-up before graphs are captured."""

    def hook(original: Callable[..., Any], runner: Any) -> Any:
        result = original(runner)
        model = runner.model_runner
        groups.prepare(model.model_config.hidden_size, model.dtype)
        return result

    return hook


def _gate(groups: Groups, path: FusedPath) -> Callable[..., Any]:
    """Does the fused path take this many rows? Asked twice a layer, so it only looks things up."""

    def hook(original: Callable[..., Any], batch_size: Any) -> Any:
        # Under torch.compile the engine's own op is traced, and ours would never run.
        if torch.compiler.is_compiling():
            return original(batch_size)
        if original(batch_size):
            return True
        if path.reserved():
            return False
        return groups.fuses(batch_size)

    return hook


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be read in vectors of 16 bytes."""
    return bool(tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0)


def why_not_fused(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> str:
    """Why tensors cannot go to the fused kernel, or an empty string; the same on all ranks of a group."""
    if x.dim() != 2:  # noqa: PLR2004  # rows and columns
        return "the input is not a matrix"
    if any(tensor.dtype != torch.bfloat16 for tensor in (x, residual, weight)):
        return f"types {x.dtype}, {residual.dtype}, {weight.dtype} are not all bfloat16"
    if not all(is_plain(tensor) for tensor in (x, residual, weight)):
        return "a tensor is not contiguous, or not aligned to 16 bytes"
    if residual.shape != x.shape or weight.shape != x.shape[1:]:
        return "input, residual and weight do not have one shape"
    return ""


def _fused(groups: Groups, path: FusedPath, counters: Counters) -> Callable[..., Any]:
    """All-reduce, residual and norm in one kernel."""

    def hook(
        original: Callable[..., Any],
        input_tensor: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float = 1e-6,
        **options: Any,
    ) -> Any:
        if torch.compiler.is_compiling():
            return original(input_tensor, residual, weight, eps, **options)
        reason = why_not_fused(input_tensor, residual, weight)
        coordinator = path.group(attention=options.get("use_attn_tp_group", True))
        group = None
        if not reason:
            rows, hidden = input_tensor.shape
            group = groups.find(coordinator, rows, hidden, input_tensor.dtype)
        shape = "x".join(map(str, input_tensor.shape))
        if group is None:
            counters.fell_back(Feature.ALLREDUCE_RMSNORM, reason or "no group takes the shape", shape)
            engine_gate = getattr(pkgutil.resolve_name(path.gate), "__wrapped__", None)
            if engine_gate is not None and engine_gate(input_tensor.shape[0]):
                return original(input_tensor, residual, weight, eps, **options)
            return path.declined(coordinator, input_tensor, residual, weight, eps)
        result = group.all_reduce_residual_rmsnorm(input_tensor, residual, weight, eps)
        counters.ran(Feature.ALLREDUCE_RMSNORM, shape)
        return result

    return hook


def _choosing(groups: Groups, counters: Counters) -> Callable[..., Any]:
    """Take what SGLang would not give to a fabric of its own (`ca` is chosen on NVLink alone)."""

    def hook(
        original: Callable[..., Any],
        coordinator: Any,
        input_: torch.Tensor,
        should_use_pymscclpp_allreduce: bool | None = None,
    ) -> Any:
        method = original(coordinator, input_, should_use_pymscclpp_allreduce)
        if method == "ca" or input_.dim() == 0:
            return method
        hidden = input_.shape[-1]
        rows = input_.numel() // hidden if hidden else 0
        if is_plain(input_) and groups.find(coordinator, rows, hidden, input_.dtype) is not None:
            return METHOD
        counters.fell_back(Feature.ALLREDUCE, f"left to {method or 'NCCL in place'}", f"{rows}x{hidden}")
        return method

    return hook


def _reducing(groups: Groups, counters: Counters) -> Callable[..., Any]:
    """Run what `_choosing` took; everything else goes on as it came."""

    def hook(original: Callable[..., Any], coordinator: Any, input_: torch.Tensor, method: str) -> Any:
        if method == "auto" and coordinator._resolve_outplace_all_reduce_method(input_) == METHOD:  # noqa: SLF001
            method = METHOD
        if method != METHOD:
            return original(coordinator, input_, method)
        hidden = input_.shape[-1]
        rows = input_.numel() // hidden
        group = groups.find(coordinator, rows, hidden, input_.dtype)
        if group is None:
            raise RuntimeError(f"no group for {rows}x{hidden} any more")
        result = group.all_reduce(input_.view(rows, hidden)).view(input_.shape)
        counters.ran(Feature.ALLREDUCE, f"{rows}x{hidden}")
        return result

    return hook
