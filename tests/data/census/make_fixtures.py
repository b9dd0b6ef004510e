"""Make the binary fixtures again: `python make_fixtures.py [PTXAS_12]`, with nvcc 13.0 and gcc on PATH.

PTXAS_12 is a ptxas of CUDA 12, for the cubin in the layout of that time; without it that file is left as it is.
The tests need none of these programs, only the files.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
COMPRESSED = ["-Xfatbin=-compress-all", "-Xfatbin=-compress-mode=size"]


def run(*command: str | Path) -> None:
    """Run a compiler."""
    subprocess.run([str(part) for part in command], check=True)


def code(*targets: str) -> list[str]:
    """Options of nvcc: `120a` is machine code, `ptx90` PTX."""
    options = []
    for target in targets:
        arch = target.removeprefix("ptx")
        options.append(f"-gencode=arch=compute_{arch},code={'compute' if target != arch else 'sm'}_{arch}")
    return options


def main() -> None:
    """Make every file."""
    adds, kernels = HERE / "adds.cu", HERE / "kernels.cu"
    fatbins = {
        "several.fatbin": [*COMPRESSED, *code("120a", "121a", "80", "ptx90")],
        "family.fatbin": [*COMPRESSED, *code("120f", "ptx120f")],
        "plain.fatbin": [*COMPRESSED, *code("120", "ptx120a")],
        "ptx_only.fatbin": ["-Xfatbin=-compress=false", *code("ptx120")],
    }
    for name, options in fatbins.items():
        run("nvcc", "-fatbin", *options, adds, "-o", HERE / name)
    run("nvcc", "-cubin", "-maxrregcount=40", *code("120a"), kernels, "-o", HERE / "kernels_120a.cubin")
    run("nvcc", "-cubin", *code("120f"), adds, "-o", HERE / "adds_120f.cubin")
    run("nvcc", "-fatbin", *COMPRESSED, *code("120a"), kernels, "-o", HERE / "kernels.fatbin")
    run("nvcc", "-cubin", *code("120a"), HERE / "stub.cu", "-o", HERE / "stub_120a.cubin")
    run("nvcc", "-ptx", "-arch=compute_120a", kernels, "-o", HERE / "kernels_120a.ptx")
    with tempfile.TemporaryDirectory() as name:
        _linked(Path(name), adds)
        if len(sys.argv) > 1:
            _old_layout(Path(name), sys.argv[1])


def _linked(folder: Path, adds: Path) -> None:
    """Shared libraries with one and with several containers, an archive, and relocatable code left behind."""
    one, two, rdc, link = (folder / name for name in ("one.o", "two.o", "rdc.o", "link.o"))
    compile_object = ["nvcc", "-c", "-Xcompiler=-fPIC", *COMPRESSED]
    run(*compile_object, *code("120a", "ptx90"), adds, "-o", one)
    run(*compile_object, *code("90a"), adds, "-o", two)
    link_shared = ["gcc", "-shared", "-nostdlib", "-Wl,--build-id=none", "-Wl,-z,norelro", "-s"]
    run(*link_shared, "-Wl,--allow-multiple-definition", one, two, "-o", HERE / "two_containers.so")
    run(*compile_object, "-rdc=true", *code("90", "120"), adds, "-o", rdc)
    run("nvcc", "-dlink", "-Xcompiler=-fPIC", *code("90"), rdc, "-o", link)
    run(*link_shared, rdc, link, "-o", HERE / "left_behind.so")
    (HERE / "static.a").unlink(missing_ok=True)
    run(
        "ar", "Dqc", HERE / "static.a", rdc.rename(folder / "a_member_with_a_name_longer_than_its_field.o"), two
    )
    (folder / "host.c").write_text("int host(void) { return 1; }\n")
    run(*link_shared, "-fPIC", folder / "host.c", "-o", HERE / "host_only.so")
    resource = folder / "resource"
    resource.write_bytes(b"a table of its own" + (HERE / "plain.fatbin").read_bytes() + b"and more data")
    run("objcopy", f"--add-section=.cask_resource={resource}", HERE / "host_only.so", HERE / "embedded.so")


def _old_layout(folder: Path, ptxas: str) -> None:
    """The cubin layout of CUDA 12, from PTX that says it is of that time."""
    ptx = folder / "old.ptx"
    run("nvcc", "-ptx", "-arch=compute_90a", HERE / "kernels.cu", "-o", ptx)
    ptx.write_text(re.sub(r"^\.version.*", ".version 8.7", ptx.read_text(), flags=re.MULTILINE))
    run(ptxas, "-arch=sm_90a", ptx, "-o", HERE / "kernels_90a_cuda12.cubin")


if __name__ == "__main__":
    main()
