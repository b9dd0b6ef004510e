"""The compiled library behind a C interface, found once a process and held against the interface that we speak.

ctypes and plain C instead of a torch extension: nothing in the library depends on torch, its C++ ABI or the
version of Python, so one file serves every engine. What it costs, some microseconds of Python a call, is not
paid where it would matter, because engines replay graphs.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_char_p, c_float, c_int, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path

from blackwell_kernels.errors import KernelError, LibraryError

#: Names another library than the one beside this file.
VARIABLE = "BLACKWELL_KERNELS_LIBRARY"
VERSION = 2
HANDLE_BYTES = 64
_INT = ctypes.POINTER(c_int)
_POINTER = ctypes.POINTER(c_void_p)
_WORDS = ctypes.POINTER(c_uint32)
_BYTES = ctypes.POINTER(c_uint8)
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "bk_version": (c_int, ()),
    "bk_error_text": (c_char_p, (c_int,)),
    "bk_resident_blocks": (c_int, (c_int, c_int, _INT)),
    "bk_mhc_resident_blocks": (c_int, (c_int, c_int, _INT)),
    "bk_group_create": (
        c_int,
        (c_int, c_int, c_int, c_int, c_int, _INT, c_uint32, _POINTER, _BYTES, _POINTER),
    ),
    "bk_group_join": (c_int, (c_void_p, c_int, _BYTES, c_void_p)),
    "bk_group_leave": (c_int, (c_void_p,)),
    "bk_group_destroy": (c_int, (c_void_p, c_int)),
    "bk_group_patience": (c_int, (c_void_p, c_uint64, c_int)),
    "bk_group_launch": (
        c_int,
        (
            *(c_void_p, c_int, c_int, c_void_p, c_void_p, c_void_p, c_float, c_int, c_int, c_void_p, c_void_p),
            *(c_int, c_void_p),
        ),
    ),
    "bk_mhc_launch": (c_int, (c_void_p, c_int, c_void_p, c_int, c_void_p)),
    "bk_group_rounds": (c_int, (c_void_p, _WORDS)),
    "bk_group_diagnosis": (c_int, (c_void_p, _WORDS)),
    "bk_group_bytes": (c_uint64, (c_void_p,)),
    "bk_topk_workspace": (c_int, (c_int, _POINTER)),
    "bk_topk_parts": (c_int, (c_int, c_int, _INT, _INT)),
    "bk_topk": (
        c_int,
        (
            *(c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int, c_int, c_int, c_int, c_int, c_int),
            *(c_void_p, c_void_p, c_void_p),
        ),
    ),
}


def library_path() -> Path:
    """Where the compiled library is, or should be."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path(__file__).with_name("libblackwell_kernels.so")


@cache
def require_library() -> ctypes.CDLL:
    """Load the library once.

    Returns:
        The library, every function of it typed.

    Raises:
        LibraryError: It is missing, cannot be loaded, lacks a function, or has another interface version.
    """
    path = library_path()
    if not path.is_file():
        raise LibraryError(f"{path} is missing: build it with `python build_native.py`, or set {VARIABLE}")
    try:
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise LibraryError(f"{path} cannot be used: {error}") from error
    if (found := loaded.bk_version()) != VERSION:
        raise LibraryError(f"{path} has interface {found}, this package speaks {VERSION}")
    return loaded


def check(status: int, what: str) -> None:
    """Raise what a function of the library answered.

    Raises:
        KernelError: The status is not 0; says what was tried and the CUDA runtime's own text.
    """
    if status:
        text = require_library().bk_error_text(status).decode()
        raise KernelError(f"{what}: {text} (CUDA error {status})")
