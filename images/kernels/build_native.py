"""Compile our own kernels into the library beside their Python package. Needs nvcc, no GPU and no torch.

Usage: build_native.py [--architectures 120f,90a] [--out FILE] [--cuda-home DIR]

The CUDA runtime is linked in: the library needs nothing but the C and C++ libraries, and so serves torch builds of
every CUDA version that the driver can run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "csrc" / "library.cu"
LIBRARY = HERE / "blackwell_kernels" / "libblackwell_kernels.so"
#: 12.0f runs on 12.0 and 12.1; 9.0a is for the checks on an H200.
ARCHITECTURES = ("120f", "90a")
_ARCHITECTURE = re.compile(r"^\d{2,3}[af]?$")


class RefusedError(Exception):
    """The library cannot be made."""


def nvcc_command(nvcc: str, architectures: list[str], out: Path, libraries: list[Path]) -> list[str]:
    """The compiler's command line; equal inputs give equal files.

    Args:
        nvcc: The compiler.
        architectures: Targets without the dot, e.g. `120f`.
        out: The library.
        libraries: Folders with `libcudart_static.a`, for toolkits that do not know their own.

    Raises:
        RefusedError: An architecture is none.
    """
    for architecture in architectures:
        if not _ARCHITECTURE.match(architecture):
            raise RefusedError(f"{architecture!r} is not an architecture such as 120f")
    targets = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in architectures]
    hidden = "-fPIC,-fvisibility=hidden,-ffile-prefix-map=" + f"{HERE}=."
    flags = ["-std=c++17", "-O3", "-shared", "--cudart=static", "-Xptxas=-warn-spills", "-Xcompiler", hidden]
    linker = ["-Xlinker", "--build-id=none", "-Xlinker", "--exclude-libs=ALL"]
    return [
        *(nvcc, *flags, *linker, *targets, *(f"-L{folder}" for folder in libraries)),
        *("-o", str(out), str(SOURCE)),
    ]


def find_nvcc(home: Path | None) -> str:
    """The compiler of a toolkit, or the one on the path.

    Raises:
        RefusedError: There is none.
    """
    named = home / "bin" / "nvcc" if home else None
    if named is not None and named.is_file():
        return str(named)
    found = None if home else shutil.which("nvcc")
    if found is None:
        raise RefusedError(f"no nvcc {f'in {home}/bin' if home else 'on the path'}: set CUDA_HOME")
    return found


def build(architectures: list[str], out: Path, home: Path | None) -> Path:
    """Compile.

    Raises:
        RefusedError: The compiler failed; says its last lines.
    """
    libraries = [folder for name in ("lib64", "lib") if home and (folder := home / name).is_dir()]
    out.parent.mkdir(parents=True, exist_ok=True)
    command = nvcc_command(find_nvcc(home), architectures, out, libraries)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-25:]
        raise RefusedError("\n".join(["it does not compile", *lines]))
    return out


def main() -> int:
    """Entry of the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architectures", default=",".join(ARCHITECTURES))
    parser.add_argument("--out", type=Path, default=LIBRARY)
    home = os.environ.get("CUDA_HOME")
    parser.add_argument("--cuda-home", type=Path, default=Path(home) if home else None)
    arguments = parser.parse_args()
    try:
        print(build(arguments.architectures.split(","), arguments.out, arguments.cuda_home))
    except RefusedError as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
