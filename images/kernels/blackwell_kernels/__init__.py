"""Fused kernels for GPUs that talk over PCIe: all-reduce with its epilogue, and top-k of the sparse indexer.

Beside them portable Triton kernels: logits of that indexer, and sparse attention of a decode step.

Importing needs neither torch nor a GPU: names are loaded when they are first used, so that the SGLang plugin
in this package can report whatever is wrong with the rest. `require_library` says at once whether the compiled
library can be used. SM120 code is built and inspected, never run by us: `source-qualified`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blackwell_kernels.errors import GroupError, KernelError, LibraryError, StalledError
    from blackwell_kernels.group import AllReduceGroup
    from blackwell_kernels.library import require_library
    from blackwell_kernels.mhc import MhcGroup
    from blackwell_kernels.ops import topk_transform
    from blackwell_kernels.portable import paged_mqa_logits, sparse_mla_decode
    from blackwell_kernels.sparse_mla import Scope

__all__ = [
    "AllReduceGroup",
    "GroupError",
    "KernelError",
    "LibraryError",
    "MhcGroup",
    "Scope",
    "StalledError",
    "paged_mqa_logits",
    "require_library",
    "sparse_mla_decode",
    "topk_transform",
]

_MODULES = {
    "AllReduceGroup": "group",
    "GroupError": "errors",
    "KernelError": "errors",
    "LibraryError": "errors",
    "MhcGroup": "mhc",
    "Scope": "sparse_mla",
    "StalledError": "errors",
    "paged_mqa_logits": "portable",
    "require_library": "library",
    "sparse_mla_decode": "portable",
    "topk_transform": "ops",
}


def __getattr__(name: str) -> Any:
    """Load a public name on its first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
