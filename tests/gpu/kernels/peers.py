"""Other people's kernels on the virtual ranks: the all-reduces and the norm that follows them, and top-k."""

from __future__ import annotations

import ctypes
import math
from ctypes import c_float, c_int, c_int64, c_void_p
from typing import TYPE_CHECKING

import reference
import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from virtual import Ranks

_MAX_BLOCKS = 64
_VLLM_BLOCKS = 36
_ALIGN = 256


def load(path: Path) -> ctypes.CDLL:
    """The library made from `peers.cu`."""
    library = ctypes.CDLL(str(path))
    slabs = ctypes.POINTER(c_int64)
    library.peer_pcie_bytes.argtypes = (c_int, c_int64, c_int)
    library.peer_pcie_bytes.restype = library.peer_vllm_signal_bytes.restype = ctypes.c_uint64
    library.peer_pcie_all_reduce.argtypes = (
        *(slabs, c_int, c_int, c_int64, c_int, c_void_p, c_void_p, c_int64, c_int, c_int, c_int, c_void_p),
    )
    library.peer_vllm_all_reduce.argtypes = (
        *(c_int, c_void_p, slabs, c_int, c_int, c_void_p, c_int64, c_int, c_int, c_void_p),
    )
    library.peer_add_rmsnorm.argtypes = (c_void_p, c_void_p, c_void_p, c_int, c_int, c_float, c_void_p)
    library.peer_topk.argtypes = (
        *(c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_int, c_int, c_int, c_void_p, c_int, c_void_p),
    )
    return library


def _ok(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"{what}: CUDA error {status}")


def _stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


class Peers:
    """Slabs of the peers' all-reduces for W virtual ranks, and one set of inputs.

    Args:
        library: From `load`.
        ranks: Whose streams are used.
        rows: Of the matrix.
        hidden: Its columns.
    """

    def __init__(self, library: ctypes.CDLL, ranks: Ranks, rows: int, hidden: int) -> None:
        self.library, self.ranks, self.rows, self.hidden = library, ranks, rows, hidden
        world, self.numel = ranks.world, rows * hidden
        self.xs, self.residual, self.weight = reference.inputs(world, rows, hidden, rows)
        self.outs = [torch.empty_like(x) for x in self.xs]
        self.residuals = [self.residual.clone() for _ in self.xs]
        pcie = library.peer_pcie_bytes(world, self.numel, _MAX_BLOCKS)
        vllm = library.peer_vllm_signal_bytes() + 2 * self.numel
        self._memory = [torch.zeros(pcie + _ALIGN, dtype=torch.uint8, device="cuda") for _ in range(world)]
        self._memory += [torch.zeros(vllm + _ALIGN, dtype=torch.uint8, device="cuda") for _ in range(world)]
        places = [-(-memory.data_ptr() // _ALIGN) * _ALIGN for memory in self._memory]
        self.pcie_slabs = (c_int64 * world)(*places[:world])
        self.vllm_slabs = (c_int64 * world)(*places[world:])
        pointers = [x.data_ptr() for x in self.xs] + [0] * (8 - world)
        self.vllm_inputs = torch.tensor(pointers, dtype=torch.int64, device="cuda")
        # Loading a kernel waits for those that run, and a rank that runs waits for the next one: load it now.
        self._norm(0)
        torch.cuda.synchronize()

    def pcie(
        self, variant: int, blocks: int, after: Callable[[int], object] | None = None
    ) -> Callable[[int], None]:
        """FlashInfer's `pcie_ipc` all-reduce, then its fused add and norm, or what is given instead."""
        follow = after or self._norm

        def launch(rank: int) -> None:
            status = self.library.peer_pcie_all_reduce(
                *(self.pcie_slabs, rank, self.ranks.world, self.numel, _MAX_BLOCKS, self.xs[rank].data_ptr()),
                *(self.outs[rank].data_ptr(), self.numel, blocks, 512, variant, _stream()),
            )
            _ok(status, "pcie_ipc")
            follow(rank)

        return launch

    def vllm(self, stages: int) -> Callable[[int], None]:
        """vLLM's custom all-reduce with one or two stages, then FlashInfer's fused add and norm."""
        # All ranks' blocks must be resident: one of 512 threads a multiprocessor is sure.
        blocks = min(_VLLM_BLOCKS, 128 // self.ranks.world, math.ceil(self.numel / 8 / 512))

        def launch(rank: int) -> None:
            status = self.library.peer_vllm_all_reduce(
                *(stages, self.vllm_inputs.data_ptr(), self.vllm_slabs, rank, self.ranks.world),
                *(self.outs[rank].data_ptr(), self.numel, blocks, 512, _stream()),
            )
            _ok(status, "vllm")
            self._norm(rank)

        return launch

    def _norm(self, rank: int) -> None:
        status = self.library.peer_add_rmsnorm(
            *(self.outs[rank].data_ptr(), self.residuals[rank].data_ptr(), self.weight.data_ptr()),
            *(self.rows, self.hidden, reference.EPS, _stream()),
        )
        _ok(status, "fused_add_rmsnorm")

    def candidates(self) -> dict[str, Callable[[int], None]]:
        """Every peer with every setting worth trying; the best of each is the one that counts."""
        found: dict[str, Callable[[int], None]] = {"vllm 1-stage": self.vllm(1), "vllm 2-stage": self.vllm(2)}
        return found | self.pcie_candidates()

    def pcie_candidates(self, after: Callable[[int], object] | None = None) -> dict[str, Callable[[int], None]]:
        """FlashInfer's all-reduce with every setting worth trying, and what follows it."""
        found = {}
        useful = max(1, math.ceil(self.numel / 8 / 512))
        variants = {2: (0, 1), 4: (0, 1, 2), 8: (0, 2, 3)}[self.ranks.world]
        # As for vllm: blocks that are not resident would be waited for without end, as 64 of 4 ranks were.
        most = min(_MAX_BLOCKS, 128 // self.ranks.world)
        for variant in variants:
            for blocks in sorted({min(useful, most), min(useful, 16), min(useful, 32)}):
                found[f"pcie_ipc variant {variant} blocks {blocks}"] = self.pcie(variant, blocks, after)
        return found

    def reset(self) -> None:
        """The residual grows with every round; set it back."""
        for residual in self.residuals:
            residual.copy_(self.residual)

    def check(self, launch: Callable[[int], None], name: str) -> None:
        """A peer that is timed must also be right: one round against the formula, with room for its own order.

        Raises:
            WrongError: It is not.
        """
        self.reset()
        torch.cuda.synchronize()
        self.ranks.fork(launch)
        torch.cuda.synchronize()
        for rank, out in enumerate(self.outs):
            error = reference.error_of_norm(self.xs, self.residual, self.weight, out)
            if not error < 1e-2:
                raise reference.WrongError(f"{name}, rank {rank}: relative error {error}")


class TopkPeer:
    """FlashInfer's top-k with page transform (page size 1)."""

    def __init__(self, library: ctypes.CDLL, logits: torch.Tensor, lengths: torch.Tensor, k: int) -> None:
        rows, columns = logits.shape
        self.library, self.logits, self.lengths, self.k = library, logits, lengths, k
        self.table = torch.arange(columns, dtype=torch.int32, device="cuda").repeat(rows, 1)
        self.out = torch.empty(rows, k, dtype=torch.int32, device="cuda")
        self.state = torch.zeros(8 << 20, dtype=torch.uint8, device="cuda")

    def run(self, *, deterministic: bool) -> None:
        """One launch on the current stream."""
        rows, columns = self.logits.shape
        status = self.library.peer_topk(
            *(
                self.logits.data_ptr(),
                self.out.data_ptr(),
                self.table.data_ptr(),
                columns,
                self.lengths.data_ptr(),
            ),
            *(rows, self.k, columns, self.state.data_ptr(), int(deterministic), _stream()),
        )
        _ok(status, "flashinfer top-k")
