// All-reduce with the boundary between two sublayers of a model with hyper-connections (DeepSeek-V4: four streams).
//
//   y[t, :]     = bf16(sum over ranks of x_r[t, :])                                     as the plain all-reduce
//   R'[t, i, :] = bf16(post[t, i] * y[t, :] + sum_j comb[t, j, i] * R[t, j, :])         "post"; ends here without fn
//   mix[t, :]   = fn @ flat(R'[t]) / rms(flat(R'[t])),  rms(v) = sqrt(mean(v^2) + rms_eps)
//   pre         = sigmoid(scale[0] * mix[0:4] + base[0:4]) + hc_eps
//   post'       = 2 * sigmoid(scale[1] * mix[4:8] + base[4:8])
//   comb'       = Sinkhorn(scale[2] * mix[8:24] + base[8:24]), see `sinkhorn`
//   v[t, :]     = bf16(sum_i pre[t, i] * R'[t, i, :])
//   out[t, :]   = bf16(v / sqrt(mean(v^2) + eps) * norm_weight), or v without a weight
//
// Everything between bf16(..) is float32. One row of fn @ R' is 1.6 MB of fn at hidden 4096, too much for one block:
// a row is cut into slices, and for the all-reduce each slice is a row of its own. The block of a row's slice
// leaves 25 partial sums; the one that finds all others done, whichever it is, adds them up in their order, so the
// bits do not depend on it, and makes the rest of the row. It waits for nobody.
#pragma once

#include "all_reduce.cuh"

namespace blackwell_kernels {

constexpr int kStreams = 4;
constexpr int kMixes = 2 * kStreams + kStreams * kStreams;
constexpr int kMhcSums = kMixes + 1;  // the mixes before they are scaled, and the squares
constexpr int kMhcThreads = 128;  // most of a block: slices of up to 1024 columns

// What a launch adds to those of the all-reduce, where a row is a slice: `rows` = tokens * slices, `vectors` = those
// of a slice, `out` [tokens, hidden], `weight` [hidden] or null, `eps` of the norm.
struct MhcArguments : Arguments {
  const uint4* streams;      // bf16 [tokens, 4, hidden]
  const float* post;         // [tokens, 4]
  const float* comb;         // [tokens, 4, 4]
  const float* fn;           // [24, 4 * hidden]; null: nothing but R' is made
  const float* scale;        // [3]
  const float* base;         // [24]
  uint4* streams_out;        // as streams
  float* post_out;           // as post
  float* comb_out;           // as comb
  float* partials;           // [tokens * slices, 25]
  uint32_t* arrivals;        // [tokens], zeros between launches
  float rms_eps, hc_eps;
  int32_t iterations;  // of Sinkhorn
  int32_t slices;
};

struct MhcShared {
  float sums[kMhcThreads / 32][kMhcSums];
  float mix[kMhcSums];
  bool complete;
};

BK_DEVICE float sigmoid(float value) { return 1.0f / (1.0f + exponential(-value)); }

// Over the four threads of a row of the 4 x 4 matrix, and of a column: entry [j, i] is in thread 4 j + i of 16.
BK_DEVICE float sum_of_row(float entry) {
  entry += from_lane_xor(entry, 1);
  return entry + from_lane_xor(entry, 2);
}
BK_DEVICE float sum_of_column(float entry) {
  entry += from_lane_xor(entry, 4);
  return entry + from_lane_xor(entry, 8);
}

// Softmax over rows, plus eps, columns to sum 1; then rows and columns in turn, `iterations` - 1 times.
BK_DEVICE float sinkhorn(float entry, float eps, int iterations) {
  float most = entry;
  most = larger(most, from_lane_xor(most, 1));
  most = larger(most, from_lane_xor(most, 2));
  entry = exponential(entry - most);
  entry = entry / sum_of_row(entry) + eps;
  entry = entry / (sum_of_column(entry) + eps);
#pragma unroll 1
  for (int iteration = 1; iteration < iterations; ++iteration) {
    entry = entry / (sum_of_row(entry) + eps);
    entry = entry / (sum_of_column(entry) + eps);
  }
  return entry;
}

// Streams of one token as this thread's vectors.
BK_DEVICE uint64_t stream_at(const MhcArguments& a, int token, int stream, int slice) {
  const uint64_t whole = static_cast<uint64_t>(a.vectors) * static_cast<uint64_t>(a.slices);
  return (static_cast<uint64_t>(token) * kStreams + static_cast<uint64_t>(stream)) * whole +
         static_cast<uint64_t>(slice) * static_cast<uint64_t>(a.vectors) + static_cast<uint64_t>(thread_index());
}

BK_DEVICE void mix_in(const MhcArguments& a, int token, int slice, const uint4& y, uint4 (&mixed)[kStreams]) {
  const float* post = a.post + static_cast<uint64_t>(token) * kStreams;
  const float* comb = a.comb + static_cast<uint64_t>(token) * kStreams * kStreams;
  uint4 before[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) before[j] = load_tensor(a.streams + stream_at(a, token, j, slice));
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    float value[kPerVector];
    const float own = load_tensor(post + i);
#pragma unroll
    for (int k = 0; k < kPerVector; ++k) value[k] = own * value_of(y, k);
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      const float share = load_tensor(comb + j * kStreams + i);
#pragma unroll
      for (int k = 0; k < kPerVector; ++k) value[k] += share * value_of(before[j], k);
    }
    mixed[i] = pack(value);
    a.streams_out[stream_at(a, token, i, slice)] = mixed[i];
  }
}

// Partial sums of one slice, of all its threads, to memory. As many of fn's rows at a time as registers allow.
BK_DEVICE void leave_sums(const MhcArguments& a, MhcShared& shared, int row, int slice,
                          const uint4 (&mixed)[kStreams]) {
  constexpr int kAtOnce = 4;
  const int warp = thread_index() >> 5, lane = thread_index() & 31, warps = thread_count() >> 5;
  const uint64_t hidden = static_cast<uint64_t>(a.vectors) * static_cast<uint64_t>(a.slices) * kPerVector;
  const uint64_t column = (static_cast<uint64_t>(slice) * static_cast<uint64_t>(a.vectors) +
                           static_cast<uint64_t>(thread_index())) * kPerVector;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
#pragma unroll
    for (int k = 0; k < kPerVector; ++k) squares += value_of(mixed[i], k) * value_of(mixed[i], k);
  }
  squares = warp_sum(squares);
  if (lane == 0) shared.sums[warp][kMixes] = squares;
#pragma unroll 1
  for (int first = 0; first < kMixes; first += kAtOnce) {
    float sums[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) sums[n] = 0.0f;
#pragma unroll
    for (int i = 0; i < kStreams; ++i) {
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const float* line = a.fn + (static_cast<uint64_t>(first + n) * kStreams + static_cast<uint64_t>(i)) * hidden;
        const uint4* place = reinterpret_cast<const uint4*>(line + column);
        const uint4 low = load_tensor(place), high = load_tensor(place + 1);
#pragma unroll
        for (int k = 0; k < kPerVector; ++k) {
          const float factor = bits_to_float(word_of(k < 4 ? low : high, k & 3));
          sums[n] += factor * value_of(mixed[i], k);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      sums[n] = warp_sum(sums[n]);
      if (lane == 0) shared.sums[warp][first + n] = sums[n];
    }
  }
  block_barrier();
  const int which = thread_index();
  if (which < kMhcSums) {
    float sum = shared.sums[0][which];
    for (int w = 1; w < warps; ++w) sum += shared.sums[w][which];
    store_device(a.partials + static_cast<uint64_t>(row) * kMhcSums + which, sum);
  }
}

// What is made of a token whose slices are all there.
BK_DEVICE void finish_token(const MhcArguments& a, MhcShared& shared, int token) {
  const int which = thread_index();
  const int warp = which >> 5, lane = which & 31, warps = thread_count() >> 5;
  if (which < kMhcSums) {
    const float* partials = a.partials + static_cast<uint64_t>(token) * a.slices * kMhcSums + which;
    float sum = load_device(partials);
    for (int slice = 1; slice < a.slices; ++slice) sum += load_device(partials + slice * kMhcSums);
    shared.mix[which] = sum;
  }
  block_barrier();
  const float hidden = static_cast<float>(a.vectors * a.slices * kPerVector);
  const float inverse = reciprocal_root(shared.mix[kMixes] / (hidden * kStreams) + a.rms_eps);
  const auto mixed = [&](int part, int place) {
    return shared.mix[place] * inverse * load_tensor(a.scale + part) + load_tensor(a.base + place);
  };
  // Every 16 threads have the whole matrix, so no warp waits for another.
  const int entry = which & (kStreams * kStreams - 1);
  const float comb = sinkhorn(mixed(2, 2 * kStreams + entry), a.hc_eps, a.iterations);
  if (which < kStreams * kStreams) a.comb_out[static_cast<uint64_t>(token) * kStreams * kStreams + which] = comb;
  if (which < kStreams) {
    a.post_out[static_cast<uint64_t>(token) * kStreams + which] = 2.0f * sigmoid(mixed(1, kStreams + which));
  }
  float pre[kStreams];
#pragma unroll
  for (int i = 0; i < kStreams; ++i) pre[i] = sigmoid(mixed(0, i)) + a.hc_eps;
  const uint64_t first = static_cast<uint64_t>(token) * a.slices * a.vectors + which;
  float squares = 0.0f;
#pragma unroll 2
  for (int slice = 0; slice < a.slices; ++slice) {
    float value[kPerVector];
#pragma unroll
    for (int i = 0; i < kStreams; ++i) {
      const uint4 stream = load_device(a.streams_out + stream_at(a, token, i, slice));
#pragma unroll
      for (int k = 0; k < kPerVector; ++k) {
        value[k] = i == 0 ? pre[i] * value_of(stream, k) : value[k] + pre[i] * value_of(stream, k);
      }
    }
    const uint4 combined = pack(value);
    a.out[first + slice * a.vectors] = combined;
#pragma unroll
    for (int k = 0; k < kPerVector; ++k) squares += value_of(combined, k) * value_of(combined, k);
  }
  if (a.weight == nullptr) return;
  squares = warp_sum(squares);
  if (lane == 0) shared.sums[warp][0] = squares;
  block_barrier();
  squares = shared.sums[0][0];
  for (int w = 1; w < warps; ++w) squares += shared.sums[w][0];
  const float factor = reciprocal_root(squares / hidden + a.eps);
#pragma unroll 2
  for (int slice = 0; slice < a.slices; ++slice) {
    uint4* place = a.out + first + slice * a.vectors;  // what this thread wrote itself
    const uint4 combined = *place, weight = load_tensor(a.weight + slice * a.vectors + which);
    float value[kPerVector];
#pragma unroll
    for (int k = 0; k < kPerVector; ++k) value[k] = value_of(combined, k) * factor * value_of(weight, k);
    *place = pack(value);
  }
}

// One slice of one token; all threads of the block together.
BK_DEVICE void mhc_slice(const MhcArguments& a, MhcShared& shared, int row, const uint4& y) {
  const int token = row / a.slices, slice = row % a.slices;
  uint4 mixed[kStreams];
  mix_in(a, token, slice, y, mixed);
  if (a.fn == nullptr) return;
  block_barrier();  // what is shared was read for the row before
  leave_sums(a, shared, row, slice, mixed);
  block_barrier();
  if (thread_index() == 0) {
    shared.complete = last_to_arrive(a.arrivals + token, static_cast<uint32_t>(a.slices));
  }
  block_barrier();
  if (shared.complete) finish_token(a, shared, token);
}

// The arguments are an MhcArguments.
struct MhcEpilogue {
  using Shared = MhcShared;
  static BK_DEVICE uint4 residual(const Arguments&, int) { return uint4{0, 0, 0, 0}; }
  static BK_DEVICE uint4 weight(const Arguments&) { return uint4{0, 0, 0, 0}; }
  static BK_DEVICE uint4 wire(const Arguments&, float (&sum)[kPerVector], const uint4&) { return pack(sum); }
  template <int N>
  static BK_DEVICE void finish(const Arguments& arguments, Shared& shared, int, int first_row, const uint4 (&wire)[N],
                               const uint4 (&)[N], const uint4&) {
    const MhcArguments& a = static_cast<const MhcArguments&>(arguments);
#pragma unroll 1
    for (int n = 0; n < N && first_row + n < a.rows; ++n) {
      uint4 y = wire[0];
#pragma unroll
      for (int other = 1; other < N; ++other) {
        if (n == other) y = wire[other];
      }
      mhc_slice(a, shared, first_row + n, y);
    }
  }
};

#ifdef __CUDACC__
template <int W, int kPath>
__global__ void __launch_bounds__(kMhcThreads, 2) all_reduce_mhc_kernel(const __grid_constant__ MhcArguments arguments) {
  __shared__ MhcShared shared;
  all_reduce_block<W, kPath, kNarrow, MhcEpilogue>(arguments, shared);
}
#endif

}  // namespace blackwell_kernels
