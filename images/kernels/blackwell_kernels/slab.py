"""A rank's memory for its group, and the kernels on it: the C interface with Python's types."""

from __future__ import annotations

import ctypes
import secrets
import struct
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import torch

from blackwell_kernels import plans
from blackwell_kernels.errors import KernelError
from blackwell_kernels.library import HANDLE_BYTES, check, require_library

if TYPE_CHECKING:
    from collections.abc import Sequence

#: In the order of the kernels' own numbers.
KINDS = (
    "all_reduce",
    "all_reduce_add",
    "all_reduce_residual_rmsnorm_unrounded",
    "all_reduce_residual_rmsnorm_rounded",
)
#: What the device counts: the kinds above, and the kernel with hyper-connections.
COUNTED = (*KINDS, "all_reduce_mhc")
_STAGES = ("one-shot rows", "two-shot rows", "two-shot sums")
_MOST_BLOCKS = 256
_DIAGNOSIS_WORDS = 9
#: Says whether two ranks share an address space; process ids repeat between containers.
_PROCESS = secrets.token_bytes(16)


class Sizes(NamedTuple):
    """What a slab is made for; equal on all ranks.

    Attributes:
        world: Number of ranks.
        rows: Most rows of a round.
        one_shot_rows: Most rows of a one-shot round.
        hidden: Most columns.
    """

    world: int
    rows: int
    one_shot_rows: int
    hidden: int

    def takes(self, path: int, rows: int) -> bool:
        """Whether a path has room for a number of rows."""
        return rows <= (self.one_shot_rows if path in plans.ONE_SHOT else self.rows)


class Round(NamedTuple):
    """The tensors of one call; outputs of a kind without a norm are `out` alone."""

    x: torch.Tensor
    residual: torch.Tensor | None
    weight: torch.Tensor | None
    eps: float
    out: torch.Tensor
    residual_out: torch.Tensor


def resident_blocks(
    world: int,
    hidden_sizes: Sequence[int],
    ranks_on_device: int,
    functions: Sequence[str] = ("bk_resident_blocks",),
) -> tuple[int, ...]:
    """By path, blocks of every rank of the current device that are sure to run at the same time.

    Args:
        world: Number of ranks.
        hidden_sizes: Columns of the rows.
        ranks_on_device: Ranks that share the device.
        functions: Of the library, one for each kernel that the group launches.

    Raises:
        KernelError: Not even one block a rank.
    """
    fewest = [_MOST_BLOCKS] * len(plans.PATHS)
    for name, hidden in product(functions, hidden_sizes):
        blocks = (ctypes.c_int * len(plans.PATHS))()
        check(getattr(require_library(), name)(world, hidden, blocks), "occupancy")
        fewest = [min(fewer, found // ranks_on_device) for fewer, found in zip(fewest, blocks, strict=True)]
    if min(fewest) < 1:
        raise KernelError(f"the device has no room for a block of each of {ranks_on_device} ranks")
    return tuple(fewest)


class Slab:
    """Memory that peers write into, allocated on the current device, with the maps of theirs.

    Args:
        rank: Of this process.
        sizes: What it is for.
        blocks: By path, most blocks of a launch; equal on all ranks.
        first_round: Where the counters start; equal on all ranks.

    Attributes:
        exported: What a peer needs to map it.

    Raises:
        KernelError: It cannot be allocated or shared.
    """

    def __init__(self, rank: int, sizes: Sizes, blocks: Sequence[int], first_round: int) -> None:
        self.rank, self.sizes = rank, sizes
        self._library = require_library()
        self._group = ctypes.c_void_p()
        pointer, handle = ctypes.c_void_p(), (ctypes.c_uint8 * HANDLE_BYTES)()
        status = self._library.bk_group_create(
            sizes.world,
            rank,
            sizes.rows,
            sizes.one_shot_rows,
            sizes.hidden,
            (ctypes.c_int * len(plans.PATHS))(*blocks),
            first_round & 0xFFFFFFFF,
            self._group,
            handle,
            pointer,
        )
        check(status, "slab")
        self.exported = _PROCESS + struct.pack("<Q", pointer.value or 0) + bytes(handle)

    def join(self, exported: Sequence[bytes]) -> None:
        """Map the slabs of all peers.

        Args:
            exported: What each rank exported, in the order of ranks.
        """
        for peer, data in enumerate(exported):
            if peer == self.rank:
                continue
            process, rest = data[: len(_PROCESS)], data[len(_PROCESS) :]
            pointer, handle = struct.unpack("<Q", rest[:8])[0], rest[8:]
            status = self._library.bk_group_join(
                self._group,
                peer,
                (ctypes.c_uint8 * HANDLE_BYTES).from_buffer_copy(handle),
                pointer if process == _PROCESS else None,
            )
            check(status, f"slab of rank {peer}")

    def leave(self) -> None:
        """Unmap the slabs of the peers; no launch may be running."""
        check(self._library.bk_group_leave(self._group), "unmapping the peers")

    def destroy(self, *, free: bool) -> None:
        """End it; the memory itself is freed only when no peer can still have it mapped."""
        check(self._library.bk_group_destroy(self._group, int(free)), "freeing the slab")

    def patience(self, seconds: float, *, traps: bool) -> None:
        """How long a thread of later launches waits for a peer, and whether it then ends with a trap."""
        check(self._library.bk_group_patience(self._group, int(seconds * 1e9), int(traps)), "patience")

    def run(self, path: int, kind: int, tensors: Round, times: int = 1) -> None:
        """Launch rounds on the current stream of the current device.

        Raises:
            KernelError: The launch failed.
        """
        x, residual, weight, eps, out, residual_out = tensors
        status = self._library.bk_group_launch(
            self._group,
            path,
            kind,
            x.data_ptr(),
            None if residual is None else residual.data_ptr(),
            None if weight is None else weight.data_ptr(),
            eps,
            *x.shape,
            out.data_ptr(),
            residual_out.data_ptr(),
            times,
            torch.cuda.current_stream().cuda_stream,
        )
        check(status, f"{plans.PATHS[path]}, {KINDS[kind]}")

    def run_mhc(self, path: int, call: ctypes.Structure, times: int = 1) -> None:
        """Launch rounds of the kernel with hyper-connections on the current stream of the current device.

        Args:
            path: Number of the path.
            call: `bk_mhc` of the library.
            times: How many.

        Raises:
            KernelError: The launch failed.
        """
        stream = torch.cuda.current_stream().cuda_stream
        status = self._library.bk_mhc_launch(self._group, path, ctypes.byref(call), times, stream)
        check(status, f"{plans.PATHS[path]}, all_reduce_mhc")

    def rounds(self) -> dict[str, int]:
        """`<path>.<kind>` -> rounds that the device has done; zeros are left out."""
        words = (ctypes.c_uint32 * (len(plans.PATHS) * len(COUNTED)))()
        check(self._library.bk_group_rounds(self._group, words), "reading the counters")
        names = [f"{path}.{kind}" for path in plans.PATHS for kind in COUNTED]
        return {name: int(count) for name, count in zip(names, words, strict=True) if count}

    def diagnosis(self) -> str:
        """What the first thread that gave up saw, or an empty string; can be asked after a trap too."""
        words = (ctypes.c_uint32 * _DIAGNOSIS_WORDS)()
        check(self._library.bk_group_diagnosis(self._group, words), "reading the diagnosis")
        valid, rank, peer, path, stage, block, thread, number, seen = words
        if not valid:
            return ""
        return (
            f"rank {rank} gave up waiting for rank {peer}: {plans.PATHS[path]}, {_STAGES[stage]}, "
            f"round {number}, block {block}, thread {thread}, last seen {seen:#x}"
        )
