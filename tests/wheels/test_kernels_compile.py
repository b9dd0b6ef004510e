"""Our kernels compiled by the stack's own nvcc, and what the product's checks say of good and bad ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

import build_native
import pytest

from tests.programs import require_program
from tests.wheels.upstream import wheel
from tooling.census.kernels import Kernel, KernelLimits, check_kernels
from tooling.gates.records import Check, Verdict
from tooling.lock.lockfile import parse_lock

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
# A part of the library: all of it is compiled, and checked the same way, by the build of the image.
GOOD = """
#include "mhc.cuh"
#include "topk.cuh"
using namespace blackwell_kernels;
#define INSTANCE(W, PATH, THREADS) \\
  template __global__ void blackwell_kernels::all_reduce_kernel<W, PATH, THREADS>( \\
      const __grid_constant__ Arguments)
INSTANCE(4, kPushOneShot, kNarrow);
INSTANCE(4, kPullTwoShot, kNarrow);
INSTANCE(8, kPushTwoShot, kMaxThreads);
template __global__ void blackwell_kernels::all_reduce_mhc_kernel<8, kPushTwoShot>(
    const __grid_constant__ MhcArguments);
"""
BAD = """
__global__ void __launch_bounds__(1024, 1) spilling(float* data) {
  float kept[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) kept[i] = data[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) data[i * 1024 + threadIdx.x] = kept[95 - i] * kept[(i * 37) % 96];
}
__global__ void multicast(float* data) {
  float sum;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f32 %0, [%1];" : "=f"(sum) : "l"(data) : "memory");
  data[threadIdx.x] = sum;
}
__global__ void nothing(float* data) {}
"""


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory) -> Path:
    """The toolkit's wheels of the stack as one tree, as the image has it."""
    require_program("g++", "g++")
    home: Path = tmp_path_factory.mktemp("toolkit")
    path = ROOT / "stacks" / "cu130.lock.txt"
    pins = {entry.name: entry.version for entry in parse_lock(path.read_text(), path).wheels}
    for part in PARTS:
        tree = wheel(part, pins[part]) / "nvidia" / "cu13"
        files = [path for path in tree.rglob("*") if path.is_file()]
        assert files, f"{part} has no file below nvidia/cu13"
        for path in files:
            place = home / path.relative_to(tree)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path)
    return home


def _compile(toolkit: Path, folder: Path, text: str, architecture: str) -> Path:
    source, out = folder / "kernels.cu", folder / f"{architecture}.cubin"
    source.write_text(text)
    target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    headers = ["-I", str(ROOT / "images" / "kernels" / "csrc")]
    nvcc = build_native.find_nvcc(toolkit)
    command = [nvcc, "-std=c++17", "-O3", "-cubin", target, *headers, "-o", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def _judge(path: Path, device: str) -> tuple[tuple[Kernel, ...], dict[str, Check]]:
    kernels, checks = check_kernels(path, device, KernelLimits())
    return kernels, {check.name: check for check in checks}


@pytest.mark.parametrize(("architecture", "device"), [("120f", "12.0"), ("90a", "9.0")])
def test_our_kernels_compile_and_neither_spill_nor_use_what_is_banned(toolkit, tmp_path, architecture, device):
    kernels, checks = _judge(_compile(toolkit, tmp_path, GOOD, architecture), device)
    assert len(kernels) == 5
    failed = {name: check.details for name, check in checks.items() if check.verdict is Verdict.FAIL}
    assert failed == {}
    # The one with the most registers of its kind; blocks have at most 128 threads.
    mhc = next(kernel for kernel in kernels if "mhc" in kernel.name)
    assert mhc.stack == 0
    topk = next(kernel for kernel in kernels if "topk" in kernel.name)
    # Two blocks of 1024 threads on an SM90, one on SM120.
    assert topk.registers <= (32 if device == "9.0" else 64)


def test_bad_kernels_are_found(toolkit, tmp_path):
    _, checks = _judge(_compile(toolkit, tmp_path, BAD, "120f"), "12.0")
    failed = {name: check.details for name, check in checks.items() if check.verdict is Verdict.FAIL}
    assert failed.keys() == {"spills", "instructions", "kernels-not-empty"}
    assert "spilling" in failed["spills"][0]
    assert "multicast" in failed["instructions"][0]
    assert "nothing" in failed["kernels-not-empty"][0]


def test_a_source_that_does_not_compile_says_why(toolkit, tmp_path, monkeypatch):
    (tmp_path / "library.cu").write_text("int broken(\n")
    monkeypatch.setattr(build_native, "SOURCE", tmp_path / "library.cu")
    with pytest.raises(build_native.RefusedError, match=r"(?s)it does not compile\n.*expected a"):
        build_native.build(["120f"], tmp_path / "out.so", toolkit)
    (tmp_path / "library.cu").write_text("__global__ void __cluster_dims__(2, 1, 1) kernel() {}\n")
    with pytest.raises(build_native.RefusedError, match=r"library\.cu uses what SM120 does not have"):
        build_native.build(["120f"], tmp_path / "out.so", toolkit)
