"""Fused kernels for GPUs that talk over PCIe: all-reduce with its epilogue, and top-k of the sparse indexer.

Importing needs torch and no GPU; the compiled library is loaded when it is first needed, and `require_library`
says at once whether it can be. SM120 code is built and inspected, never run by us: `source-qualified`.
"""

from __future__ import annotations

from blackwell_kernels.errors import GroupError, KernelError, LibraryError, StalledError
from blackwell_kernels.group import AllReduceGroup
from blackwell_kernels.library import require_library
from blackwell_kernels.ops import topk_transform

__all__ = [
    "AllReduceGroup",
    "GroupError",
    "KernelError",
    "LibraryError",
    "StalledError",
    "require_library",
    "topk_transform",
]
