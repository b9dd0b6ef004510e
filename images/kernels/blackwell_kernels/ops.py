"""The operators as torch sees them: `torch.ops.blackwell_kernels.*`, with fakes for tracing.

Python holds the schemas and a C library the kernels (see `library`), so that one build serves every torch: no
C++ type of torch crosses the boundary. Each operator returns new tensors and writes to none of its arguments,
except the one with `_out` in its name.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from blackwell_kernels.topk import check_topk, run_topk

if TYPE_CHECKING:
    from blackwell_kernels.group import AllReduceGroup
    from blackwell_kernels.mhc import MhcGroup

_NAMESPACE = torch.library.Library("blackwell_kernels", "DEF")
#: Operators name a group by a number, since a schema carries no Python object.
_GROUPS: weakref.WeakValueDictionary[int, AllReduceGroup] = weakref.WeakValueDictionary()


def register_group(group: AllReduceGroup) -> int:
    """Give a group the number that operators name it by; it is never used again in this process."""
    number = _next_number()
    _GROUPS[number] = group
    return number


def _next_number() -> int:
    _next_number.last += 1  # type: ignore[attr-defined]
    return int(_next_number.last)  # type: ignore[attr-defined]


_next_number.last = 0  # type: ignore[attr-defined]


def _group(number: int) -> AllReduceGroup:
    group = _GROUPS.get(number)
    if group is None:
        raise ValueError(f"there is no all-reduce group {number} in this process (was it closed?)")
    return group


def _define(schema: str, cuda: object, fake: object) -> None:
    name = schema.partition("(")[0]
    _NAMESPACE.define(schema)
    _NAMESPACE.impl(name, cuda, "CUDA")
    torch.library.register_fake(f"blackwell_kernels::{name}", fake, lib=_NAMESPACE)


def _all_reduce(x: torch.Tensor, group: int) -> torch.Tensor:
    return _group(group).launch("all_reduce", x)[0]


def _all_reduce_add(x: torch.Tensor, residual: torch.Tensor, group: int) -> torch.Tensor:
    return _group(group).launch("all_reduce_add", x, residual)[0]


def _all_reduce_residual_rmsnorm(  # noqa: PLR0917  # an operator's signature
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, norm_of: str, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    kind = f"all_reduce_residual_rmsnorm_{norm_of}"
    norm_out, residual_out = _group(group).launch(kind, x, residual, weight, eps)
    return norm_out, residual_out


_define(
    "all_reduce(Tensor x, int group) -> Tensor",
    _all_reduce,
    lambda x, group: torch.empty_like(x),  # noqa: ARG005  # a fake has the signature of the real one
)
_define(
    "all_reduce_add(Tensor x, Tensor residual, int group) -> Tensor",
    _all_reduce_add,
    lambda x, residual, group: torch.empty_like(x),  # noqa: ARG005
)
_define(
    "all_reduce_residual_rmsnorm(Tensor x, Tensor residual, Tensor weight, float eps, str norm_of, int group)"
    " -> (Tensor, Tensor)",
    _all_reduce_residual_rmsnorm,
    lambda x, residual, weight, eps, norm_of, group: (torch.empty_like(x), torch.empty_like(x)),  # noqa: ARG005
)


def _mhc_group(number: int) -> MhcGroup:
    group = _group(number)
    if not hasattr(group, "launch_mhc"):
        raise ValueError(f"group {number} reduces matrices; a group for hyper-connections is an MhcGroup")
    return group  # type: ignore[return-value]  # its module imports this one


def _all_reduce_mhc_post(
    x: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, comb: torch.Tensor, group: int
) -> torch.Tensor:
    return _mhc_group(group).launch_mhc(x, streams, post, comb)[0]


def _all_reduce_mhc(  # noqa: PLR0917  # an operator's signature
    x: torch.Tensor,
    streams: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    norm_weight: torch.Tensor | None,
    rms_eps: float,
    hc_eps: float,
    norm_eps: float,
    iterations: int,
    group: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    mixing = (fn, scale, base, norm_weight, rms_eps, hc_eps, norm_eps, iterations)
    return _mhc_group(group).launch_mhc(x, streams, post, comb, mixing)


_define(
    "all_reduce_mhc_post(Tensor x, Tensor streams, Tensor post, Tensor comb, int group) -> Tensor",
    _all_reduce_mhc_post,
    lambda x, streams, post, comb, group: torch.empty_like(streams),  # noqa: ARG005
)
_define(
    "all_reduce_mhc(Tensor x, Tensor streams, Tensor post, Tensor comb, Tensor fn, Tensor scale, Tensor base,"
    " Tensor? norm_weight, float rms_eps, float hc_eps, float norm_eps, int iterations, int group)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _all_reduce_mhc,
    lambda x, streams, post, comb, *_: tuple(map(torch.empty_like, (streams, post, comb, x))),
)


def _topk(
    logits: torch.Tensor, lengths: torch.Tensor, page_table: torch.Tensor, page_size: int, k: int
) -> torch.Tensor:
    out = torch.empty((logits.shape[0], k), dtype=torch.int32, device=logits.device)
    run_topk(logits, lengths, page_table, page_size, out)
    return out


def _topk_out(
    logits: torch.Tensor, lengths: torch.Tensor, page_table: torch.Tensor, page_size: int, out: torch.Tensor
) -> None:
    run_topk(logits, lengths, page_table, page_size, out)


_define(
    "topk_transform(Tensor logits, Tensor lengths, Tensor page_table, int page_size, int k) -> Tensor",
    _topk,
    lambda logits, lengths, page_table, page_size, k: torch.empty(  # noqa: ARG005
        (logits.shape[0], k), dtype=torch.int32, device=logits.device
    ),
)
_define(
    "topk_transform_out(Tensor logits, Tensor lengths, Tensor page_table, int page_size, Tensor(a!) out) -> ()",
    _topk_out,
    lambda logits, lengths, page_table, page_size, out: None,  # noqa: ARG005
)


def topk_transform(
    logits: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
    k: int,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Slots in a paged cache of the k largest logits of each row, lowest column first.

    For row b with n = lengths[b] (clamped to 0..columns) the selected columns are the min(k, n) largest of
    `logits[b, :n]`; column c becomes `page_table[b, c // page_size] * page_size + c % page_size`. What is left
    of the k places is -1. Selected columns come in ascending order, so equal input gives equal output, and a
    row with n <= k is simply its columns in order.

    Order of values: NaN (any) counts as larger than +inf, as in `torch.topk`; -0.0 equals +0.0; -inf is an
    ordinary smallest value; of equal values at the limit the lowest columns are taken.

    Launches on one stream follow each other, as do replays of graphs that were captured on it; two that
    overlap in time must come from different streams.

    Args:
        logits: [rows, columns] float32, columns contiguous, rows may be strided; what lies behind a row's
            length is never read. At most 262,144 columns.
        lengths: [rows] int32, real lengths, read on the device: the cost follows them and not the columns.
        page_table: [rows, pages] int32, contiguous in pages, with at least ceil(length / page_size) pages a
            row.
        page_size: Columns a page, at least 1.
        k: 512 or 2048.
        out: Where to write, [rows, k] int32 contiguous; by default a new tensor.

    Returns:
        [rows, k] int32, `out` if it was given.

    Raises:
        ValueError: A shape, type, device or stride is not as above.
        LibraryError: The compiled library cannot be loaded.
        KernelError: The launch failed.
    """
    check_topk(logits, lengths, page_table, page_size, k, out)
    if out is None:
        result: torch.Tensor = torch.ops.blackwell_kernels.topk_transform(
            logits, lengths, page_table, page_size, k
        )
        return result
    torch.ops.blackwell_kernels.topk_transform_out(logits, lengths, page_table, page_size, out)
    return out
