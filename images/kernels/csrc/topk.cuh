// The k largest of each row of float32 logits, as slots of a paged cache, lowest column first.
//
// Radix selection on 32-bit keys whose unsigned order is the order of the values: three histograms (11, 11 and 10
// bits) find the key of the k-th largest value and how many keys equal to it belong to the selection; one prefix
// sum then gives every selected column its place. A short row is one block's work. A long row is cut into equal
// parts, one for each block of a team; the blocks add their histograms in global memory and meet at a counter,
// so the launch must be cooperative. Keys are read from memory once and kept in shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace blackwell_kernels {

constexpr int kTopkThreads = 1024;
constexpr int kTopkKeys = 20480;          // of a part; 80 KiB
constexpr int kTopkAlone = 16384;         // up to this length one block is faster than a team
constexpr int kTopkMaxParts = 32;
constexpr int kTopkPasses = 3;
constexpr int kBins = 2048;
constexpr int kTopkDynamic = kTopkKeys * 4 + kBins * 4;
// An SM90 has room for two blocks, if their registers allow it: 64 long rows are then one wave of teams, not two.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr int kTopkResident = 2;
#else
constexpr int kTopkResident = 1;
#endif
static_assert(kTopkDynamic + 1024 <= 99 * 1024, "a block of SM120 has 99 KiB");

// Of one row in the workspace; all zeros between launches.
struct TopkRow {
  uint32_t histogram[kTopkPasses][kBins];
  uint32_t counts[kTopkMaxParts];  // by part: greater << 16 | equal
  uint32_t arrived;
  uint32_t left;
  uint32_t padding[30];
};

struct TopkArguments {
  const float* logits;
  const int32_t* lengths;
  const int32_t* page_table;
  int32_t* out;
  TopkRow* workspace;
  int64_t logits_stride;      // elements a row
  int64_t page_table_stride;  // elements a row
  int32_t rows;
  int32_t columns;
  int32_t page_size;
  int32_t page_shift;  // of a page size that is a power of two; otherwise -1
  int32_t k;
  int32_t parts;
};

struct TopkShared {
  uint32_t warps[2][32];
  uint32_t bin, above, inside;
  uint32_t before, total;
};

// NaN is the largest, then +inf; -0 and +0 are one value.
__device__ __forceinline__ uint32_t key_of(float value) {
  if (value != value) return 0xffffffffu;
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Exclusive prefix sum over the threads of the block; the sum of all is in `total`.
__device__ __forceinline__ uint32_t block_prefix(uint32_t value, TopkShared& shared, uint32_t* total) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  uint32_t inclusive = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance <<= 1) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, inclusive, distance);
    if (lane >= distance) inclusive += other;
  }
  __syncthreads();
  if (lane == 31) shared.warps[0][warp] = inclusive;
  __syncthreads();
  uint32_t sums = shared.warps[0][lane];
#pragma unroll
  for (int distance = 1; distance < 32; distance <<= 1) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, sums, distance);
    if (lane >= distance) sums += other;
  }
  *total = __shfl_sync(0xffffffffu, sums, 31);
  const uint32_t warps_before = __shfl_sync(0xffffffffu, sums, warp > 0 ? warp - 1 : 0);
  return inclusive - value + (warp > 0 ? warps_before : 0u);
}

// All blocks of a team have come here `turn` times.
__device__ __forceinline__ void team_barrier(TopkRow* row, uint32_t parts, uint32_t turn) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(&row->arrived, 1u);
    uint32_t seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(&row->arrived) : "memory");
    } while (seen < parts * turn);
  }
  __syncthreads();
}

__device__ __forceinline__ int32_t slot_of(const TopkArguments& a, const int32_t* pages, int column) {
  if (a.page_shift >= 0) {
    return (__ldg(pages + (column >> a.page_shift)) << a.page_shift) | (column & ((1 << a.page_shift) - 1));
  }
  return __ldg(pages + column / a.page_size) * a.page_size + column % a.page_size;
}

struct TopkBlock {
  const TopkArguments& a;
  TopkShared& shared;
  uint32_t* keys;
  uint32_t* histogram;
  TopkRow* team;  // null when this block has the row for itself
  int row, part, parts, begin, count;
  uint32_t turn = 0;  // times that the team met

  __device__ __forceinline__ void clear_histogram() {
    for (int bin = threadIdx.x; bin < kBins; bin += kTopkThreads) histogram[bin] = 0;
    __syncthreads();
  }

  __device__ __forceinline__ void take(int place, float value) {
    const uint32_t key = key_of(value);
    keys[place] = key;
    atomicAdd(&histogram[key >> 21], 1u);
  }

  // Keys into shared memory, with the histogram of their first 11 bits.
  __device__ __forceinline__ void load() {
    constexpr int kLoads = kTopkResident == 1 ? 4 : 2;  // sent off together, as many as registers allow
    const float* source = a.logits + row * a.logits_stride + begin;
    clear_histogram();
    int done = 0;
    if ((reinterpret_cast<uintptr_t>(source) & 15u) == 0) {
      const int vectors = count >> 2;
      const float4* from = reinterpret_cast<const float4*>(source);
      for (int start = threadIdx.x; start < vectors; start += kLoads * kTopkThreads) {
        float4 four[kLoads];
#pragma unroll
        for (int n = 0; n < kLoads; ++n) {
          const int i = start + n * kTopkThreads;
          if (i < vectors) four[n] = __ldg(from + i);
        }
#pragma unroll
        for (int n = 0; n < kLoads; ++n) {
          const int i = start + n * kTopkThreads;
          if (i >= vectors) break;
          take(4 * i, four[n].x);
          take(4 * i + 1, four[n].y);
          take(4 * i + 2, four[n].z);
          take(4 * i + 3, four[n].w);
        }
      }
      done = vectors << 2;
    }
    for (int i = done + threadIdx.x; i < count; i += kTopkThreads) take(i, __ldg(source + i));
    __syncthreads();
  }

  __device__ __forceinline__ void count_digits(uint32_t prefix, int prefix_shift, int shift, uint32_t mask) {
    clear_histogram();
    for (int i = threadIdx.x; i < count; i += kTopkThreads) {
      const uint32_t key = keys[i];
      if (key >> prefix_shift == prefix) atomicAdd(&histogram[key >> shift & mask], 1u);
    }
    __syncthreads();
  }

  // Add the team's histograms; afterwards every block has the sum.
  __device__ __forceinline__ void share_histogram(int pass) {
    if (team == nullptr) return;
    uint32_t* common = team->histogram[pass];
    for (int bin = threadIdx.x; bin < kBins; bin += kTopkThreads) {
      if (histogram[bin] != 0) atomicAdd(&common[bin], histogram[bin]);
    }
    team_barrier(team, parts, ++turn);
    for (int bin = threadIdx.x; bin < kBins; bin += kTopkThreads) histogram[bin] = __ldcg(&common[bin]);
    __syncthreads();
  }

  // The bin that holds the `need`-th largest key: its number, how many keys are above it and inside it.
  __device__ __forceinline__ void find_bin(uint32_t need) {
    // Thread 0 has the two highest bins.
    const int high = kBins - 1 - 2 * static_cast<int>(threadIdx.x);
    const uint32_t first = histogram[high], second = histogram[high - 1];
    uint32_t total;
    const uint32_t above = block_prefix(first + second, shared, &total);
    if (above < need && need <= above + first + second) {
      const bool in_first = need <= above + first;
      shared.bin = in_first ? high : high - 1;
      shared.above = in_first ? above : above + first;
      shared.inside = in_first ? first : second;
    }
    __syncthreads();
  }

  // Write the columns of this part: all keys above `limit` and, of the row, the first `equals` keys equal to it.
  __device__ __forceinline__ void write(uint32_t limit, uint32_t equals) {
    // An odd run a thread: neighbours then read from different banks.
    const int run = ((count + kTopkThreads - 1) / kTopkThreads) | 1;
    const int first = min(static_cast<int>(threadIdx.x) * run, count), last = min(first + run, count);
    uint32_t mine = 0;
    for (int i = first; i < last; ++i) mine += keys[i] > limit ? 0x10000u : keys[i] == limit ? 1u : 0u;
    uint32_t total;
    const uint32_t before = block_prefix(mine, shared, &total);
    uint32_t greater_before = 0, equal_before = 0;  // in the parts before this one
    if (team != nullptr) {
      if (threadIdx.x == 0) team->counts[part] = total;
      team_barrier(team, parts, ++turn);
#pragma unroll 1
      for (int other = 0; other < part; ++other) {
        const uint32_t theirs = __ldcg(&team->counts[other]);
        greater_before += theirs >> 16;
        equal_before += theirs & 0xffffu;
      }
    }
    const uint32_t base = greater_before + min(equal_before, equals);
    const uint32_t end = greater_before + (total >> 16) + min(equal_before + (total & 0xffffu), equals);
    // First the columns, in shared memory: pages are then looked up by all threads at once, not one after another
    // by the few that found something.
    uint32_t* columns = histogram;
    uint32_t greater = greater_before + (before >> 16), equal = equal_before + (before & 0xffffu);
    for (int i = first; i < last; ++i) {
      const bool is_greater = keys[i] > limit, is_equal = keys[i] == limit;
      if (is_greater || (is_equal && equal < equals)) {
        columns[greater + min(equal, equals) - base] = static_cast<uint32_t>(begin + i);
      }
      greater += is_greater;
      equal += is_equal;
    }
    __syncthreads();
    const int32_t* pages = a.page_table + row * a.page_table_stride;
    int32_t* out = a.out + static_cast<int64_t>(row) * a.k + base;
    for (uint32_t i = threadIdx.x; i < end - base; i += kTopkThreads) {
      out[i] = slot_of(a, pages, static_cast<int>(columns[i]));
    }
  }

  // The last block that leaves sets the team's row back to zeros.
  __device__ __forceinline__ void leave() {
    if (team == nullptr) return;
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      shared.bin = atomicAdd(&team->left, 1u) == static_cast<uint32_t>(parts) - 1;
    }
    __syncthreads();
    if (shared.bin == 0) return;
    uint32_t* words = reinterpret_cast<uint32_t*>(team);
    for (int i = threadIdx.x; i < static_cast<int>(sizeof(TopkRow) / 4); i += kTopkThreads) words[i] = 0;
  }

  __device__ __forceinline__ void select() {
    constexpr int kShift[kTopkPasses] = {21, 10, 0};
    constexpr uint32_t kMask[kTopkPasses] = {0x7ffu, 0x7ffu, 0x3ffu};
    load();
    uint32_t need = static_cast<uint32_t>(a.k), prefix = 0;
    bool exact = false;
#pragma unroll
    for (int pass = 0; pass < kTopkPasses; ++pass) {
      if (pass > 0 && !exact) count_digits(prefix, kShift[pass - 1], kShift[pass], kMask[pass]);
      // Decided on the team's sums, so all of its blocks do the same and meet equally often.
      if (exact) continue;
      share_histogram(pass);
      find_bin(need);
      need -= shared.above;
      prefix = (pass == 0 ? 0u : prefix << (kShift[pass - 1] - kShift[pass])) | shared.bin;
      exact = shared.inside == need;
      if (exact && pass < kTopkPasses - 1) {
        // All keys of the bin are selected: the limit is just below it.
        prefix = (prefix << kShift[pass]) - 1;
        need = 0;
      }
      __syncthreads();
    }
    write(prefix, need);
    leave();
  }
};

__device__ __forceinline__ void short_row(const TopkArguments& a, int row, int length) {
  const int32_t* pages = a.page_table + row * a.page_table_stride;
  int32_t* out = a.out + static_cast<int64_t>(row) * a.k;
  for (int i = threadIdx.x; i < a.k; i += kTopkThreads) {
    out[i] = i < length ? slot_of(a, pages, i) : -1;
  }
}

__global__ void __launch_bounds__(kTopkThreads, kTopkResident)
    topk_kernel(const __grid_constant__ TopkArguments a) {
  extern __shared__ uint4 topk_dynamic[];
  __shared__ TopkShared shared;
  uint32_t* keys = reinterpret_cast<uint32_t*>(topk_dynamic);
  const int part = static_cast<int>(blockIdx.x) % a.parts;
  const int teams = static_cast<int>(gridDim.x) / a.parts;
  for (int row = static_cast<int>(blockIdx.x) / a.parts; row < a.rows; row += teams) {
    const int length = max(0, min(a.lengths[row], a.columns));
    const int parts = length <= kTopkAlone ? 1 : a.parts;
    if (part >= parts) continue;
    if (length <= a.k) {
      short_row(a, row, length);
      continue;
    }
    const int size = ((length + parts - 1) / parts + 3) & ~3;
    const int begin = min(part * size, length);
    TopkBlock block{a,   shared, keys,  keys + kTopkKeys, parts > 1 ? a.workspace + row : nullptr,
                    row, part,   parts, begin,            min(size, length - begin)};
    block.select();
    __syncthreads();
  }
}

}  // namespace blackwell_kernels
