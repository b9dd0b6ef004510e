"""Every Effect-Expected of the mainline series, on the real code: true with the patch, false without it."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.wheels.upstream import function, platform, sources, statements

pytestmark = pytest.mark.wheels

SGLANG = "sglang-0.5.23"
FUSION = "sglang/srt/layers/flashinfer_comm_fusion.py"
ADD_NORM = "sglang/srt/layers/layer_boundary/residual/add_norm.py"
OVERRIDES = "sglang/srt/arg_groups/overrides.py"


def _resolve(source: str, major: int, backend: str, *, nodes: int = 1) -> str:
    names = {"get_platform": lambda: platform(major)}
    names["_mnnvl_supported"] = function(source, "_mnnvl_supported", **names)
    answer: str = function(source, "_resolve_backend", **names)(backend, nodes > 1)
    return answer


def test_0001_the_fusion_resolves_to_trtllm_on_sm120():
    shipped, patched = sources(SGLANG, "0001", FUSION)
    with pytest.raises(ValueError, match="requires SM90 or SM10X"):
        _resolve(shipped, 12, "auto")
    assert _resolve(patched, 12, "auto") == "trtllm"
    assert _resolve(patched, 12, "trtllm") == "trtllm"
    for backend, nodes in (("mnnvl", 1), ("cutedsl", 1), ("auto", 2), ("trtllm", 2)):
        with pytest.raises(ValueError, match="FlashInfer allreduce fusion"):
            _resolve(patched, 12, backend, nodes=nodes)
    for major in (9, 10):
        assert _resolve(patched, major, "auto") == _resolve(shipped, major, "auto")
    with pytest.raises(ValueError, match="SM120"):
        _resolve(patched, 8, "auto")


def _applies(source: str, major: int, rows: int, backend: str | None) -> bool:
    names: dict[str, Any] = {"_is_cuda": True, "get_platform": lambda: platform(major)}
    for line in source.splitlines():
        if line.startswith("_is_sm") and "_supported = _is_cuda" in line:
            exec(line, names)  # noqa: S102  # the module's own flags
    applies = function(
        source,
        "flashinfer_ar_fusion_applies",
        **names,
        _is_flashinfer_available=True,
        is_dp_attention_enabled=lambda: False,
        get_exec=lambda: SimpleNamespace(comm=SimpleNamespace(flashinfer_allreduce_fusion_backend=backend)),
        uses_cutedsl_ar_fusion=lambda: False,
        is_flashinfer_allreduce_unavailable=lambda: False,
        FUSE_ALLREDUCE_MAX_BATCH_SIZE=2048,
    )
    return bool(applies(rows))


def test_0001_the_fused_kernel_is_really_reached_on_sm120():
    shipped, patched = sources(SGLANG, "0001", ADD_NORM)
    assert not _applies(shipped, 12, 16, "trtllm")
    assert [_applies(patched, 12, rows, "trtllm") for rows in (0, 1, 2048, 2049)] == [False, True, True, False]
    assert not _applies(patched, 12, 16, None)
    assert not _applies(patched, 8, 16, "trtllm")


class _Driver:
    """The few driver calls of the preflight, on a card with or without the two abilities."""

    def __init__(self, *, rdma: bool, multicast: bool) -> None:
        self.rdma = rdma
        self.multicast = multicast
        self.multicast_queries = 0
        self.CUresult = SimpleNamespace(CUDA_SUCCESS=0)
        self.CUdevice_attribute = SimpleNamespace(
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED="rdma"
        )
        self.CUmemAllocationHandleType = SimpleNamespace(
            CU_MEM_HANDLE_TYPE_FABRIC=8, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR=1
        )
        self.CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
        self.CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
        self.CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED=1)
        self.CUmulticastGranularity_flags = SimpleNamespace(CU_MULTICAST_GRANULARITY_RECOMMENDED=1)
        self.CUmemLocation = SimpleNamespace
        self.CUmulticastObjectProp = SimpleNamespace

    def CUmemAllocationProp(self) -> SimpleNamespace:  # noqa: N802  # the driver's name
        return SimpleNamespace(allocFlags=SimpleNamespace(gpuDirectRDMACapable=0))

    def cuDeviceGetAttribute(self, attribute: str, device: int) -> tuple[int, int]:  # noqa: N802
        assert (attribute, device) == ("rdma", 3)
        return 0, int(self.rdma)

    def cuMemGetAllocationGranularity(self, *_: Any) -> tuple[int, int]:  # noqa: N802
        return 0, 1 << 21

    def cuMulticastGetGranularity(self, *_: Any) -> tuple[int, int]:  # noqa: N802
        self.multicast_queries += 1
        return (0, 1 << 22) if self.multicast else (801, 0)


def _preflight(source: str, driver: _Driver, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[int]]:
    mnnvl = ModuleType("flashinfer.comm.mnnvl")
    mnnvl.is_mnnvl_fabric_supported = lambda _: False  # type: ignore[attr-defined]
    mnnvl.is_multicast_supported = lambda _: driver.multicast  # type: ignore[attr-defined]
    for name in ("flashinfer", "flashinfer.comm"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "flashinfer.comm.mnnvl", mnnvl)
    torch = SimpleNamespace(cuda=SimpleNamespace(current_device=lambda: 3), float32="f32", bfloat16="bf16")
    names = {"torch": torch, "ceil_align": lambda size, unit: -(-size // unit) * unit}
    prop = function(source, "_make_flashinfer_workspace_allocation_prop", **names)(driver)
    sizes = function(source, "_flashinfer_trtllm_workspace_allocation_sizes", **names)
    return prop.allocFlags.gpuDirectRDMACapable, sizes(driver, prop, 4, 2048, 7168, "bf16")


def test_0002_the_preflight_asks_only_for_what_the_device_has(monkeypatch: pytest.MonkeyPatch):
    shipped, patched = sources(SGLANG, "0002", FUSION)
    with pytest.raises(RuntimeError, match="cuMulticastGetGranularity failed"):
        _preflight(shipped, _Driver(rdma=False, multicast=False), monkeypatch)
    pcie = _Driver(rdma=False, multicast=False)
    flag, sizes = _preflight(patched, pcie, monkeypatch)
    assert (flag, len(sizes), pcie.multicast_queries) == (0, 3, 0)
    assert all(size % (1 << 21) == 0 for size in sizes)
    nvlink = _Driver(rdma=True, multicast=True)
    assert _preflight(patched, nvlink, monkeypatch) == _preflight(
        shipped, _Driver(rdma=True, multicast=True), monkeypatch
    )
    assert nvlink.multicast_queries == 3


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
        envs=SimpleNamespace(SGLANG_OPT_USE_INKLING_CUSTOM_AR=SimpleNamespace(get=lambda: False)),
        logger=SimpleNamespace(warning=lambda *_: None),
        TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES=sizes["TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES"],
    )
    made = SimpleNamespace(_WORLD_SIZES_MULTIMEM={9: [4, 6, 8], 10: [4, 6, 8]})
    init(made, SimpleNamespace(group_name="tp"), 0)
    return made


def test_0003_two_shot_needs_no_multicast_on_sm120():
    folder = "sglang/srt/distributed/device_communicators"
    shipped, patched = sources(SGLANG, "0003", f"{folder}/torch_symm_mem.py")
    sizes, more_sizes = sources(SGLANG, "0003", f"{folder}/all_reduce_utils.py")
    assert _symmetric_memory(shipped, sizes, 12, 4, 0).disabled
    for world in (2, 4, 8):
        made = _symmetric_memory(patched, more_sizes, 12, world, 0)
        assert not made.disabled
        assert made.max_size >= 64 << 20
    for major in (9, 10):
        assert _symmetric_memory(patched, more_sizes, major, 8, 0).disabled
        assert not _symmetric_memory(patched, more_sizes, major, 8, 1).disabled


def _dsa(
    source: str,
    major: int,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    prefill: str | None = None,
    decode: str | None = None,
) -> dict[str, str]:
    config = ModuleType("sglang.srt.configs.model_config")
    config.is_deepseek_dsa = lambda _: True  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.configs"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.srt.configs.model_config", config)
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(get_device_capability=lambda: (major, 0))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    names: dict[str, Any] = {
        "get_platform": lambda: platform(major),
        "_DEEPSEEK_FAMILY_ARCHS": {"DeepseekV32ForCausalLM"},
        "model_config_of": lambda _: SimpleNamespace(
            hf_config=SimpleNamespace(architectures=["DeepseekV32ForCausalLM"])
        ),
        "logger": SimpleNamespace(warning=lambda *_: None),
    }
    names["_check_dsa_backend_constraints"] = function(source, "_check_dsa_backend_constraints", **names)
    view = SimpleNamespace(
        kv_cache_dtype=dtype, dsa_prefill_backend=prefill, dsa_decode_backend=decode, enable_hisparse=False
    )
    answer: dict[str, str] = function(source, "_dsa_split_backend_resolution", **names)(view)
    return answer


def test_0004_dsa_defaults_have_sm120_code(monkeypatch: pytest.MonkeyPatch):
    shipped, patched = sources(SGLANG, "0004", OVERRIDES)
    assert set(_dsa(shipped, 12, "fp8_e4m3", monkeypatch).values()) == {"trtllm"}
    assert _dsa(patched, 12, "fp8_e4m3", monkeypatch) == {
        "dsa_prefill_backend": "tilelang",
        "dsa_decode_backend": "tilelang",
    }
    assert set(_dsa(shipped, 12, "bfloat16", monkeypatch).values()) == {"flashmla_sparse", "trtllm"}
    with pytest.raises(ValueError, match="--kv-cache-dtype fp8_e4m3"):
        _dsa(patched, 12, "bfloat16", monkeypatch)
    assert _dsa(patched, 12, "bfloat16", monkeypatch, prefill="flashmla_sparse", decode="flashmla_sparse") == {}
    for major in (9, 10):
        for dtype in ("fp8_e4m3", "bfloat16"):
            assert _dsa(patched, major, dtype, monkeypatch) == _dsa(shipped, major, dtype, monkeypatch)


DSA = "sglang/srt/layers/attention/dsa_backend.py"
KPOOL = "sglang/srt/layers/attention/dsa/dsa_backend_kpool.py"


def test_0005_sm120_takes_no_trtllm_gen_branch():
    shipped, patched = sources(SGLANG, "0005", KPOOL)
    name = next(
        f"{line.split()[1].rstrip(':').partition('(')[0]}._resolve_kpool_tail_backend"
        for line in shipped.splitlines()
        if line.startswith("class ") and line.endswith("Mixin:")
    )

    def tail(source: str, major: int) -> str:
        backend = SimpleNamespace(dsa_index_kpool=2, device_sm_major=major)
        answer: str = function(source, name)(backend, "picks", "flashmla_sparse")
        return answer

    assert tail(shipped, 12) == "trtllm"
    assert [tail(patched, major) for major in (9, 10, 11, 12)] == ["fa3", "trtllm", "trtllm", "flashmla_sparse"]


def test_0005_no_other_branch_of_the_dsa_backend_reaches_trtllm_gen():
    shipped, patched = sources(SGLANG, "0005", DSA)
    open_gate = "device_sm_major >= 10"
    assert shipped.count(open_gate) == 3
    # The one that is left only pads heads for FlashMLA, which SM120 is not sent to.
    (left,) = [line for line in patched.splitlines() if open_gate in line]
    assert left.strip().startswith("required_padding = 128 if")


def _block(source: str, major: int, *, hip: bool) -> int:
    ran = statements(
        source,
        "context_attention_fwd",
        "if ",
        "Lq, Lk, Lv",
        _is_cuda=not hip,
        _is_hip=hip,
        CUDA_CAPABILITY=(major, 0),
    )
    block: int = ran["BLOCK"]
    return block


def test_0006_the_tile_fits_into_sm120s_shared_memory():
    shipped, patched = sources(SGLANG, "0006", "sglang/kernels/ops/attention/prefill_attention.py")
    assert _block(shipped, 12, hip=False) == 128
    assert [_block(patched, major, hip=False) for major in (8, 9, 10, 12)] == [64, 128, 128, 64]
    assert _block(patched, 12, hip=True) == 128


def test_0007_the_norm_of_muse_spark_takes_no_cluster_on_sm120():
    path = "sglang/kernels/ops/layernorm/muse_spark_norm_residual_jit.py"
    shipped, patched = sources(SGLANG, "0007", path)

    def cluster(source: str, major: int) -> int:
        names = {"_cluster_num_threads": lambda *_: 128}
        names["cluster_size_for_num_tokens"] = function(source, "cluster_size_for_num_tokens")
        cuda = SimpleNamespace(get_device_capability=lambda _: (major, 0))
        ran = statements(
            source,
            "fused_norm_residual",
            "auto_cluster =",
            "assert cluster_size is not None",
            _cluster_size_for_shape=function(source, "_cluster_size_for_shape", **names),
            torch=SimpleNamespace(cuda=cuda),
            branch=SimpleNamespace(device=0),
            cluster_size=None,
            pre_norm_bf16=False,
            hidden_size=8192,
            m=8,
        )
        size: int = ran["cluster_size"]
        return size

    assert cluster(shipped, 12) == 16
    assert [cluster(patched, major) for major in (9, 10, 11, 12)] == [1, 16, 16, 1]


@pytest.mark.parametrize("rdma", [False, True])
def test_flashinfer_0001_rdma_is_requested_where_it_is_supported(rdma: bool):
    shipped, patched = sources("flashinfer-python-0.7.2", "0001", "flashinfer/comm/mnnvl.py")

    def flag(source: str) -> int:
        driver = _Driver(rdma=rdma, multicast=False)
        get = function(
            source,
            "SymmDeviceMemory._get_allocation_prop",
            cuda=driver,
            checkCudaErrors=lambda result: result[1],
            round_up=lambda size, unit: -(-size // unit) * unit,
        )
        memory = SimpleNamespace(
            device_idx=3,
            SIGNAL_PAD_SIZE=2048,
            _enable_multicast=False,
            _exchanger=SimpleNamespace(handle_type=1),
        )
        prop, _ = get(memory, 1 << 20)
        value: int = prop.allocFlags.gpuDirectRDMACapable
        return value

    assert flag(shipped) == 1
    assert flag(patched) == int(rdma)


@pytest.mark.parametrize("minor", [0, 1])
def test_flashinfer_0002_cute_dsl_mla_is_refused_without_tensor_memory(
    minor: int, monkeypatch: pytest.MonkeyPatch
):
    shipped, patched = sources("flashinfer-python-0.7.2", "0002", "flashinfer/mla/_core.py")
    availability = ModuleType("flashinfer.cute_dsl.availability")
    availability.is_cute_dsl_arch_supported = lambda *_: True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer.cute_dsl.availability", availability)
    for name in ("flashinfer", "flashinfer.cute_dsl", "flashinfer.mla"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))

    def reason(source: str, major: int) -> str:
        names = {
            "__package__": "flashinfer.mla",
            "get_compute_capability": lambda _: (major, minor),
            "torch": SimpleNamespace(Tensor=str),
        }
        ask = function(source, "_cute_dsl_incompatibility_reason", **names)
        # What stands after the check of the GPU finds a scale that is a tensor, and stops there.
        told = dict.fromkeys(ask.__code__.co_varnames[: ask.__code__.co_argcount])
        answer: str = ask(**(told | {"query": SimpleNamespace(device=0), "bmm1_scale": "a tensor"}))
        return answer

    passed = "does not support tensor bmm1_scale"
    assert passed in reason(shipped, 12)
    assert f"requires tensor memory (SM10x, SM11x), got SM12{minor}" in reason(patched, 12)
    assert all(passed in reason(source, major) for source in (shipped, patched) for major in (10, 11))
    assert "requires" in reason(patched, 9)


def test_flashinfer_0003_mega_moe_is_refused_without_tensor_memory(monkeypatch: pytest.MonkeyPatch):
    path = "flashinfer/moe_ep/core/validation/common.py"
    shipped, patched = sources("flashinfer-python-0.7.2", "0003", path)
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(is_available=lambda: True)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)

    def check(source: str, *capability: int) -> None:
        names = {"_device_capability": lambda: capability, "MoEEpArchError": ArithmeticError}
        function(source, "validate_mega_arch", **names)()

    check(shipped, 12, 0)
    for minor in (0, 1):
        with pytest.raises(ArithmeticError, match=rf"tensor memory .* host has sm_12{minor}"):
            check(patched, 12, minor)
    for source in (shipped, patched):
        check(source, 10, 0)
        check(source, 10, 3)
        check(source, 11, 0)
        with pytest.raises(ArithmeticError, match="sm_90"):
            check(source, 9, 0)
