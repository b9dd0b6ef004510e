// The all-reduce with all ranks in one grid (blockIdx.y is the rank), and top-k, as a program of its own.
//
// A race detector runs one kernel at a time, so ranks that are launches of their own would wait for each other for
// ever; blocks of one grid run together. Prints `RESULT {"rounds": N, "rows": M}`, or what is wrong, and fails.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "all_reduce.cuh"
#include "topk.cuh"

using namespace blackwell_kernels;

#define TRY(call)                                                                               \
  do {                                                                                          \
    const cudaError_t error = (call);                                                           \
    if (error != cudaSuccess) {                                                                 \
      std::printf("%s: %s (line %d)\n", #call, cudaGetErrorString(error), __LINE__);             \
      std::exit(1);                                                                             \
    }                                                                                           \
  } while (false)

namespace {

constexpr int kHidden = 512, kThreads = kHidden / kPerVector, kRows = 9, kBlocks = 2;

template <int W, int kPath>
__global__ void __launch_bounds__(kNarrow, 1) all_ranks(const Arguments* arguments) {
  __shared__ Shared shared;
  all_reduce_block<W, kPath, kNarrow>(arguments[blockIdx.y], shared);
}

float widen(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

[[noreturn]] void wrong(const char* what, int world, int path, int round) {
  std::printf("%s: W=%d path %d round %d\n", what, world, path, round);
  std::exit(1);
}

// Small whole numbers: every order of the sum gives the same float32, and it is a bfloat16.
uint16_t input(int rank, int place, int round) {
  const float value = static_cast<float>((place * 7 + rank * 3 + round * 5) % 17 - 8);
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>(bits >> 16);
}

template <int W, int kPath>
int check_path() {
  const int blocks[kPaths] = {kBlocks, kBlocks, kBlocks, kBlocks};
  const Layout layout = make_layout(W, kRows, kRows, kHidden, blocks);
  constexpr size_t kBytes = static_cast<size_t>(kRows) * kHidden * 2;
  Arguments all[W]{};
  uint8_t* slabs[W];
  Diagnosis* diagnosis;
  TRY(cudaMallocManaged(&diagnosis, sizeof(Diagnosis)));
  std::memset(diagnosis, 0, sizeof(Diagnosis));
  for (int rank = 0; rank < W; ++rank) {
    TRY(cudaMalloc(&slabs[rank], layout.bytes));
    TRY(cudaMemset(slabs[rank], 0, layout.bytes));
    TRY(cudaMemset(slabs[rank] + layout.push_one, 0xff, layout.bytes - layout.push_one));
  }
  for (int rank = 0; rank < W; ++rank) {
    Arguments& a = all[rank];
    for (int peer = 0; peer < W; ++peer) a.slab[peer] = slabs[peer];
    a.layout = layout;
    for (const uint4** tensor : {&a.x, &a.residual, &a.weight}) TRY(cudaMalloc(tensor, kBytes));
    for (uint4** tensor : {&a.out, &a.residual_out}) TRY(cudaMalloc(tensor, kBytes));
    TRY(cudaMemset(const_cast<uint4*>(a.residual), 0, kBytes));
    TRY(cudaMemset(const_cast<uint4*>(a.weight), 0, kBytes));
    a.diagnosis = diagnosis;
    a.patience = 60000000000ull;
    a.eps = 1e-6f;
    a.vectors = kThreads;
    a.rank = rank;
  }
  Arguments* device;
  TRY(cudaMalloc(&device, sizeof(all)));
  std::vector<uint16_t> data(static_cast<size_t>(kRows) * kHidden), seen(data.size());
  int round = 0;
  for (int rows : {1, kRows, 4}) {
    for (int kind = 0; kind < kMhc; ++kind, ++round) {
      for (int rank = 0; rank < W; ++rank) {
        for (size_t i = 0; i < data.size(); ++i) data[i] = input(rank, static_cast<int>(i), round);
        TRY(cudaMemcpy(const_cast<uint4*>(all[rank].x), data.data(), kBytes, cudaMemcpyHostToDevice));
        TRY(cudaMemset(all[rank].residual_out, 0xff, kBytes));
        all[rank].rows = rows;
        all[rank].kind = kind;
      }
      TRY(cudaMemcpy(device, all, sizeof(all), cudaMemcpyHostToDevice));
      const bool one_shot = kPath == kPushOneShot || kPath == kPullOneShot;
      const int work = one_shot ? rows : (rows + W - 1) / W;
      all_ranks<W, kPath><<<dim3(work < kBlocks ? work : kBlocks, W), kThreads>>>(device);
      TRY(cudaDeviceSynchronize());
      if (diagnosis->valid) wrong("a rank was not waited for long enough", W, kPath, round);
      // Without residual the sum itself is the output, or the residual that the norm returns.
      for (int rank = 0; rank < W; ++rank) {
        const uint4* result = kind >= kNormOfUnrounded ? all[rank].residual_out : all[rank].out;
        TRY(cudaMemcpy(seen.data(), result, kBytes, cudaMemcpyDeviceToHost));
        for (int i = 0; i < rows * kHidden; ++i) {
          float sum = 0.0f;
          for (int s = 0; s < W; ++s) sum += widen(input(s, i, round));
          if (widen(seen[i]) != sum) wrong("the sum is wrong", W, kPath, round);
        }
      }
    }
  }
  for (int rank = 0; rank < W; ++rank) {
    TRY(cudaFree(slabs[rank]));
    for (const void* tensor : {static_cast<const void*>(all[rank].x), static_cast<const void*>(all[rank].residual),
                               static_cast<const void*>(all[rank].weight),
                               static_cast<const void*>(all[rank].out),
                               static_cast<const void*>(all[rank].residual_out)}) {
      TRY(cudaFree(const_cast<void*>(tensor)));
    }
  }
  TRY(cudaFree(device));
  TRY(cudaFree(diagnosis));
  return round;
}

template <int W>
int check_world() {
  return check_path<W, kPushOneShot>() + check_path<W, kPushTwoShot>() + check_path<W, kPullOneShot>() +
         check_path<W, kPullTwoShot>();
}

// Distinct values, the largest in columns that are known; alone and as a team.
int check_topk() {
  TRY(cudaFuncSetAttribute(topk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTopkDynamic));
  constexpr int kColumns = 40000, kWanted = 512;
  int rows_done = 0;
  for (int columns : {3000, kColumns}) {
    std::vector<float> logits(columns);
    for (int i = 0; i < columns; ++i) logits[i] = static_cast<float>((i * 7919) % columns);
    float* values;
    int32_t *length, *table, *out;
    TopkRow* row;
    TRY(cudaMalloc(&values, sizeof(float) * columns));
    TRY(cudaMalloc(&length, sizeof(int32_t)));
    TRY(cudaMalloc(&table, sizeof(int32_t) * columns));
    TRY(cudaMalloc(&out, sizeof(int32_t) * kWanted));
    TRY(cudaMalloc(&row, sizeof(TopkRow)));
    TRY(cudaMemset(row, 0, sizeof(TopkRow)));
    std::vector<int32_t> pages(columns), seen(kWanted);
    for (int i = 0; i < columns; ++i) pages[i] = columns - 1 - i;
    TRY(cudaMemcpy(values, logits.data(), sizeof(float) * columns, cudaMemcpyHostToDevice));
    TRY(cudaMemcpy(length, &columns, sizeof(int32_t), cudaMemcpyHostToDevice));
    TRY(cudaMemcpy(table, pages.data(), sizeof(int32_t) * columns, cudaMemcpyHostToDevice));
    TopkArguments a{values, length, table, out, row, columns, columns, 1, columns, 1, 0, kWanted, columns > 16384 ? 5 : 1};
    void* parameters[] = {&a};
    for (int time = 0; time < 2; ++time, ++rows_done) {
      TRY(cudaLaunchCooperativeKernel(topk_kernel, dim3(a.parts), dim3(kTopkThreads), parameters, kTopkDynamic, nullptr));
      TRY(cudaDeviceSynchronize());
      TRY(cudaMemcpy(seen.data(), out, sizeof(int32_t) * kWanted, cudaMemcpyDeviceToHost));
      int found = 0;
      for (int i = 0; i < columns; ++i) {
        if (static_cast<int>(logits[i]) < columns - kWanted) continue;
        if (seen[found++] != pages[i]) wrong("top-k is wrong", columns, 0, time);
      }
      if (found != kWanted) wrong("the reference is wrong", columns, 0, time);
    }
    for (void* memory : {static_cast<void*>(values), static_cast<void*>(length), static_cast<void*>(table),
                         static_cast<void*>(out), static_cast<void*>(row)}) {
      TRY(cudaFree(memory));
    }
  }
  return rows_done;
}

}  // namespace

int main() {
  const int rounds = check_world<2>() + check_world<4>() + check_world<8>();
  const int rows = check_topk();
  std::printf("RESULT {\"rounds\": %d, \"rows\": %d}\n", rounds, rows);
  return 0;
}
