"""Compile one kernel module in a build step, check the library, and lay it where its package looks for it.

Usage: compile_kernel.py SOURCE MODULE OUT, e.g. `compile_kernel.py flashinfer.jit.comm pcie_ipc_comm /out`.
In: CUDA_HOME, FLASHINFER_CUDA_ARCH_LIST, MAX_JOBS, EPOCH; /run/build/imported/<MODULE>.so if a build of
equal inputs kept one. Needs no GPU and no driver.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SHARE = Path("/opt/stack/share/kernels")
IMPORTED = Path("/run/build/imported")
#: Always the same, since compilers write paths into what they make.
WORKSPACE = Path("/var/tmp/compile-kernel")  # noqa: S108  # a build step is alone in its file system
#: The driver's library: there on a GPU host, never in an image.
DRIVER = "libcuda.so.1"
_DRIVER_FUNCTION = re.compile(r"\bcu[A-Z]\w*")
#: What a compiled module may need at run time besides the driver and the CUDA runtime.
_SYSTEM = re.compile(r"^(lib(stdc\+\+|gcc_s|c|m|pthread|dl|rt)\.so(\.\d+)*|ld-linux[\w-]*\.so\.\d+)$")
_RUNTIME = re.compile(r"^libcudart\.so\.\d+$")
_EXPORT = "__tvm_ffi_"

# In a process of its own: the stub stands in for the driver there, and every function is looked up.
_LOAD = """
import ctypes, sys
ctypes.CDLL(sys.argv[2], ctypes.RTLD_GLOBAL)
import tvm_ffi
module = tvm_ffi.load_module(sys.argv[1])
for name in sys.argv[3:]:
    getattr(module, name)
"""


class RefusedError(Exception):
    """The module cannot go into the image."""


def driver_functions(header: str) -> list[str]:
    """Every name of the driver's interface in its header, old and versioned ones."""
    return sorted(set(_DRIVER_FUNCTION.findall(header)))


def stub_source(functions: list[str]) -> str:
    """A library that has the driver's functions and can do none of them (CUDA_ERROR_STUB_LIBRARY is 34)."""
    return "".join(f"int {name}(void) {{ return 34; }}\n" for name in functions)


def make_stub(home: Path, folder: Path) -> list[str]:
    """Put the driver's stub into a folder; it is linked against and never shipped."""
    functions = driver_functions((home / "include" / "cuda.h").read_text(encoding="utf-8"))
    if "cuInit" not in functions:
        raise RefusedError(f"{home}/include/cuda.h declares no driver functions")
    source = folder / "stub.c"
    source.write_text(stub_source(functions), encoding="utf-8")
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{DRIVER}", "-o", str(folder / DRIVER)]
    subprocess.run(["gcc", *flags, str(source)], check=True)
    (folder / "libcuda.so").symlink_to(DRIVER)
    return functions


def build(source: str, module: str, workspace: Path, stub: Path) -> Path:
    """Compile with the package's own generator; the library stays in the workspace."""
    os.environ["FLASHINFER_WORKSPACE_BASE"] = str(workspace)
    # `--no-as-needed`: NEEDED must name the driver even where the compiler's default drops unused libraries.
    os.environ["FLASHINFER_EXTRA_LDFLAGS"] = f"-L{stub} -Wl,--no-as-needed -lcuda"
    os.environ["LIBRARY_PATH"] = str(stub)
    generator = getattr(importlib.import_module(source), f"gen_{module}_module", None)
    if generator is None:
        raise RefusedError(f"{source} has no gen_{module}_module()")
    spec = generator()
    try:
        spec.build(*([True] if "verbose" in inspect.signature(spec.build).parameters else []))
    except RuntimeError as error:
        raise RefusedError("\n".join(["it does not compile", *str(error).splitlines()[-25:]])) from error
    found = sorted(workspace.rglob(f"{module}.so"))
    if len(found) != 1:
        raise RefusedError(f"{len(found)} libraries {module}.so were made, one was expected")
    return found[0]


def lines_of(*argv: str) -> list[str]:
    """What a program printed."""
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()


def check_linkage(needed: list[str], undefined: list[str], stub: list[str]) -> None:
    """Refuse a library that would not find its functions on a GPU host, or needs what nobody brings."""
    if not any(_RUNTIME.match(name) for name in needed):
        raise RefusedError(f"it does not need the CUDA runtime (NEEDED: {' '.join(needed) or 'nothing'})")
    other = [n for n in needed if not (_SYSTEM.match(n) or _RUNTIME.match(n) or n == DRIVER)]
    if other:
        raise RefusedError(f"it needs libraries that nobody loads for it: {' '.join(other)}")
    driver = [name for name in undefined if _DRIVER_FUNCTION.fullmatch(name)]
    if driver and DRIVER not in needed:
        raise RefusedError(f"it calls the driver ({' '.join(driver[:3])}) and does not need {DRIVER}")
    unknown = sorted(set(driver) - set(stub))
    if unknown:
        raise RefusedError(f"it calls driver functions that this CUDA does not declare: {' '.join(unknown)}")


def load(library: Path, stub: Path, home: Path, functions: list[str]) -> None:
    """Load the library once and look up each of its functions."""
    runtime = next(iter(sorted((home / "lib64").glob("libcudart.so.*"))), None)
    if runtime is None:
        raise RefusedError(f"{home}/lib64 has no CUDA runtime")
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(library), str(runtime), *functions],
        env={**os.environ, "LD_LIBRARY_PATH": str(stub)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RefusedError("\n".join(["it cannot be loaded", *done.stderr.strip().splitlines()[-5:]]))


def install(library: Path, source: str, module: str, out: Path, epoch: int) -> Path:
    """Copy the library to where the package looks first; returns its path in the image."""
    package = importlib.util.find_spec(source.partition(".")[0])
    if package is None or package.origin is None:
        raise RefusedError(f"{source} is not installed")
    place = Path(package.origin).parent / "data" / "aot" / module / f"{module}.so"
    target = out / place.relative_to("/")
    target.parent.mkdir(parents=True)
    target.write_bytes(library.read_bytes())
    target.chmod(0o755)
    os.utime(target, (epoch, epoch))
    return place


def make(source: str, module: str, out: Path) -> str:
    """Do all of it; the answer is one line for the log."""
    home, epoch = Path(os.environ["CUDA_HOME"]), int(os.environ["EPOCH"])
    with tempfile.TemporaryDirectory() as scratch:
        stub = Path(scratch) / "stub"
        stub.mkdir()
        declared = make_stub(home, stub)
        kept = IMPORTED / f"{module}.so"
        library = kept if kept.is_file() else build(source, module, WORKSPACE, stub)
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", "\n".join(lines_of("readelf", "--dynamic", str(library))))
        undefined = [line.split()[-1] for line in lines_of("nm", "-D", "--undefined-only", str(library))]
        defined = [line.split()[-1] for line in lines_of("nm", "-D", "--defined-only", str(library))]
        functions = sorted(name.removeprefix(_EXPORT) for name in defined if name.startswith(_EXPORT))
        functions = [name for name in functions if not name.startswith("_")]
        if not functions:
            raise RefusedError("it exports no function")
        check_linkage(needed, undefined, declared)
        load(library, stub, home, functions)
        place = install(library, source, module, out, epoch)
    receipt = {
        "module": module,
        "path": str(place),
        "sha256": hashlib.sha256((out / place.relative_to("/")).read_bytes()).hexdigest(),
        "architecture": os.environ["FLASHINFER_CUDA_ARCH_LIST"],
        "needed": needed,
        "functions": functions,
    }
    record = out / (SHARE / f"{module}.json").relative_to("/")
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps(receipt, indent=1, sort_keys=True), encoding="utf-8")
    for path in (out, *out.rglob("*")):
        os.utime(path, (epoch, epoch), follow_symlinks=False)
    how = "from the kernel cache" if kept.is_file() else "compiled"
    return f"{module} {how}: {len(functions)} functions, {receipt['architecture']}"


def main() -> int:
    """Entry of the build step."""
    source, module, out = sys.argv[1:]
    try:
        print(make(source, module, Path(out)))
    except RefusedError as error:
        first, *rest = str(error).splitlines()
        print(
            f"kernel {module}: {first}",
            *(f"kernel {module}:   {line}" for line in rest),
            sep="\n",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
