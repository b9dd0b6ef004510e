"""Kernel modules: what the compile step refuses, and what is kept between builds."""

import hashlib
import re
import shutil
import tarfile
from pathlib import Path

import build_native
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
    assert first.keys() == {"pcie_ipc_comm", "pcie_ipc_ag_rs", "blackwell_kernels"}
    assert len(set(first.values())) == 3
    own = [plan for plan in ADDED.plans if plan.package == "flashinfer-python"]
    assert kernel_inputs(STACK, LOCK, BASE, own, ROOT / "images") == first, "no other package's patch counts"
    unpatched = kernel_inputs(STACK, LOCK, BASE, [], ROOT / "images")
    assert unpatched != first
    assert unpatched["blackwell_kernels"] == first["blackwell_kernels"], "patches are no source of ours"
    newer = BASE.model_copy(update={"packages": {"libc6": "2"}})
    assert kernel_inputs(STACK, LOCK, newer, ADDED.plans, ROOT / "images") != first
    plain = STACK.model_copy(update={"kernels": None, "local_packages": ()})
    assert kernel_inputs(plain, LOCK, BASE, ADDED.plans, ROOT / "images") == {}


def test_our_sources_make_only_our_own_module_compile_again(tmp_path):
    images = tmp_path / "images"
    shutil.copytree(ROOT / "images" / "kernels", images / "kernels", ignore=shutil.ignore_patterns("*.so"))
    first = kernel_inputs(STACK, LOCK, BASE, ADDED.plans, images)
    python = images / "kernels" / "blackwell_kernels" / "plans.py"
    python.write_text(python.read_text() + "#\n")
    assert kernel_inputs(STACK, LOCK, BASE, ADDED.plans, images) == first, "Python is not compiled"
    header = images / "kernels" / "csrc" / "topk.cuh"
    header.write_text(header.read_text() + "//\n")
    second = kernel_inputs(STACK, LOCK, BASE, ADDED.plans, images)
    assert {name for name in first if first[name] != second[name]} == {"blackwell_kernels"}
    assert STACK.kernels is not None
    kernels = STACK.kernels.model_copy(update={"native": {"blackwell_kernels": "12.0a"}})
    other = kernel_inputs(STACK.model_copy(update={"kernels": kernels}), LOCK, BASE, ADDED.plans, images)
    assert {name for name in first if other[name] != second[name]} == {"blackwell_kernels"}


SYSTEM = ["libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "ld-linux-x86-64.so.2"]


def test_our_own_library_has_the_runtime_in_it():
    assert build_native.check_linkage(SYSTEM, ["malloc", "dlopen"], ["bk_b", "bk_a"]) == ["bk_a", "bk_b"]


@pytest.mark.parametrize(
    ("needed", "undefined", "exported", "message"),
    [
        ([*SYSTEM, "libcudart.so.13"], [], ["bk_a"], "nobody loads for it: libcudart.so.13"),
        (SYSTEM, ["cudaMalloc"], ["bk_a"], "the CUDA runtime is not linked in: cudaMalloc"),
        (SYSTEM, ["cuMemAlloc_v2"], ["bk_a"], "not linked in: cuMemAlloc_v2"),
        (SYSTEM, [], ["bk_a", "cudaMalloc"], "not its interface: cudaMalloc"),
        (SYSTEM, [], [], "exports no function"),
    ],
)
def test_our_own_library_is_refused_where_it_could_not_serve(needed, undefined, exported, message):
    with pytest.raises(build_native.RefusedError, match=re.escape(message)):
        build_native.check_linkage(needed, undefined, exported)


def test_the_compile_command_says_every_target_and_nothing_of_this_machine(tmp_path):
    command = build_native.nvcc_command("nvcc", ["120f", "90a"], tmp_path / "a.so", [Path("/toolkit/lib")])
    assert [word for word in command if "gencode" in word] == [
        "-gencode=arch=compute_120f,code=sm_120f",
        "-gencode=arch=compute_90a,code=sm_90a",
    ]
    assert {"--cudart=static", "-L/toolkit/lib", "--build-id=none", "--strip-all"} <= set(command)
    assert any(word.endswith(f"-ffile-prefix-map={build_native.HERE}=.") for word in command)
    assert [build_native.dotted(name) for name in ("120f", "90a", "103")] == ["12.0f", "9.0a", "10.3"]
    with pytest.raises(build_native.RefusedError, match="'sm_120' is not an architecture"):
        build_native.nvcc_command("nvcc", ["sm_120"], tmp_path / "a.so", [])
    with pytest.raises(build_native.RefusedError, match="no nvcc in"):
        build_native.find_nvcc(tmp_path)


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("__global__ void __cluster_dims__(2) f() {}", ["__cluster_dims__"]),
        ("attribute.id = cudaLaunchAttributeClusterDimension;", ["ClusterDimension"]),
        ('asm("multimem.ld_reduce.relaxed.sys.global.add.f32 %0, [%1];"); wgmma', ["multimem", "wgmma"]),
        ('asm("mapa.shared::cluster.u32 %0, %1, %2;");', ["mapa", "shared::cluster"]),
        ("// no multimem, no clusters\n/* this_cluster() */ int mapable;", []),
    ],
)
def test_what_sm120_does_not_have_is_refused_before_it_compiles(text, words):
    assert build_native.banned(text) == words


def test_our_sources_use_nothing_that_sm120_does_not_have():
    sources = sorted((ROOT / "images" / "kernels" / "csrc").iterdir())
    assert len(sources) >= 5
    assert [name for path in sources if (name := build_native.banned(path.read_text()))] == []
