// The C interface of the kernels. No C++ type and nothing of torch crosses it: one library serves every torch.
// Each function returns 0 or an error of the CUDA runtime; `bk_error_text` says what it means.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "mhc.cuh"
#include "topk.cuh"

using namespace blackwell_kernels;

#define BK_EXPORT extern "C" __attribute__((visibility("default")))
#define BK_TRY(call)                                  \
  do {                                                \
    const cudaError_t bk_error = (call);              \
    if (bk_error != cudaSuccess) {                    \
      cudaGetLastError();                             \
      return static_cast<int>(bk_error);              \
    }                                                 \
  } while (false)

namespace {

using AllReduceKernel = void (*)(Arguments);

template <int W, int kThreads>
AllReduceKernel kernel_of(int path) {
  switch (path) {
    case kPushOneShot: return all_reduce_kernel<W, kPushOneShot, kThreads>;
    case kPushTwoShot: return all_reduce_kernel<W, kPushTwoShot, kThreads>;
    case kPullOneShot: return all_reduce_kernel<W, kPullOneShot, kThreads>;
    case kPullTwoShot: return all_reduce_kernel<W, kPullTwoShot, kThreads>;
    default: return nullptr;
  }
}

template <int W>
AllReduceKernel kernel_of(int path, int hidden) {
  return hidden / kPerVector <= kNarrow ? kernel_of<W, kNarrow>(path) : kernel_of<W, kMaxThreads>(path);
}

// The kernel for a shape, null for a world or path that we do not have.
AllReduceKernel kernel_of(int world, int path, int hidden) {
  switch (world) {
    case 2: return kernel_of<2>(path, hidden);
    case 4: return kernel_of<4>(path, hidden);
    case 8: return kernel_of<8>(path, hidden);
    default: return nullptr;
  }
}

using MhcKernel = void (*)(MhcArguments);

template <int W>
MhcKernel mhc_kernel_of(int path) {
  switch (path) {
    case kPushOneShot: return all_reduce_mhc_kernel<W, kPushOneShot>;
    case kPushTwoShot: return all_reduce_mhc_kernel<W, kPushTwoShot>;
    case kPullOneShot: return all_reduce_mhc_kernel<W, kPullOneShot>;
    case kPullTwoShot: return all_reduce_mhc_kernel<W, kPullTwoShot>;
    default: return nullptr;
  }
}

MhcKernel mhc_kernel_of(int world, int path) {
  switch (world) {
    case 2: return mhc_kernel_of<2>(path);
    case 4: return mhc_kernel_of<4>(path);
    case 8: return mhc_kernel_of<8>(path);
    default: return nullptr;
  }
}

// By path, the most blocks of a kernel that the current device can run at the same time.
template <typename KernelOf>
int resident_blocks(KernelOf kernel_of_path, int threads, int* blocks) {
  int device = 0, processors = 0;
  BK_TRY(cudaGetDevice(&device));
  BK_TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  for (int path = 0; path < kPaths; ++path) {
    const auto kernel = kernel_of_path(path);
    if (kernel == nullptr) return cudaErrorInvalidValue;
    int each = 0;
    BK_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, 0));
    blocks[path] = each * processors;
  }
  return 0;
}

// Blocks for a round of so many rows, 0 where the group has no room for them.
int blocks_of(const Layout& layout, int path, int rows) {
  const bool one_shot = path == kPushOneShot || path == kPullOneShot;
  const int groups = (rows + layout.world - 1) / layout.world;
  if (rows < 1 || (one_shot ? rows > layout.one_shot_rows : groups > layout.groups)) return 0;
  return std::min(one_shot ? rows : groups, layout.path_blocks[path]);
}

}  // namespace

struct bk_group {
  Arguments arguments;
  bool opened[kMaxWorld];
  Diagnosis* diagnosis;
};

BK_EXPORT int bk_version() { return 2; }

BK_EXPORT const char* bk_error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// By path, the most blocks that the current device can run at the same time.
BK_EXPORT int bk_resident_blocks(int world, int hidden, int* blocks) {
  return resident_blocks([&](int path) { return kernel_of(world, path, hidden); }, hidden / kPerVector, blocks);
}

// The same of the kernels with hyper-connections, whose rows are slices.
BK_EXPORT int bk_mhc_resident_blocks(int world, int slice, int* blocks) {
  if (slice > kMhcThreads * kPerVector) return cudaErrorInvalidValue;
  return resident_blocks([&](int path) { return mhc_kernel_of(world, path); }, slice / kPerVector, blocks);
}

// Allocate and prepare a slab on the current device. `handle` receives 64 bytes for the peers.
BK_EXPORT int bk_group_create(int world, int rank, int rows, int one_shot_rows, int hidden, const int* blocks,
                              uint32_t first_round, bk_group** out, uint8_t* handle, void** slab) {
  if (kernel_of(world, 0, hidden) == nullptr || rank < 0 || rank >= world || rows < 1 || one_shot_rows < 1 ||
      hidden % 256 != 0 || hidden < 256 || hidden > kMaxThreads * kPerVector ||
      *std::min_element(blocks, blocks + kPaths) < 1) {
    return cudaErrorInvalidValue;
  }
  bk_group* group = new (std::nothrow) bk_group{};
  if (group == nullptr) return cudaErrorMemoryAllocation;
  Arguments& a = group->arguments;
  a.layout = make_layout(world, rows, one_shot_rows, hidden, blocks);
  a.rank = rank;
  const auto attempt = [&]() -> int {
    // Not from torch's allocator: expandable segments have no IPC handle.
    BK_TRY(cudaMalloc(reinterpret_cast<void**>(&a.slab[rank]), a.layout.bytes));
    BK_TRY(cudaMemset(a.slab[rank], 0, a.layout.bytes));
    BK_TRY(cudaMemset(a.slab[rank] + a.layout.push_one, 0xff, a.layout.bytes - a.layout.push_one));
    const std::vector<uint32_t> words((a.layout.pull_one - a.layout.epochs) / sizeof(uint32_t), first_round);
    BK_TRY(cudaMemcpy(a.slab[rank] + a.layout.epochs, words.data(), words.size() * sizeof(uint32_t),
                      cudaMemcpyHostToDevice));
    cudaIpcMemHandle_t exported;
    static_assert(sizeof(exported) == 64, "the size of a handle is part of our interface");
    BK_TRY(cudaIpcGetMemHandle(&exported, a.slab[rank]));
    std::memcpy(handle, &exported, sizeof(exported));
    BK_TRY(cudaHostAlloc(reinterpret_cast<void**>(&group->diagnosis), sizeof(Diagnosis), cudaHostAllocMapped));
    std::memset(group->diagnosis, 0, sizeof(Diagnosis));
    BK_TRY(cudaHostGetDevicePointer(reinterpret_cast<void**>(&a.diagnosis), group->diagnosis, 0));
    BK_TRY(cudaDeviceSynchronize());
    return 0;
  };
  const int error = attempt();
  if (error != 0) {
    if (a.slab[rank] != nullptr) cudaFree(a.slab[rank]);
    if (group->diagnosis != nullptr) cudaFreeHost(group->diagnosis);
    delete group;
    return error;
  }
  *slab = a.slab[rank];
  *out = group;
  return 0;
}

// Map a peer's slab: by handle from another process, by pointer within this one.
BK_EXPORT int bk_group_join(bk_group* group, int peer, const uint8_t* handle, void* same_process) {
  Arguments& a = group->arguments;
  if (peer < 0 || peer >= a.layout.world || peer == a.rank) return cudaErrorInvalidValue;
  if (same_process != nullptr) {
    a.slab[peer] = static_cast<uint8_t*>(same_process);
    return 0;
  }
  cudaIpcMemHandle_t imported;
  std::memcpy(&imported, handle, sizeof(imported));
  BK_TRY(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&a.slab[peer]), imported, cudaIpcMemLazyEnablePeerAccess));
  group->opened[peer] = true;
  return 0;
}

// Unmap the peers' slabs. No launch may be running.
BK_EXPORT int bk_group_leave(bk_group* group) {
  for (int peer = 0; peer < group->arguments.layout.world; ++peer) {
    if (!group->opened[peer]) continue;
    group->opened[peer] = false;
    BK_TRY(cudaIpcCloseMemHandle(group->arguments.slab[peer]));
  }
  return 0;
}

// Free everything; the slab only when no peer can still have it mapped.
BK_EXPORT int bk_group_destroy(bk_group* group, int free_slab) {
  const cudaError_t first = free_slab ? cudaFree(group->arguments.slab[group->arguments.rank]) : cudaSuccess;
  const cudaError_t second = cudaFreeHost(group->diagnosis);
  delete group;
  BK_TRY(first);
  BK_TRY(second);
  return 0;
}

// How long a thread waits for a peer, and whether the kernel then ends with a trap.
BK_EXPORT int bk_group_patience(bk_group* group, uint64_t nanoseconds, int traps) {
  group->arguments.patience = nanoseconds;
  group->arguments.traps = traps;
  return 0;
}

// Launch one round `times` times. Shapes are [rows, hidden] bfloat16, contiguous, 16-byte aligned.
BK_EXPORT int bk_group_launch(bk_group* group, int path, int kind, const void* x, const void* residual,
                              const void* weight, float eps, int rows, int hidden, void* out, void* residual_out,
                              int times, void* stream) {
  Arguments a = group->arguments;
  const AllReduceKernel kernel = kernel_of(a.layout.world, path, hidden);
  const int blocks = kernel == nullptr ? 0 : blocks_of(a.layout, path, rows);
  if (blocks == 0 || kind < 0 || kind >= kMhc || hidden % 256 != 0 || hidden < 256 ||
      static_cast<uint64_t>(hidden) * 2 > a.layout.row) {
    return cudaErrorInvalidValue;
  }
  a.x = static_cast<const uint4*>(x);
  a.residual = static_cast<const uint4*>(residual);
  a.weight = static_cast<const uint4*>(weight);
  a.out = static_cast<uint4*>(out);
  a.residual_out = static_cast<uint4*>(residual_out);
  a.eps = eps;
  a.rows = rows;
  a.vectors = hidden / kPerVector;
  a.kind = kind;
  for (int time = 0; time < times; ++time) {
    kernel<<<blocks, a.vectors, 0, static_cast<cudaStream_t>(stream)>>>(a);
    BK_TRY(cudaGetLastError());
  }
  return 0;
}

// The tensors of a round with hyper-connections; what they are stands at MhcArguments.
struct bk_mhc {
  const void *x, *streams, *post, *comb, *fn, *scale, *base, *weight;
  void *streams_out, *post_out, *comb_out, *out, *partials, *arrivals;
  float rms_eps, hc_eps, eps;
  int32_t iterations, tokens, hidden, slices;
};

// Launch one round `times` times. A slice is a row of the group: hidden / slices columns.
BK_EXPORT int bk_mhc_launch(bk_group* group, int path, const bk_mhc* call, int times, void* stream) {
  MhcArguments a{};
  static_cast<Arguments&>(a) = group->arguments;
  const MhcKernel kernel = mhc_kernel_of(a.layout.world, path);
  const int slice = call->slices > 0 ? call->hidden / call->slices : 0;
  const int blocks = kernel == nullptr ? 0 : blocks_of(a.layout, path, call->tokens * call->slices);
  if (blocks == 0 || slice % 256 != 0 || slice < 256 || slice > kMhcThreads * kPerVector ||
      slice * call->slices != call->hidden || static_cast<uint64_t>(slice) * 2 > a.layout.row || call->iterations < 1) {
    return cudaErrorInvalidValue;
  }
  a.x = static_cast<const uint4*>(call->x);
  a.weight = static_cast<const uint4*>(call->weight);
  a.out = static_cast<uint4*>(call->out);
  a.eps = call->eps;
  a.rows = call->tokens * call->slices;
  a.vectors = slice / kPerVector;
  a.kind = kMhc;
  a.streams = static_cast<const uint4*>(call->streams);
  a.post = static_cast<const float*>(call->post);
  a.comb = static_cast<const float*>(call->comb);
  a.fn = static_cast<const float*>(call->fn);
  a.scale = static_cast<const float*>(call->scale);
  a.base = static_cast<const float*>(call->base);
  a.streams_out = static_cast<uint4*>(call->streams_out);
  a.post_out = static_cast<float*>(call->post_out);
  a.comb_out = static_cast<float*>(call->comb_out);
  a.partials = static_cast<float*>(call->partials);
  a.arrivals = static_cast<uint32_t*>(call->arrivals);
  a.rms_eps = call->rms_eps;
  a.hc_eps = call->hc_eps;
  a.iterations = call->iterations;
  a.slices = call->slices;
  for (int time = 0; time < times; ++time) {
    kernel<<<blocks, a.vectors, 0, static_cast<cudaStream_t>(stream)>>>(a);
    BK_TRY(cudaGetLastError());
  }
  return 0;
}

// Rounds that the device has done, [4 paths][5 kinds]; waits for no kernel, so a running round is not counted.
BK_EXPORT int bk_group_rounds(bk_group* group, uint32_t* rounds) {
  const Arguments& a = group->arguments;
  cudaStream_t stream;
  BK_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const cudaError_t copied = cudaMemcpyAsync(rounds, a.slab[a.rank] + a.layout.rounds,
                                             sizeof(uint32_t) * kPaths * kKinds, cudaMemcpyDeviceToHost, stream);
  const cudaError_t done = copied == cudaSuccess ? cudaStreamSynchronize(stream) : copied;
  cudaStreamDestroy(stream);
  BK_TRY(done);
  return 0;
}

// What the first thread that gave up saw, nine words; readable after a trap too. All zeros: nobody gave up.
BK_EXPORT int bk_group_diagnosis(const bk_group* group, uint32_t* words) {
  std::memcpy(words, group->diagnosis, sizeof(Diagnosis));
  return 0;
}

BK_EXPORT uint64_t bk_group_bytes(const bk_group* group) { return group->arguments.layout.bytes; }

// Zeros for top-k of so many rows on the current device. Works while a graph is captured, which torch's own
// allocator would make part of that graph.
BK_EXPORT int bk_topk_workspace(int rows, void** workspace) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  BK_TRY(cudaThreadExchangeStreamCaptureMode(&mode));
  const auto attempt = [&]() -> int {
    const size_t bytes = sizeof(TopkRow) * static_cast<size_t>(rows);
    cudaStream_t stream;
    BK_TRY(cudaMalloc(workspace, bytes));
    BK_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const cudaError_t cleared = cudaMemsetAsync(*workspace, 0, bytes, stream);
    const cudaError_t done = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    BK_TRY(cleared);
    BK_TRY(done);
    return 0;
  };
  const int error = attempt();
  BK_TRY(cudaThreadExchangeStreamCaptureMode(&mode));
  return error;
}

// How many blocks a row is cut into for this shape on the current device.
BK_EXPORT int bk_topk_parts(int rows, int columns, int* parts, int* blocks) {
  int device = 0, processors = 0, each = 0;
  BK_TRY(cudaGetDevice(&device));
  BK_TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  BK_TRY(cudaFuncSetAttribute(topk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTopkDynamic));
  BK_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, topk_kernel, kTopkThreads, kTopkDynamic));
  const int resident = each * processors;
  const int least = (columns + kTopkKeys - 1) / kTopkKeys;
  // One block a multiprocessor while that is enough: two that share one are slower than one with twice the keys.
  const int wished = std::min((columns + 8191) / 8192, processors / std::max(rows, 1));
  *parts = columns <= kTopkAlone ? 1 : std::min(std::max(wished, least), kTopkMaxParts);
  if (least > kTopkMaxParts || *parts > resident) return cudaErrorInvalidValue;
  *blocks = std::min(rows, *parts == 1 ? (1 << 30) / kTopkThreads : resident / *parts) * *parts;
  return 0;
}

BK_EXPORT int bk_topk(const void* logits, int64_t logits_stride, const void* lengths, const void* page_table,
                      int64_t page_table_stride, int rows, int columns, int page_size, int k, int parts, int blocks,
                      void* workspace, void* out, void* stream) {
  TopkArguments a{static_cast<const float*>(logits),
                  static_cast<const int32_t*>(lengths),
                  static_cast<const int32_t*>(page_table),
                  static_cast<int32_t*>(out),
                  static_cast<TopkRow*>(workspace),
                  logits_stride,
                  page_table_stride,
                  rows,
                  columns,
                  page_size,
                  page_size > 0 && (page_size & (page_size - 1)) == 0 ? __builtin_ctz(page_size) : -1,
                  k,
                  parts};
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kTopkThreads);
  config.dynamicSmemBytes = kTopkDynamic;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &cooperative;
  config.numAttrs = parts > 1 ? 1 : 0;
  BK_TRY(cudaLaunchKernelEx(&config, topk_kernel, a));
  return 0;
}
