"""Kernel modules: what the compile step refuses, and what is kept between builds."""

import hashlib
import tarfile
from pathlib import Path

import compile_kernel
import pytest

from tests.unit.test_build import ADDED, BASE, LOCK, ROOT, STACK
from tooling.build.kernels import export_kernels, import_kernels, judge_module, kernel_inputs
from tooling.build.record import KernelReceipt
from tooling.gates.records import Verdict

DATA = Path(__file__).parents[1] / "data" / "census"
NEEDED = ["libcudart.so.13", "libcuda.so.1", "libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6"]
LIBRARY = b"a library"
RECEIPT = KernelReceipt(
    module="a_b",
    path="/opt/a_b.so",
    sha256=hashlib.sha256(LIBRARY).hexdigest(),
    architecture="12.0a",
    needed=("libcudart.so.13",),
    functions=("run",),
)


def test_the_stub_has_old_and_versioned_driver_functions():
    header = (
        "#define cuMemAlloc cuMemAlloc_v2\n"
        "CUresult CUDAAPI cuInit(unsigned int Flags);\n"
        "CUresult CUDAAPI cuStreamWriteValue32(CUstream stream);\ntypedef struct CUctx_st *CUcontext;\n"
    )
    functions = compile_kernel.driver_functions(header)
    assert functions == ["cuInit", "cuMemAlloc", "cuMemAlloc_v2", "cuStreamWriteValue32"]
    assert "int cuMemAlloc_v2(void)" in compile_kernel.stub_source(functions)


def test_a_library_with_what_a_gpu_host_brings_is_taken():
    compile_kernel.check_linkage(NEEDED, ["cuDeviceGet", "memcpy"], ["cuDeviceGet"])


@pytest.mark.parametrize(
    ("needed", "undefined", "message"),
    [
        (
            [n for n in NEEDED if "cuda.so" not in n],
            ["cuDeviceGet"],
            "calls the driver (cuDeviceGet)",
        ),
        (["libcuda.so.1", "libc.so.6"], [], "does not need the CUDA runtime"),
        ([], [], "NEEDED: nothing"),
        ([*NEEDED, "libtorch.so"], [], "nobody loads for it: libtorch.so"),
        (NEEDED, ["cuFromTheFuture"], "does not declare: cuFromTheFuture"),
    ],
)
def test_a_library_that_would_not_load_on_a_gpu_host_is_refused(needed, undefined, message):
    with pytest.raises(compile_kernel.RefusedError) as caught:
        compile_kernel.check_linkage(needed, undefined, ["cuDeviceGet"])
    assert message in str(caught.value)


def test_the_hash_of_a_module_follows_what_it_is_made_of():
    first = kernel_inputs(STACK, LOCK, BASE, ADDED.plans, ROOT / "images")
    assert first.keys() == {"pcie_ipc_comm", "pcie_ipc_ag_rs"}
    assert len(set(first.values())) == 2
    own = [plan for plan in ADDED.plans if plan.package == "flashinfer-python"]
    assert kernel_inputs(STACK, LOCK, BASE, own, ROOT / "images") == first, "no other package's patch counts"
    assert kernel_inputs(STACK, LOCK, BASE, [], ROOT / "images") != first
    newer = BASE.model_copy(update={"packages": {"libc6": "2"}})
    assert kernel_inputs(STACK, LOCK, newer, ADDED.plans, ROOT / "images") != first
    plain = STACK.model_copy(update={"kernels": None})
    assert kernel_inputs(plain, LOCK, BASE, ADDED.plans, ROOT / "images") == {}


def test_a_kept_module_comes_back(tmp_path):
    written = export_kernels({"a_b": (RECEIPT, LIBRARY)}, {"a_b": "0" * 64}, tmp_path / "kept")
    assert [path.name for path in written] == [f"{'0' * 64}.tar"]
    assert export_kernels({"a_b": (RECEIPT, LIBRARY)}, {"a_b": "0" * 64}, tmp_path / "kept") == []
    found = import_kernels({"a_b": "0" * 64, "other": "1" * 64}, tmp_path / "context", tmp_path / "kept")
    assert found == ["a_b"]
    assert (tmp_path / "context/imported/a_b/a_b.so").read_bytes() == LIBRARY
    assert list((tmp_path / "context/imported/other").iterdir()) == [], "the folder is there, to be bound in"


@pytest.mark.parametrize("damage", ["another library", "no archive"])
def test_a_damaged_kept_module_is_said_and_made_again(tmp_path, capsys, damage):
    kept = tmp_path / "kept"
    (path,) = export_kernels({"a_b": (RECEIPT, LIBRARY)}, {"a_b": "0" * 64}, kept)
    if damage == "no archive":
        path.write_bytes(b"damaged")
    else:
        path.unlink()
        export_kernels({"a_b": (RECEIPT, b"another")}, {"a_b": "0" * 64}, kept)
    assert import_kernels({"a_b": "0" * 64}, tmp_path / "context", kept) == []
    assert "a_b is compiled again" in " ".join(capsys.readouterr().err.split())
    assert export_kernels({"a_b": (RECEIPT, LIBRARY)}, {"a_b": "0" * 64}, kept) == [path], "replaced"
    with tarfile.open(path) as tar:
        assert tar.getnames() == ["a_b.so", "receipt.json"]


def test_a_module_whose_kernels_compiled_to_nothing_fails():
    kernels = STACK.kernels
    assert kernels is not None
    _, checks = judge_module("bad", (DATA / "kernels_120a.cubin").read_bytes(), kernels)
    failed = {check.name for check in checks if check.verdict is Verdict.FAIL}
    assert {"kernels-not-empty", "spills", "instructions"} <= failed
    found, good = judge_module("good", (DATA / "adds_120f.cubin").read_bytes(), kernels)
    assert len(found) == 1
    assert {check.verdict for check in good} == {Verdict.PASS}
