"""Compile our own kernels into the library beside their Python package. Needs nvcc, no GPU and no torch.

Usage: build_native.py [--architectures 120f,90a] [--out FILE] [--cuda-home DIR]
In a build step of an image also: --imported FILE (kept by a build of equal inputs, used if it is there),
--receipt DIR and --installed DIR (where the library will be), EPOCH in the environment.

The CUDA runtime is linked in: the library needs nothing but the C and C++ libraries, and so serves torch
builds of every CUDA version that the driver can run.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "csrc" / "library.cu"
LIBRARY = HERE / "blackwell_kernels" / "libblackwell_kernels.so"
#: Where an image keeps receipts of what was compiled for it.
SHARE = Path("/opt/stack/share/kernels")
#: 12.0f runs on 12.0 and 12.1; 9.0a is for the checks on an H200.
ARCHITECTURES = ("120f", "90a")
_ARCHITECTURE = re.compile(r"^(\d{1,2})(\d)([af]?)$")
_SYSTEM = re.compile(r"^(lib(stdc\+\+|gcc_s|c|m|pthread|dl|rt)\.so(\.\d+)*|ld-linux[\w-]*\.so\.\d+)$")
_DRIVER_FUNCTION = re.compile(r"cu(da)?[A-Z]\w*")
_EXPORT = "bk_"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BANNED = re.compile(
    r"__cluster_dims__|cluster_group|this_cluster|ClusterDimension|ClusterSize|barrier\.cluster|mapa\b|"
    r"shared::cluster|%cluster\w*|multimem|cuMulticast\w*|wgmma|tcgen05"
)


class RefusedError(Exception):
    """The library cannot be made."""


def dotted(architecture: str) -> str:
    """The architecture as records write it, `12.0f` for `120f`.

    Raises:
        RefusedError: It is none.
    """
    found = _ARCHITECTURE.match(architecture)
    if found is None:
        raise RefusedError(f"{architecture!r} is not an architecture such as 120f")
    return f"{found[1]}.{found[2]}{found[3]}"


def banned(source: str) -> list[str]:
    """What a source uses that SM120 does not have; the assembler takes most of it and the launch fails.

    Args:
        source: CUDA C++ text.

    Returns:
        The words, in order of appearance; clusters of blocks and multicast memory.
    """
    return [match[0] for match in _BANNED.finditer(_COMMENT.sub("", source))]


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
        dotted(architecture)
    targets = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in architectures]
    hidden = "-fPIC,-fvisibility=hidden,-ffile-prefix-map=" + f"{HERE}=."
    flags = ["-std=c++17", "-O3", "-shared", "--cudart=static", "-Xptxas=-warn-spills", "-Xcompiler", hidden]
    # Stripped: the symbol table has the compiler's process number in it, in the name of an intermediate file.
    words = ["--build-id=none", "--exclude-libs=ALL", "--strip-all"]
    linker = [option for word in words for option in ("-Xlinker", word)]
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
        RefusedError: A source uses what SM120 does not have, or the compiler failed; says its last lines.
    """
    for path in sorted(SOURCE.parent.iterdir()):
        if words := banned(path.read_text(encoding="utf-8")):
            raise RefusedError(f"{path.name} uses what SM120 does not have: {', '.join(words)}")
    libraries = [folder for name in ("lib64", "lib") if home and (folder := home / name).is_dir()]
    out.parent.mkdir(parents=True, exist_ok=True)
    command = nvcc_command(find_nvcc(home), architectures, out, libraries)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-25:]
        raise RefusedError("\n".join(["it does not compile", *lines]))
    return out


def check_linkage(needed: list[str], undefined: list[str], exported: list[str]) -> list[str]:
    """What the library exports; refuses one that would not find its functions on a GPU host.

    Args:
        needed: Libraries that it names as NEEDED.
        undefined: Symbols that others must define.
        exported: Symbols that it defines for others.

    Raises:
        RefusedError: It needs more than C and C++, calls a CUDA that it has not linked in, or exports nothing.
    """
    if other := [name for name in needed if not _SYSTEM.match(name)]:
        raise RefusedError(f"it needs libraries that nobody loads for it: {' '.join(other)}")
    if calls := [name for name in undefined if _DRIVER_FUNCTION.fullmatch(name)]:
        raise RefusedError(f"the CUDA runtime is not linked in: {' '.join(calls[:3])} undefined")
    if strangers := [name for name in exported if not name.startswith(_EXPORT)]:
        raise RefusedError(f"it exports what is not its interface: {' '.join(strangers[:3])}")
    if not exported:
        raise RefusedError("it exports no function")
    return sorted(exported)


def look(library: Path) -> tuple[list[str], list[str]]:
    """Load the library, which needs no driver; NEEDED and its functions.

    Raises:
        RefusedError: It cannot be loaded, or its linkage is wrong.
    """

    def lines(*argv: str) -> list[str]:
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()

    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", "\n".join(lines("readelf", "--dynamic", str(library))))
    symbols = {
        kind: [line.split()[-1].partition("@")[0] for line in lines("nm", "-D", f"--{kind}-only", str(library))]
        for kind in ("undefined", "defined")
    }
    functions = check_linkage(needed, symbols["undefined"], symbols["defined"])
    try:
        loaded = ctypes.CDLL(str(library))
    except OSError as error:
        raise RefusedError(f"it cannot be loaded: {error}") from error
    if loaded.bk_version() < 1:
        raise RefusedError("it does not say which version of the interface it has")
    return needed, functions


def write_receipt(library: Path, installed: Path, architecture: str, root: Path) -> str:
    """What was compiled, in the words of the receipts of other kernel modules, below the root of an image."""
    needed, functions = look(library)
    receipt: dict[str, object] = {
        "module": installed.name,
        "path": str(installed / library.name),
        "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        "architecture": dotted(architecture),
        "needed": needed,
        "functions": functions,
    }
    place = root / (SHARE / f"{installed.name}.json").relative_to("/")
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(receipt, indent=1, sort_keys=True), encoding="utf-8")
    epoch = int(os.environ["EPOCH"])
    for path in (root, *root.rglob("*"), library):
        os.utime(path, (epoch, epoch))
    return f"{installed.name}: {len(functions)} functions, {receipt['architecture']}"


def main() -> int:
    """Entry of the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architectures", default=",".join(ARCHITECTURES))
    parser.add_argument("--out", type=Path, default=LIBRARY)
    home = os.environ.get("CUDA_HOME")
    parser.add_argument("--cuda-home", type=Path, default=Path(home) if home else None)
    parser.add_argument("--imported", type=Path)
    parser.add_argument("--receipt", type=Path)
    parser.add_argument("--installed", type=Path)
    arguments = parser.parse_args()
    architectures = arguments.architectures.split(",")
    kept = arguments.imported if arguments.imported and arguments.imported.is_file() else None
    try:
        if kept:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(kept, arguments.out)
            arguments.out.chmod(0o755)
        else:
            build(architectures, arguments.out, arguments.cuda_home)
        print(arguments.out, "from the kernel cache" if kept else "compiled")
        if arguments.receipt:
            print(write_receipt(arguments.out, arguments.installed, architectures[0], arguments.receipt))
        else:
            look(arguments.out)
    except RefusedError as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
