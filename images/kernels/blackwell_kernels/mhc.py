"""A group of ranks that reduce a sublayer's output into the streams of a model with hyper-connections."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_void_p
from typing import TYPE_CHECKING, Any

import torch

from blackwell_kernels.errors import KernelError
from blackwell_kernels.group import AllReduceGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blackwell_kernels.plans import Plan

STREAMS = 4
#: Four for `pre`, four for `post`, sixteen for `comb`.
MIXES = 24
#: The mixes and the squares, which a slice leaves for the block that finishes its token.
_SUMS = MIXES + 1
_MOST_SLICES, _WIDEST_SLICE, _SLICE_STEP = 8, 1024, 256
#: What an operator passes on: fn, scale, base, norm_weight, rms_eps, hc_eps, norm_eps, iterations.
Mixing = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, float, float, float, int]

_NO_MIXING = (None, None, None, None, 0.0, 0.0, 0.0, 1)


class _Call(ctypes.Structure):
    """`bk_mhc` of the library."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "streams", "post", "comb", "fn", "scale", "base", "weight")),
        *((name, c_void_p) for name in ("streams_out", "post_out", "comb_out", "out", "partials", "arrivals")),
        *((name, c_float) for name in ("rms_eps", "hc_eps", "eps")),
        *((name, c_int32) for name in ("iterations", "tokens", "hidden", "slices")),
    )


def slices_of(hidden: int) -> int:
    """Into how many slices a row is cut, each the work of one block: as many as there may be.

    Raises:
        ValueError: The row has no such cut.
    """
    for slices in range(_MOST_SLICES, 0, -1):
        if hidden % (slices * _SLICE_STEP) == 0 and _SLICE_STEP <= hidden // slices <= _WIDEST_SLICE:
            return slices
    raise ValueError(f"hidden: slices of 256, 512, 768 or 1024 columns, at most 8 of them, not {hidden}")


def prepare(
    inputs: tuple[torch.Tensor, ...],
    mixing: Mixing | None,
    workspace: tuple[torch.Tensor, torch.Tensor],
    slices: int,
) -> tuple[tuple[torch.Tensor, ...], ctypes.Structure]:
    """New outputs, and the call of the library that fills them; checks nothing.

    Args:
        inputs: x, streams, post and comb.
        mixing: What the next sublayer needs; None for the post step alone.
        workspace: [rows * slices, 25] float32, and [rows] int32 of zeros.
        slices: Of a row.

    Returns:
        (streams, post, comb, out) to be, and the call.
    """
    x, streams, post, comb = inputs
    fn, scale, base, weight, rms_eps, hc_eps, norm_eps, iterations = mixing or _NO_MIXING
    made = tuple(map(torch.empty_like, (streams, post, comb, x)))
    given = (*inputs, fn, scale, base, weight, *made, *workspace)
    pointers = (None if one is None else one.data_ptr() for one in given)
    return made, _Call(*pointers, rms_eps, hc_eps, norm_eps, iterations, *x.shape, slices)


class MhcGroup(AllReduceGroup):
    """All-reduce, post step, statistics, combination and norm of hyper-connections (mHC) in one kernel.

    What `AllReduceGroup` says of calls, graphs, equal bits and ranks that are missed holds here too. To the
    all-reduce a row is `slices` rows of hidden / slices columns; plans and counters are in those. The paths are
    chosen by the times of the all-reduce with a norm on slices. SM120 and SM90 code is compiled and inspected,
    its source is checked on a CPU; it has never run on a GPU.

    Attributes:
        hidden: Columns of a row.
        slices: Blocks that share a row.
        max_tokens: Most rows of a call.
    """

    _occupancy = ("bk_resident_blocks", "bk_mhc_resident_blocks")

    def __init__(  # noqa: PLR0917  # as the group's
        self,
        group_size: int,
        rank: int,
        exchange: Callable[[bytes], Sequence[bytes]],
        max_tokens: int,
        hidden: int,
        device: torch.device | int | str,
        **options: Any,
    ) -> None:
        """Make the group; every rank must call this at the same time, outside graph capture.

        Args:
            group_size: 2, 4 or 8.
            rank: 0 to group_size - 1.
            exchange: All-gather of bytes over the ranks, as of `AllReduceGroup`.
            max_tokens: Most rows of a call.
            hidden: Columns, e.g. 4096: a multiple of 256 that falls into at most 8 slices of up to 1024.
            device: CUDA device of this rank.
            options: As of `AllReduceGroup`: patience, measure, ranks_on_device, first_round.

        Raises:
            ValueError: An argument is outside its range.
            GroupError: Some rank failed; every rank raises it with what each one said.
        """
        self.hidden, self.slices, self.max_tokens = hidden, slices_of(hidden), max_tokens
        widths = (hidden // self.slices,)
        super().__init__(group_size, rank, exchange, 2 * max_tokens * hidden, widths, device, **options)

    def _make(self, *arguments: Any, **options: Any) -> dict[int, Plan]:
        def allocate() -> None:
            rows = self.max_tokens * self.slices
            self._partials = torch.empty(rows, _SUMS, dtype=torch.float32, device=self.device)
            self._arrivals = torch.zeros(self.max_tokens, dtype=torch.int32, device=self.device)
            torch.cuda.synchronize()

        self._vote.agree("no workspace", allocate)
        return super()._make(*arguments, **options)

    def takes(self, tokens: int, hidden: int, dtype: torch.dtype) -> bool:
        """Whether [tokens, hidden] outputs of this type can be reduced; the same on every rank."""
        return (
            self._slab is not None
            and dtype == torch.bfloat16
            and hidden == self.hidden
            and 1 <= tokens <= self.max_tokens
        )

    def post(
        self, x: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
    ) -> torch.Tensor:
        """The post step alone, e.g. behind the last sublayer.

        With y = bf16(sum_r float32(x_r)), in the order of ranks, and sums in float32:
        R'[t, i] = bf16(post[t, i] * y[t] + sum_j comb[t, j, i] * R[t, j]).

        Args:
            x: [tokens, hidden] bfloat16, contiguous, 16-byte aligned; this rank's part of the output.
            streams: R, [tokens, 4, hidden] bfloat16, the same on all ranks; is not written.
            post: [tokens, 4] float32.
            comb: [tokens, 4, 4] float32.

        Returns:
            R', a new tensor like `streams`.

        Raises:
            ValueError: A tensor is not as above, or larger than the group was made for.
            KernelError: The launch failed. StalledError: an earlier one gave up waiting.
        """
        result: torch.Tensor = torch.ops.blackwell_kernels.all_reduce_mhc_post(
            x, streams, post, comb, self.number
        )
        return result

    def boundary(
        self,
        x: torch.Tensor,
        streams: torch.Tensor,
        post: torch.Tensor,
        comb: torch.Tensor,
        *,
        fn: torch.Tensor,
        scale: torch.Tensor,
        base: torch.Tensor,
        norm_weight: torch.Tensor | None,
        rms_eps: float,
        hc_eps: float,
        norm_eps: float,
        iterations: int = 20,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The post step of a sublayer and all that the next one needs, as DeepSeek-V4 defines it.

        R' as `post` gives it. mix = fn @ flat(R'[t]) / sqrt(mean(flat(R'[t])^2) + rms_eps), 24 numbers;
        pre = sigmoid(scale[0] * mix[0:4] + base[0:4]) + hc_eps;
        post' = 2 * sigmoid(scale[1] * mix[4:8] + base[4:8]);
        comb' = Sinkhorn of the 4 x 4 matrix scale[2] * mix[8:24] + base[8:24]: softmax over rows, + hc_eps,
        columns divided by (their sum + hc_eps); then rows and columns so, iterations - 1 times;
        v = bf16(sum_i pre[i] * R'[t, i]); out = bf16(v / sqrt(mean(v^2) + norm_eps) * norm_weight).

        Args:
            x: As of `post`, like `streams`, `post` and `comb`.
            streams: As of `post`.
            post: As of `post`.
            comb: As of `post`.
            fn: [24, 4 * hidden] float32.
            scale: [3] float32.
            base: [24] float32.
            norm_weight: [hidden] bfloat16; None for v itself.
            rms_eps: Added to the mean of squares of the streams.
            hc_eps: Added to `pre` and in Sinkhorn's divisions.
            norm_eps: Added to the mean of squares of v.
            iterations: Of Sinkhorn, at least 1.

        Returns:
            (R', post', comb', out): new tensors like `streams`, `post`, `comb` and `x`.

        Raises:
            ValueError: An argument is not as above.
            KernelError: As of `post`.
        """
        streams_out, post_out, comb_out, out = torch.ops.blackwell_kernels.all_reduce_mhc(
            *(x, streams, post, comb, fn, scale, base, norm_weight),
            *(rms_eps, hc_eps, norm_eps, iterations, self.number),
        )
        return streams_out, post_out, comb_out, out

    def launch_mhc(
        self,
        x: torch.Tensor,
        streams: torch.Tensor,
        post: torch.Tensor,
        comb: torch.Tensor,
        mixing: Mixing | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Check and launch on the current stream, for the operators; without `mixing` only R' is made."""
        fn, scale, base, weight, *_, iterations = mixing or _NO_MIXING
        tokens = x.shape[0] if x.dim() else 0
        if x.dim() != 2 or not self.takes(tokens, x.shape[1], x.dtype):  # noqa: PLR2004  # a matrix
            seen = f"{list(x.shape)} {x.dtype}"
            raise ValueError(
                f"x: up to {self.max_tokens} rows of {self.hidden} bfloat16 in an open group, not {seen}"
            )
        if iterations < 1:
            raise ValueError(f"iterations: at least 1, not {iterations}")
        flat = STREAMS * self.hidden
        self._check("x", x, (tokens, self.hidden), torch.bfloat16)
        self._check("streams", streams, (tokens, STREAMS, self.hidden), torch.bfloat16)
        self._check("norm_weight", weight, (self.hidden,), torch.bfloat16)
        self._check("fn", fn, (MIXES, flat), torch.float32)
        for name, tensor, shape in (
            ("post", post, (tokens, STREAMS)),
            ("comb", comb, (tokens, STREAMS, STREAMS)),
            ("scale", scale, (3,)),
            ("base", base, (MIXES,)),
        ):
            self._check(name, tensor, shape, torch.float32)
        made, call = prepare((x, streams, post, comb), mixing, (self._partials, self._arrivals), self.slices)
        rows = tokens * self.slices
        path = self.plans[self.hidden // self.slices].path(rows) if self.forced is None else self.forced
        self._calls["all_reduce_mhc"] += 1
        with torch.cuda.device(self.device):
            try:
                self._open().run_mhc(path, call)
            except KernelError:
                self.raise_if_stalled()
                raise
        return made

    def _check(
        self, name: str, tensor: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        """Refuse a tensor that the kernel would misread; None was checked by the operator's schema.

        Raises:
            ValueError: Says which one, and what was expected.
        """
        if tensor is None:
            return
        if tensor.shape != shape or tensor.dtype != dtype or tensor.device != self.device:
            seen = f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
            raise ValueError(f"{name}: {list(shape)} {dtype} on {self.device}, not {seen}")
        wide = dtype == torch.bfloat16 or name == "fn"
        if not tensor.is_contiguous() or (wide and tensor.data_ptr() % 16):
            raise ValueError(f"{name}: must be contiguous{' and 16-byte aligned' if wide else ''}")
