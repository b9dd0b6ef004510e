"""Top-k of the sparse indexer: checks of the arguments, the workspace, the launch. The operator is in `ops`."""

from __future__ import annotations

import ctypes

import torch

from blackwell_kernels.library import check, require_library

#: Numbers of selected columns that the kernel is tested for.
WIDTHS = (512, 2048)
MAX_COLUMNS = 262_144
#: Rows that a first workspace has room for; a row takes 24.3 KiB.
_FIRST_ROWS = 256
#: By device and stream: rows and address. A workspace is all zeros between launches, and launches on one stream
#: follow each other. Kept until the process ends, since a captured graph may hold the address.
_WORKSPACES: dict[tuple[int, int], tuple[int, int]] = {}


def check_topk(  # noqa: PLR0917
    logits: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
    k: int,
    out: torch.Tensor | None,
) -> None:
    """Refuse arguments that the kernel would misread.

    Raises:
        ValueError: Says which argument, and what was expected.
    """
    if logits.dim() != 2 or logits.dtype != torch.float32 or logits.stride(1) != 1:  # noqa: PLR2004
        raise ValueError(f"logits: [rows, columns] float32 with contiguous columns, not {_seen(logits)}")
    rows, columns = logits.shape
    if not 1 <= columns <= MAX_COLUMNS:
        raise ValueError(f"logits: 1 to {MAX_COLUMNS} columns, not {columns}")
    if lengths.shape != (rows,) or lengths.dtype != torch.int32 or not lengths.is_contiguous():
        raise ValueError(f"lengths: [{rows}] int32 contiguous, not {_seen(lengths)}")
    if k not in WIDTHS:
        raise ValueError(f"k: one of {WIDTHS}, not {k}")
    if page_size < 1:
        raise ValueError(f"page_size: at least 1, not {page_size}")
    if page_table.dim() != 2 or page_table.dtype != torch.int32 or page_table.shape[0] != rows:  # noqa: PLR2004
        raise ValueError(f"page_table: [{rows}, pages] int32, not {_seen(page_table)}")
    if page_table.shape[1] > 1 and page_table.stride(1) != 1:
        raise ValueError(f"page_table: contiguous pages, not {_seen(page_table)}")
    if out is not None and (out.shape != (rows, k) or out.dtype != torch.int32 or not out.is_contiguous()):
        raise ValueError(f"out: [{rows}, {k}] int32 contiguous, not {_seen(out)}")
    devices = {tensor.device for tensor in (logits, lengths, page_table, *([] if out is None else [out]))}
    if len(devices) != 1 or logits.device.type not in {"cuda", "meta"}:
        raise ValueError(f"all tensors on one CUDA device, not {', '.join(sorted(map(str, devices)))}")


def _seen(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype} with strides {list(tensor.stride())}"


def run_topk(
    logits: torch.Tensor, lengths: torch.Tensor, page_table: torch.Tensor, page_size: int, out: torch.Tensor
) -> None:
    """Launch the kernel on the current stream.

    Raises:
        KernelError: The launch failed.
    """
    rows, columns = logits.shape
    if rows == 0:
        return
    library = require_library()
    with torch.cuda.device(logits.device):
        parts, blocks = ctypes.c_int(), ctypes.c_int()
        check(library.bk_topk_parts(rows, columns, parts, blocks), "top-k: no launch for this shape")
        stream = torch.cuda.current_stream().cuda_stream
        workspace = _workspace(rows, logits.device.index, stream) if parts.value > 1 else None
        check(
            library.bk_topk(
                logits.data_ptr(),
                logits.stride(0),
                lengths.data_ptr(),
                page_table.data_ptr(),
                page_table.stride(0),
                rows,
                columns,
                page_size,
                out.shape[1],
                parts.value,
                blocks.value,
                workspace,
                out.data_ptr(),
                stream,
            ),
            "top-k: launch",
        )


def _workspace(rows: int, device: int, stream: int) -> int:
    """Address of zeros for a launch on a stream of the current device."""
    room, address = _WORKSPACES.get((device, stream), (0, 0))
    if room < rows:
        room, pointer = max(rows, _FIRST_ROWS), ctypes.c_void_p()
        check(require_library().bk_topk_workspace(room, pointer), "top-k: workspace")
        address = pointer.value or 0
        _WORKSPACES[device, stream] = room, address
    return address
