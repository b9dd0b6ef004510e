"""A group of ranks that reduce together: made by all or by none, measured once, taken down in order."""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING

import torch

from blackwell_kernels import startup
from blackwell_kernels.errors import GroupError, KernelError
from blackwell_kernels.library import require_library
from blackwell_kernels.ops import register_group
from blackwell_kernels.slab import KINDS, Round, Sizes, Slab, resident_blocks
from blackwell_kernels.vote import Vote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blackwell_kernels.plans import Plan

WORLDS = (2, 4, 8)
_WIDEST = 8192
_WIDTH_STEP = 256
#: One-shot sends every byte to every rank; above this it cannot win with more than two ranks.
_ONE_SHOT_BYTES = 1 << 20
#: Seconds that a rank waits for a peer while the group is made, when all are known to be there.
_SETUP_PATIENCE = 10.0
_ALIGNMENT = 16


class AllReduceGroup:
    """Sums over ranks by CUDA IPC, with the epilogues of a transformer block.

    All ranks call the same methods in the same order with the same shapes, each on one stream at a time; that
    is the contract of every collective. Results are bitwise equal on all ranks and do not depend on the path.
    Launches can be captured into graphs. A kernel that waits for a peer longer than `patience` seconds writes a
    diagnosis and ends with a trap: the CUDA context is then lost, and the next call, or `raise_if_stalled`,
    says which rank was missed.

    Attributes:
        rank: Of this process in the group.
        group_size: Number of ranks.
        max_rows: Most rows of a matrix.
        hidden_sizes: Columns that it takes.
        plans: By hidden size, which path takes how many rows.
        number: What the operators call this group.
        forced: Path that every call takes instead of the planned one, for tests and benchmarks; None otherwise.
    """

    #: Functions of the library that say how many blocks of its kernels are resident together.
    _occupancy: tuple[str, ...] = ("bk_resident_blocks",)

    def __init__(  # noqa: PLR0917
        self,
        group_size: int,
        rank: int,
        exchange: Callable[[bytes], Sequence[bytes]],
        max_bytes: int,
        hidden_sizes: Sequence[int],
        device: torch.device | int | str,
        *,
        patience: float = 120.0,
        measure: bool = True,
        ranks_on_device: int = 1,
        first_round: int = 0,
    ) -> None:
        """Make the group; every rank must call this at the same time, outside graph capture.

        Args:
            group_size: 2, 4 or 8.
            rank: 0 to group_size - 1.
            exchange: All-gather of bytes over the ranks, in the order of ranks, for example over a CPU process
                group; used while the group is made and closed, never for data.
            max_bytes: Largest matrix in bytes; with the largest hidden size it gives the most rows.
            hidden_sizes: Columns of the matrices, multiples of 256 from 256 to 8192.
            device: CUDA device of this rank.
            patience: Seconds that a kernel waits for a peer before it traps.
            measure: Choose paths by measurement (kept by topology); otherwise push, one-shot for few rows.
            ranks_on_device: How many ranks run on this device at the same time, for tests on one GPU: blocks of
                all of them must fit together, or they would wait for each other for ever.
            first_round: Where the round counters start, for tests of their wrap-around.

        Raises:
            ValueError: An argument is outside its range.
            GroupError: Some rank failed; every rank raises it with what each one said.
        """
        sizes = tuple(sorted(set(hidden_sizes)))
        if group_size not in WORLDS or not 0 <= rank < group_size:
            raise ValueError(f"a group has 2, 4 or 8 ranks; rank {rank} of {group_size} is not possible")
        if not sizes or any(size % _WIDTH_STEP or not _WIDTH_STEP <= size <= _WIDEST for size in sizes):
            raise ValueError(f"hidden sizes are multiples of 256 from 256 to 8192, not {list(hidden_sizes)}")
        if max_bytes < 2 * sizes[-1]:
            raise ValueError(f"{max_bytes} bytes do not hold one row of {sizes[-1]} columns")
        self.rank, self.group_size, self.hidden_sizes = rank, group_size, sizes
        self.device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.max_rows = max_bytes // (2 * sizes[-1])
        self.forced: int | None = None
        self._vote = Vote(group_size, exchange)
        self._calls: Counter[str] = Counter()
        self._slab: Slab | None = None
        with torch.cuda.device(self.device):
            try:
                self.plans = self._make(ranks_on_device, first_round, measure=measure, patience=patience)
            except GroupError:
                self._take_down()
                raise
        self.number = register_group(self)

    def _make(
        self, ranks_on_device: int, first_round: int, *, measure: bool, patience: float
    ) -> dict[int, Plan]:
        agree, gather = self._vote.agree, self._vote.gather
        one_shot_bytes = (
            _ONE_SHOT_BYTES if self.group_size > WORLDS[0] else self.max_rows * 2 * self.hidden_sizes[-1]
        )
        one_shot_rows = min(self.max_rows, max(1, one_shot_bytes // (2 * self.hidden_sizes[-1])))
        sizes = Sizes(self.group_size, self.max_rows, one_shot_rows, self.hidden_sizes[-1])
        agree("no library", require_library)
        mine = agree(
            "no launch is possible",
            lambda: resident_blocks(self.group_size, self.hidden_sizes, ranks_on_device, self._occupancy),
        )
        by_rank = [
            struct.unpack(f"<{len(mine)}i", data) for data in gather(struct.pack(f"<{len(mine)}i", *mine))
        ]
        blocks = [min(column) for column in zip(*by_rank, strict=True)]

        def allocate() -> Slab:
            self._slab = Slab(self.rank, sizes, blocks, first_round)
            return self._slab

        slab = agree("no slab", allocate)
        exported = gather(slab.exported)
        agree("a peer's slab cannot be mapped", lambda: slab.join(exported))
        slab.patience(_SETUP_PATIENCE, traps=False)
        agree("the mapped memory does not carry data", lambda: startup.check_data(slab, self.device))
        found = (
            startup.find_plans(slab, self._vote, self.hidden_sizes, self.device)
            if measure
            else startup.default_plans(slab, self.hidden_sizes)
        )
        slab.patience(patience, traps=True)
        return found

    def _take_down(self) -> None:
        """Unmap, wait until all have, free. A rank that has nothing takes part in the waiting."""
        slab, self._slab = self._slab, None
        everybody_left = True
        try:
            self._vote.gather(b"idle")
            if slab is not None:
                slab.leave()
            self._vote.gather(b"left")
        except GroupError:
            everybody_left = False
        if slab is not None:
            slab.destroy(free=everybody_left)

    def close(self) -> None:
        """Take the group down; all ranks together. Waits for this rank's launches first.

        A rank whose peers do not answer keeps its slab until the process ends, since freeing memory that a peer
        has mapped is undefined. Closing twice does nothing.

        Raises:
            StalledError: A kernel gave up waiting: the CUDA context is lost, and nothing can be freed.
        """
        if self._slab is None:
            return
        self.raise_if_stalled()
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            self._take_down()

    def _open(self) -> Slab:
        if self._slab is None:
            raise KernelError("the all-reduce group is closed")
        return self._slab

    def supports(self, rows: int, hidden: int, dtype: torch.dtype) -> bool:
        """Whether a [rows, hidden] matrix of this type can be reduced; the same on every rank."""
        return (
            self._slab is not None
            and dtype == torch.bfloat16
            and hidden in self.hidden_sizes
            and 1 <= rows <= self.max_rows
        )

    def counters(self) -> dict[str, int]:
        """Rounds by path and kind, as the device counted them: replays of a graph are in it.

        Returns:
            `<path>.<kind>` -> rounds done, and `calls.<kind>` -> calls from Python. Zeros are left out.
        """
        with torch.cuda.device(self.device):
            rounds = self._open().rounds()
        return rounds | {f"calls.{kind}": count for kind, count in sorted(self._calls.items())}

    def diagnosis(self) -> str:
        """What the first thread that gave up saw, or an empty string; can be asked after a trap too."""
        return "" if self._slab is None else self._slab.diagnosis()

    def raise_if_stalled(self) -> None:
        """Raise a diagnosis if there is one.

        Raises:
            StalledError: A kernel of this rank gave up waiting.
        """
        if self._slab is not None:
            startup.raise_if_stalled(self._slab)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over ranks: `bf16(sum_r float32(x_r))`, in the order of ranks.

        Args:
            x: [rows, hidden] bfloat16, contiguous, 16-byte aligned; is not written.

        Returns:
            A new [rows, hidden] bfloat16 tensor.

        Raises:
            ValueError: The tensor is not as above, or larger than the group was made for.
            KernelError: The launch failed. StalledError: an earlier one gave up waiting.
        """
        result: torch.Tensor = torch.ops.blackwell_kernels.all_reduce(x, self.number)
        return result

    def all_reduce_add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Sum over ranks plus a residual that is the same on all: `bf16(sum_r float32(x_r) + residual)`.

        Arguments and errors as for `all_reduce`; `residual` has the shape and type of `x`.
        """
        result: torch.Tensor = torch.ops.blackwell_kernels.all_reduce_add(x, residual, self.number)
        return result

    def all_reduce_residual_rmsnorm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        norm_of: str = "unrounded",
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum over ranks, residual and RMSNorm in one kernel.

        With s = sum_r float32(x_r) and rms(v) = sqrt(mean(v^2) + eps):
        "unrounded": v = bf16(s) + residual in float32, residual_out = bf16(v); what an all-reduce followed by a
        fused add and norm gives. "rounded": v = residual_out = bf16(s + residual), rounded once.
        In both norm_out = bf16(v / rms(v) * weight).

        Args:
            x: [rows, hidden] bfloat16, contiguous, 16-byte aligned.
            residual: As x, the same on all ranks; is not written.
            weight: [hidden] bfloat16.
            eps: Added to the mean of squares.
            norm_of: "unrounded" or "rounded".

        Returns:
            (norm_out, residual_out), both new [rows, hidden] bfloat16 tensors.

        Raises:
            ValueError: An argument is not as above.
            KernelError: As for `all_reduce`.
        """
        norm_out, residual_out = torch.ops.blackwell_kernels.all_reduce_residual_rmsnorm(
            x, residual, weight, eps, norm_of, self.number
        )
        return norm_out, residual_out

    def launch(
        self,
        kind: str,
        x: torch.Tensor,
        residual: torch.Tensor | None = None,
        weight: torch.Tensor | None = None,
        eps: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Check and launch on the current stream, for the operators. Returns (out, residual_out or out)."""
        if kind not in KINDS:
            raise ValueError(f"norm_of is 'unrounded' or 'rounded', not {kind.rpartition('_')[2]!r}")
        self._check_arguments(x, residual, weight)
        rows, hidden = x.shape
        out = torch.empty_like(x)
        residual_out = torch.empty_like(x) if weight is not None else out
        path = self.plans[hidden].path(rows) if self.forced is None else self.forced
        self._calls[kind] += 1
        with torch.cuda.device(self.device):
            try:
                self._open().run(path, KINDS.index(kind), Round(x, residual, weight, eps, out, residual_out))
            except KernelError:
                self.raise_if_stalled()
                raise
        return out, residual_out

    def _check_arguments(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor | None
    ) -> None:
        if x.dim() != 2 or not self.supports(x.shape[0], x.shape[1], x.dtype):  # noqa: PLR2004  # a matrix
            raise ValueError(
                f"x: up to {self.max_rows} rows of {' or '.join(map(str, self.hidden_sizes))} bfloat16, in "
                f"a group "
                f"that is open, not {list(x.shape)} {x.dtype}"
            )
        for name, tensor, shape in (
            ("x", x, x.shape),
            ("residual", residual, x.shape),
            ("weight", weight, x.shape[1:]),
        ):
            if tensor is None:
                continue
            if tensor.shape != shape or tensor.dtype != torch.bfloat16 or tensor.device != self.device:
                seen = f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
                raise ValueError(f"{name}: {list(shape)} bfloat16 on {self.device}, not {seen}")
            if not tensor.is_contiguous() or tensor.data_ptr() % _ALIGNMENT:
                raise ValueError(f"{name}: must be contiguous and {_ALIGNMENT}-byte aligned")
