"""Which CUDA a wheel belongs to, read from its name and version alone."""

from __future__ import annotations

import re
from typing import NamedTuple

from packaging.version import Version

#: Toolkit parts that are numbered like CUDA itself, besides all of `nvidia-cuda-*`.
_NUMBERED = frozenset(
    f"nvidia-{part}" for part in ("nvfatbin", "nvjitlink", "nvml-dev", "nvptxcompiler", "nvtx", "nvvm")
)
#: Toolkit parts with numbers of their own. Without a `-cuNN` suffix their names exist since CUDA 13.
_OWN_NUMBERS = frozenset(
    f"nvidia-{part}"
    for part in ("cublas", "cufft", "cufile", "curand", "cusolver", "cusparse", "npp", "nvjpeg")
)
_FIRST_UNSUFFIXED_MAJOR = 13
#: Wheels of the toolkit that compile or load code, constrained together to one minor.
TOOLCHAIN = (
    *(
        f"nvidia-cuda-{part}"
        for part in (
            "cccl", "crt", "culibos", "cuobjdump", "cupti", "cuxxfilt", "nvcc", "nvdisasm", "nvrtc",
            "opencl", "profiler-api", "runtime", "sanitizer-api",
        )
    ),
    *sorted(_NUMBERED),
)  # fmt: skip
_SUFFIX = re.compile(r"-(?:cu|cuda)(?P<major>\d{2})(?P<minor>\d)?x?$")
_LOCAL = re.compile(r"(?:^|[.\-_])cu(?P<major>\d{2})(?P<minor>\d)(?:$|[.\-_])")
_BINDINGS = frozenset({"cuda-bindings", "cuda-python", "cuda-toolkit"})


class Cuda(NamedTuple):
    """A CUDA version as far as a wheel tells it; `minor` is None when only the major is known."""

    major: int
    minor: int | None = None

    def __str__(self) -> str:
        return f"{self.major}" if self.minor is None else f"{self.major}.{self.minor}"


def cuda_of(name: str, version: str) -> Cuda | None:
    """CUDA version that a wheel is for.

    Args:
        name: Canonical name of the distribution.
        version: Its version, local part included (`2.11.0+cu129`).

    Returns:
        None for a wheel that is not bound to a CUDA version, or does not say so.
    """
    parsed = Version(version)
    if parsed.local and (found := _LOCAL.search(parsed.local)):
        return Cuda(int(found["major"]), int(found["minor"]))
    stem = name
    suffix = _SUFFIX.search(name)
    if suffix:
        stem = name[: suffix.start()]
    if stem.startswith("nvidia-cuda-") or stem in _NUMBERED:
        return Cuda(parsed.major, parsed.minor)
    if suffix:
        return Cuda(int(suffix["major"]), int(suffix["minor"]) if suffix["minor"] else None)
    if name in _OWN_NUMBERS:
        return Cuda(_FIRST_UNSUFFIXED_MAJOR if name != "nvidia-cublas" else parsed.major)
    if name in _BINDINGS:
        return Cuda(parsed.major, parsed.minor if name == "cuda-toolkit" else None)
    return None


def is_toolkit_part(name: str) -> bool:
    """Whether a wheel is a part of the CUDA toolkit that must have the stack's minor."""
    stem = _SUFFIX.sub("", name)
    return stem.startswith("nvidia-cuda-") or stem in _NUMBERED or name == "cuda-toolkit"


def minor_constraints(cuda: str) -> list[str]:
    """Constraints (PEP 508) that keep the toolkit's wheels at one CUDA minor such as `13.0`."""
    return [f"{name}=={cuda}.*" for name in TOOLCHAIN]
