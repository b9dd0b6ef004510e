// Other people's kernels behind a C interface, for timing in the same harness. Their headers come from the wheel of
// flashinfer-python at build time and are not part of this project:
//
//   nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Xcompiler -fPIC -shared --cudart static
//        -I SITE_PACKAGES/flashinfer/data/include -o libpeers.so peers.cu
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <flashinfer/comm/pcie_ipc_all_reduce.cuh>
#include <flashinfer/comm/vllm_custom_all_reduce.cuh>
#include <flashinfer/norm.cuh>
#include <flashinfer/topk.cuh>

namespace pcie = flashinfer::comm::pcie_ipc;
using bf16 = __nv_bfloat16;

#define PEER extern "C" __attribute__((visibility("default")))

PEER uint64_t peer_pcie_bytes(int world, int64_t numel, int blocks) {
  return static_cast<uint64_t>(pcie::workspace_size(world, numel, sizeof(bf16), blocks));
}

PEER int peer_pcie_all_reduce(const int64_t* slabs, int rank, int world, int64_t capacity, int max_blocks,
                              const void* in, void* out, int64_t numel, int blocks, int threads, int variant,
                              void* stream) {
  const auto layout = pcie::compute_workspace_layout(world, capacity, sizeof(bf16), max_blocks);
  const auto views = pcie::make_peer_views(slabs, world, rank, layout);
  return pcie::all_reduce<bf16>(static_cast<const bf16*>(in), static_cast<bf16*>(out), numel, views, rank, world,
                                max_blocks, capacity, blocks, threads, static_cast<pcie::Variant>(variant), false,
                                static_cast<cudaStream_t>(stream));
}

PEER uint64_t peer_vllm_signal_bytes() { return sizeof(vllm::Signal); }

template <int W>
static void vllm_launch(int stages, vllm::RankData* inputs, const vllm::RankSignals& signals, int rank, bf16* out,
                        int size, int blocks, int threads, cudaStream_t stream) {
  if (stages == 1) {
    vllm::cross_device_reduce_1stage<bf16, W>
        <<<blocks, threads, 0, stream>>>(inputs, signals, signals.signals[rank], out, rank, size);
  } else {
    vllm::cross_device_reduce_2stage<bf16, W>
        <<<blocks, threads, 0, stream>>>(inputs, signals, signals.signals[rank], out, rank, size);
  }
}

PEER int peer_vllm_all_reduce(int stages, void* inputs, const int64_t* slabs, int rank, int world, void* out,
                              int64_t numel, int blocks, int threads, void* stream) {
  vllm::RankSignals signals{};
  for (int peer = 0; peer < world; ++peer) signals.signals[peer] = reinterpret_cast<vllm::Signal*>(slabs[peer]);
  auto* data = static_cast<vllm::RankData*>(inputs);
  auto* result = static_cast<bf16*>(out);
  const int size = static_cast<int>(numel / vllm::packed_t<bf16>::P::size);
  const auto queue = static_cast<cudaStream_t>(stream);
  switch (world) {
    case 2: vllm_launch<2>(stages, data, signals, rank, result, size, blocks, threads, queue); break;
    case 4: vllm_launch<4>(stages, data, signals, rank, result, size, blocks, threads, queue); break;
    case 8: vllm_launch<8>(stages, data, signals, rank, result, size, blocks, threads, queue); break;
    default: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

// In place: x becomes the norm, residual the sum.
PEER int peer_add_rmsnorm(void* x, void* residual, void* weight, int rows, int hidden, float eps, void* stream) {
  return flashinfer::norm::FusedAddRMSNorm<bf16>(static_cast<bf16*>(x), static_cast<bf16*>(residual),
                                                 static_cast<bf16*>(weight), rows, hidden, hidden, hidden, eps, false,
                                                 static_cast<cudaStream_t>(stream));
}

// Page size 1; rows keep their length; `state` is zeros of at least 8 MiB.
PEER int peer_topk(void* logits, void* out, const void* page_table, int64_t page_table_stride, void* lengths, int rows,
                   int k, int columns, void* state, int deterministic, void* stream) {
  return flashinfer::sampling::TopKPageTableTransformDispatch<float, int32_t>(
      static_cast<float*>(logits), static_cast<int32_t*>(out), static_cast<const int32_t*>(page_table),
      page_table_stride, static_cast<int32_t*>(lengths), nullptr, nullptr, rows, k, columns,
      static_cast<flashinfer::sampling::RadixRowState*>(state), deterministic != 0,
      flashinfer::sampling::TopKTieBreak::None, static_cast<cudaStream_t>(stream));
}
