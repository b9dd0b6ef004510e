"""Every Effect-Expected of the series for sglang 0.5.9 and flashinfer 0.6.4, on the real code."""

import re
import sys
import textwrap
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.wheels.upstream import function, patched, sources, statements
from tooling.archgates.cuda_scan import SM120, admits, scan_cuda

pytestmark = pytest.mark.wheels

SGLANG, FLASHINFER = "sglang-0.5.9", "flashinfer-python-0.6.4"


def _flags(source: str, name: str, **names: Any) -> list[str]:
    """The compiler flags of a generated module, and the architectures it asks for."""
    made: dict[str, Any] = {}
    function(
        source,
        name,
        **names,
        current_compilation_context=SimpleNamespace(
            get_nvcc_flags_list=lambda supported_major_versions: [f"arch {supported_major_versions}"]
        ),
        jit_env=SimpleNamespace(FLASHINFER_CSRC_DIR=_Path(), FLASHINFER_GEN_SRC_DIR=_Path()),
        gen_jit_spec=lambda *_, **options: made.update(options),
    )()
    flags: list[str] = made["extra_cuda_cflags"]
    return flags


class _Path:
    def __truediv__(self, _: str) -> "_Path":
        return self


def test_flashinfer_0001_the_module_is_compiled_for_sm120():
    shipped, fixed = sources(FLASHINFER, "0001", "flashinfer/jit/comm.py")
    assert _flags(shipped, "gen_trtllm_comm_module") == ["arch [9, 10]"]
    assert _flags(fixed, "gen_trtllm_comm_module") == ["arch [9, 10, 12]"]


def test_flashinfer_0001_no_guard_empties_a_kernel_on_sm120():
    shipped, fixed = sources(FLASHINFER, "0001", "flashinfer/data/include/flashinfer/comm/trtllm_allreduce.cuh")
    guards = [line for line in shipped.splitlines() if re.match(r"\s*#\s*if.*__CUDA_ARCH__", line)]
    off = [line for line in guards if admits("if", line.partition("if")[2], SM120) is False]
    assert len(off) == 13
    assert not [hit for hit in scan_cuda("x", fixed.encode())[0] if hit.sm120 is False]
    same = [line for line in fixed.splitlines() if re.match(r"\s*#\s*if.*__CUDA_ARCH__", line)]
    assert [admits("if", line.partition("if")[2], 900) for line in same] == [
        admits("if", line.partition("if")[2], 900) for line in guards
    ]


def test_flashinfer_0001_pointers_are_packed_as_the_kernels_read_them():
    shipped, fixed = sources(FLASHINFER, "0001", "flashinfer/data/csrc/trtllm_allreduce.cu")
    strides = re.compile(r"lamport_peer_comm_buffer_ptrs\[i \+ (\w+)")
    assert strides.findall(shipped) == ["tp_size", "tp_size"]
    assert strides.findall(fixed) == ["MAX_RANKS_PER_NODE", "MAX_RANKS_PER_NODE"]


@pytest.mark.parametrize(
    ("target", "comm", "mnnvl"), [("sm100", 1, 1), ("sm120", 1, 0), ("sm121", 1, 0), ("sm90", 0, 0)]
)
def test_flashinfer_0002_the_module_is_built_ahead_for_sm120(target: str, comm: int, mnnvl: int):
    shipped, fixed = sources(FLASHINFER, "0002", "flashinfer/aot.py")

    def modules(source: str) -> list[str]:
        specs: list[str] = []
        names = {name: (lambda name=name: name) for name in re.findall(r"gen_\w+_module", source)}
        has = {f"has_{sm}": sm == target for sm in ("sm90", "sm100", "sm120", "sm121")}
        body = source[source.index("        jit_specs.append(gen_comm_alltoall_module())") :]
        body = body[: body.index("        jit_specs.append(gen_vllm_comm_module())")]
        exec(textwrap.dedent(body), {"jit_specs": specs, **names, **has})  # noqa: S102  # the code under test
        return specs

    built = modules(fixed)
    assert (built.count("gen_trtllm_comm_module"), built.count("gen_trtllm_mnnvl_comm_module")) == (comm, mnnvl)
    assert ("gen_trtllm_comm_module" in modules(shipped)) == (target == "sm100")


class _Driver:
    """Driver calls of symmetric memory; every answer is (value), as checkCudaErrors gives it."""

    def __init__(self, *, rdma: bool) -> None:
        self.rdma = rdma
        self.asked: list[str] = []
        attributes = ("MULTICAST_SUPPORTED", "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED")
        self.CUdevice_attribute = SimpleNamespace(
            **{f"CU_DEVICE_ATTRIBUTE_{name}": name for name in attributes}
        )
        self.CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
        self.CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
        self.CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED=1)
        self.CUmulticastGranularity_flags = SimpleNamespace(CU_MULTICAST_GRANULARITY_RECOMMENDED=1)
        self.CUmemLocation = SimpleNamespace
        self.CUmulticastObjectProp = SimpleNamespace

    def CUmemAllocationProp(self) -> SimpleNamespace:  # noqa: N802  # the driver's name
        return SimpleNamespace(allocFlags=SimpleNamespace(gpuDirectRDMACapable=0))

    def cuDeviceGetAttribute(self, attribute: str, _: int) -> int:  # noqa: N802
        self.asked.append(attribute)
        return int(self.rdma and attribute.startswith("GPU"))

    def cuMemGetAllocationGranularity(self, *_: Any) -> int:  # noqa: N802
        return 1 << 21

    def cuMulticastGetGranularity(self, *_: Any) -> int:  # noqa: N802
        self.asked.append("multicast granularity")
        return 1 << 22


def _allocation(source: str, driver: _Driver, *, multicast: bool) -> tuple[int, object]:
    get = function(
        source,
        "SymmDeviceMemory._get_allocation_prop",
        cuda=driver,
        checkCudaErrors=lambda result: result,
        round_up=lambda size, unit: -(-size // unit) * unit,
    )
    memory = SimpleNamespace(
        device_idx=0,
        group_size=4,
        SIGNAL_PAD_SIZE=2048,
        _enable_multicast=multicast,
        _exchanger=SimpleNamespace(handle_type=1),
    )
    prop, multicast_prop = get(memory, 1 << 20)
    assert memory.allocation_size % memory._mc_granularity == 0
    return prop.allocFlags.gpuDirectRDMACapable, multicast_prop


def test_flashinfer_0003_symmetric_memory_asks_only_for_what_is_wanted():
    shipped, fixed = sources(FLASHINFER, "0003", "flashinfer/comm/mnnvl.py")
    before = _Driver(rdma=False)
    assert _allocation(shipped, before, multicast=False)[0] == 1
    assert before.asked == ["multicast granularity"]
    after = _Driver(rdma=False)
    assert _allocation(fixed, after, multicast=False) == (0, None)
    assert after.asked == ["GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED"]
    flag, multicast_prop = _allocation(fixed, _Driver(rdma=True), multicast=True)
    assert flag == 1
    assert multicast_prop is not None


def test_flashinfer_0003_multicast_is_demanded_only_by_who_wants_it():
    shipped, fixed = sources(FLASHINFER, "0003", "flashinfer/comm/mnnvl.py")
    check = re.compile(r"        # Check if device supports multicasting\n(.*?)\n\n", re.DOTALL)

    def demand(source: str, *, wanted: bool) -> None:
        found = check.search(source)
        assert found is not None
        names = {"checkCudaErrors": lambda result: result, "cuda": _Driver(rdma=False), "device_idx": 0}
        exec(  # noqa: S102  # the code under test
            textwrap.dedent(found[1]), {**names, "enable_multicast": wanted, "self": SimpleNamespace()}
        )

    with pytest.raises(RuntimeError, match="does not support multicasting"):
        demand(shipped, wanted=False)
    demand(fixed, wanted=False)
    with pytest.raises(RuntimeError, match="does not support multicasting"):
        demand(fixed, wanted=True)


def test_flashinfer_0004_pdl_barriers_are_compiled_in():
    shipped, fixed = sources(FLASHINFER, "0004", "flashinfer/jit/gemm/core.py")
    define = "-DCUTLASS_ENABLE_GDC_FOR_SM100=1"
    for name in ("gen_gemm_sm120_module", "gen_gemm_sm120_module_cutlass_fp4"):
        start = fixed.index(f"def {name}()")
        old = shipped[shipped.index(f"def {name}()") :].split("\ndef ")[0]
        assert define not in old
        assert define in fixed[start:].split("\ndef ")[0]


def _fusion(source: str, major: int, rows: int, *, flag: bool) -> bool:
    names: dict[str, Any] = {"_is_cuda": True}
    names |= {f"is_sm{sm}0_supported": lambda sm=sm: sm == major for sm in (9, 10, 12)}
    for line in source.splitlines():
        if re.match(r"_is_sm\d+_supported = ", line):
            exec(line, names)  # noqa: S102  # the module's own flags
    arguments = SimpleNamespace(enable_flashinfer_allreduce_fusion=flag)
    applies = function(
        source,
        "apply_flashinfer_allreduce_fusion",
        **names,
        _is_flashinfer_available=True,
        is_dp_attention_enabled=lambda: False,
        get_global_server_args=lambda: arguments,
        FUSE_ALLREDUCE_MAX_BATCH_SIZE=2048,
    )
    return bool(applies(rows))


def test_sglang_0001_the_flag_takes_effect_on_sm120():
    shipped, fixed = sources(SGLANG, "0001", "sglang/srt/layers/communicator.py")
    assert not _fusion(shipped, 12, 16, flag=True)
    assert _fusion(fixed, 12, 16, flag=True)
    assert not _fusion(fixed, 12, 16, flag=False)
    assert not _fusion(fixed, 12, 4096, flag=True)
    assert _fusion(fixed, 9, 16, flag=True)


FOLDER = "sglang/srt/distributed/device_communicators"


def _symmetric_memory(source: str, sizes_source: str, major: int, world: int, multicast_ptr: int) -> Any:
    sizes: dict[str, Any] = {}
    exec(sizes_source, sizes)  # noqa: S102  # a module of constants
    handle = SimpleNamespace(multicast_ptr=multicast_ptr)
    init = function(
        source,
        "TorchSymmMemCommunicator.__init__",
        torch_symm_mem_available=True,
        torch=SimpleNamespace(
            device=lambda name: name,
            bfloat16=SimpleNamespace(itemsize=2),
            cuda=SimpleNamespace(set_device=lambda _: None, get_device_capability=lambda _: (major, 0)),
        ),
        dist=SimpleNamespace(get_world_size=lambda _: world),
        torch_symm_mem=SimpleNamespace(empty=lambda *_, **__: "buffer", rendezvous=lambda *_: handle),
        logger=SimpleNamespace(warning=lambda *_: None),
        TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES=sizes["TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES"],
    )
    made = SimpleNamespace(_WORLD_SIZES_MULTIMEM={9: [4, 6, 8], 10: [4, 6, 8]})
    init(made, SimpleNamespace(group_name="tp"), 0)
    return made


def test_sglang_0002_and_0003_symmetric_memory_refuses_or_works_and_never_raises():
    path = f"{FOLDER}/torch_symm_mem.py"
    shipped, refuses = sources(SGLANG, "0002", path)
    sizes, more_sizes = sources(SGLANG, "0003", f"{FOLDER}/all_reduce_utils.py")
    with pytest.raises(KeyError):
        _symmetric_memory(shipped, sizes, 12, 4, 0)
    assert _symmetric_memory(refuses, sizes, 12, 4, 0).disabled
    works = patched(SGLANG, "0002", "0003")[path]
    assert _symmetric_memory(shipped, more_sizes, 12, 4, 0).disabled
    assert not _symmetric_memory(works, more_sizes, 12, 4, 0).disabled
    assert _symmetric_memory(works, more_sizes, 10, 4, 0).disabled
    assert "self._WORLD_SIZES_MULTIMEM[self.device_capability]" in shipped
    assert "self._WORLD_SIZES_MULTIMEM[self.device_capability]" not in works


def test_sglang_0004_dsa_without_a_backend_stops_at_start():
    shipped, fixed = sources(SGLANG, "0004", "sglang/srt/server_args.py")

    def choose(source: str, major: int, dtype: str, **given: str) -> tuple[str | None, str | None]:
        view = SimpleNamespace(nsa_prefill_backend=None, nsa_decode_backend=None, kv_cache_dtype=dtype)
        view.__dict__.update(given)
        set_default = function(
            source, "ServerArgs._set_default_nsa_backends", logger=SimpleNamespace(warning=lambda *_: None)
        )
        set_default(view, dtype, major)
        return view.nsa_prefill_backend, view.nsa_decode_backend

    assert choose(shipped, 12, "bfloat16") == ("flashmla_sparse", "trtllm")
    for dtype in ("bfloat16", "fp8_e4m3"):
        with pytest.raises(ValueError, match="--nsa-decode-backend"):
            choose(fixed, 12, dtype)
        for major in (9, 10):
            assert choose(fixed, major, dtype) == choose(shipped, major, dtype)
    both = {"nsa_prefill_backend": "tilelang", "nsa_decode_backend": "tilelang"}
    assert choose(fixed, 12, "bfloat16", **both) == ("tilelang", "tilelang")


def test_sglang_0005_sm120_takes_no_trtllm_gen_branch():
    shipped, fixed = sources(SGLANG, "0005", "sglang/srt/layers/attention/nsa_backend.py")
    gate = "device_sm_major >= 10"
    assert shipped.count(gate) == 3
    (left,) = [line for line in fixed.splitlines() if gate in line]
    assert left.strip().startswith("required_padding = 128 if")


@pytest.mark.parametrize(
    ("sm", "before", "after"),
    [(80, False, False), (90, True, True), (100, True, True), (120, True, False), (121, True, False)],
)
def test_sglang_0006_deepgemm_is_off_on_sm120(
    monkeypatch: pytest.MonkeyPatch,
    sm: int,
    before: bool,
    after: bool,
):
    monkeypatch.setitem(sys.modules, "deep_gemm", ModuleType("deep_gemm"))
    envs = SimpleNamespace(SGLANG_ENABLE_JIT_DEEPGEMM=SimpleNamespace(get=lambda: True))
    answers = [
        function(source, "_compute_enable_deep_gemm", get_device_sm=lambda: sm, envs=envs)()
        for source in sources(SGLANG, "0006", "sglang/srt/layers/deep_gemm_wrapper/configurer.py")
    ]
    assert answers == [before, after]


def test_sglang_0007_the_cutlass_backend_is_tuned():
    tuned = []
    for source in sources(SGLANG, "0007", "sglang/srt/model_executor/model_runner.py"):
        body = source[source.index("        if backend_str not in [") :]
        names: dict[str, Any] = {"backend_str": "flashinfer_cutlass"}
        test = textwrap.dedent(body[: body.index("            return False")] + "            skipped = True\n")
        exec(test, names)  # noqa: S102  # the code under test
        tuned.append("skipped" not in names)
    assert tuned == [False, True]


def test_sglang_0008_the_tile_fits_into_sm120s_shared_memory():
    shipped, fixed = sources(SGLANG, "0008", "sglang/srt/layers/attention/triton_ops/prefill_attention.py")

    def block(source: str, major: int, *, hip: bool = False) -> int:
        names = {"_is_cuda": not hip, "_is_hip": hip, "CUDA_CAPABILITY": (major, 0)}
        answer: int = statements(source, "context_attention_fwd", "if ", "Lq, Lk, Lv", **names)["BLOCK"]
        return answer

    assert block(shipped, 12) == 128
    assert [block(fixed, major) for major in (8, 9, 10, 12)] == [64, 128, 128, 64]
    assert block(fixed, 12, hip=True) == 128


@pytest.mark.parametrize(("cuda", "package"), [("12.8", "nvidia-cudnn-cu12"), ("13.0", "nvidia-cudnn-cu13")])
def test_sglang_0009_the_hint_names_the_right_package(monkeypatch: pytest.MonkeyPatch, cuda: str, package: str):
    torch: Any = ModuleType("torch")
    torch.__version__ = "2.9.1"
    torch.version = SimpleNamespace(cuda=cuda)
    torch.backends = SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91002))
    monkeypatch.setitem(sys.modules, "torch", torch)
    shipped, fixed = sources(SGLANG, "0009", "sglang/srt/server_args.py")
    arguments = SimpleNamespace(get_model_config=lambda: SimpleNamespace(is_multimodal=True))
    names = {"get_bool_env_var": lambda _: False, "torch_release": (2, 9, 1)}
    check = "ServerArgs.check_torch_2_9_1_cudnn_compatibility"
    with pytest.raises(RuntimeError, match="nvidia-cudnn-cu12=="):
        function(shipped, check, **names)(arguments)
    with pytest.raises(RuntimeError, match=f"{package}=="):
        function(fixed, check, **names)(arguments)


def test_sglang_0010_eagle3_reaches_the_language_model():
    shipped, fixed = sources(SGLANG, "0010", "sglang/srt/models/kimi_k25.py")
    model = "KimiK25ForConditionalGeneration"
    with pytest.raises(StopIteration):
        function(shipped, f"{model}.set_eagle3_layers_to_capture")
    calls: list[Any] = []
    language_model = SimpleNamespace(
        set_eagle3_layers_to_capture=calls.append,
        get_embed_and_head=lambda: ("embed", "head"),
        set_embed_and_head=lambda *both: calls.append(both),
    )
    shell = SimpleNamespace(language_model=language_model)
    function(fixed, f"{model}.set_eagle3_layers_to_capture")(shell, [2, 30])
    function(fixed, f"{model}.set_embed_and_head")(shell, "e", "h")
    assert function(fixed, f"{model}.get_embed_and_head")(shell) == ("embed", "head")
    assert calls == [[2, 30], ("e", "h")]


def test_sglang_0011_hybrid_models_get_their_default_backend_on_sm120():
    shipped, fixed = sources(SGLANG, "0011", "sglang/srt/server_args.py")

    def backend(source: str, major: int, asked: str | None, default: str | None) -> str | None:
        names = {
            "is_sm100_supported": lambda: major == 10,
            "is_sm120_supported": lambda: major == 12,
            "logger": SimpleNamespace(info=lambda _: None, warning=lambda _: None),
        }
        arguments = SimpleNamespace(attention_backend=asked, disable_radix_cache=False)
        handle = function(source, "ServerArgs._handle_mamba_radix_cache", **names)
        handle(
            arguments,
            "Qwen3NextForCausalLM",
            support_mamba_cache=False,
            sm100_default_attention_backend=default,
        )
        chosen: str | None = arguments.attention_backend
        return chosen

    assert backend(shipped, 12, None, "triton") is None
    assert backend(fixed, 12, None, "triton") == "triton"
    assert backend(fixed, 12, "trtllm_mha", "triton") == "trtllm_mha"
    assert backend(fixed, 12, None, None) is None
    for source in (shipped, fixed):
        assert [backend(source, major, None, "triton") for major in (9, 10)] == [None, "triton"]
