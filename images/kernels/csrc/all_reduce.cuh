// Sum of one bfloat16 matrix a rank over all ranks, with what follows it in a transformer block.
//
//   s[t, :]      = sum over ranks r = 0, 1, .. of x_r[t, :], in float32, in this order on every rank
//   plain        out = bf16(s)
//   add          out = bf16(s + residual)
//   unrounded    v = bf16(s) + residual;   residual_out = bf16(v);  norm_out = bf16(v / rms(v) * weight)
//   rounded      v = bf16(s + residual);   residual_out = v;        norm_out = bf16(v / rms(v) * weight)
//   rms(v)       = sqrt(mean(v^2) + eps)
//
// "Unrounded" is what an all-reduce followed by a fused add and norm computes. One vector of bf16(s) or
// bf16(s + residual), the wire vector below, is all that the rest of the row's work needs; so one-shot and
// two-shot, push and pull give the same bits, and a threshold between them is a matter of speed alone.
#pragma once

#include "protocol.cuh"

namespace blackwell_kernels {

// Blocks of at most this many threads (hidden 4096) may use twice the registers of wider ones.
constexpr int kNarrow = 512;

// What follows the sum is a policy: what it needs of a row (`residual`, `weight`), what goes over the wire for it
// (`wire`), and what is made of N consecutive rows (`finish`), which all threads of a block call together.

struct Shared {
  float partial[2][4][kMaxThreads / 32];
};

// The matrix position of this thread's vector.
BK_DEVICE uint64_t at(const Arguments& a, int row) {
  return static_cast<uint64_t>(row) * static_cast<uint64_t>(a.vectors) + static_cast<uint64_t>(thread_index());
}

BK_DEVICE bool has_norm(const Arguments& a) { return a.kind >= kNormOfUnrounded; }
BK_DEVICE bool adds_before_rounding(const Arguments& a) { return a.kind == kAdd || a.kind == kNormOfRounded; }

BK_DEVICE void accumulate(float (&sum)[kPerVector], const uint4& vector, bool first) {
#pragma unroll
  for (int i = 0; i < kPerVector; ++i) sum[i] = first ? value_of(vector, i) : sum[i] + value_of(vector, i);
}

BK_DEVICE uint4 wire_vector(const Arguments& a, float (&sum)[kPerVector], const uint4& residual) {
  if (adds_before_rounding(a)) {
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) sum[i] += value_of(residual, i);
  }
  return pack(sum);
}

BK_DEVICE float normed_value(const Arguments& a, const uint4& wire, const uint4& residual, int i) {
  const float value = value_of(wire, i);
  return a.kind == kNormOfUnrounded ? value + value_of(residual, i) : value;
}

// Sums over the block, N at a time. `turn` alternates between calls, so one barrier is enough.
template <int N>
BK_DEVICE void block_sums(float (&sums)[N], Shared& shared, int turn) {
  const int warp = thread_index() >> 5, lane = thread_index() & 31, warps = thread_count() >> 5;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    sums[n] = warp_sum(sums[n]);
    if (lane == 0) shared.partial[turn & 1][n][warp] = sums[n];
  }
  block_barrier();
#pragma unroll
  for (int n = 0; n < N; ++n) sums[n] = warp_sum(lane < warps ? shared.partial[turn & 1][n][lane] : 0.0f);
}

// Write what N rows become; rows behind the last one are computed with zeros and not written.
template <int N>
BK_DEVICE void finish_rows(const Arguments& a, Shared& shared, int turn, int first_row, const uint4 (&wire)[N],
                           const uint4 (&residual)[N], const uint4& weight) {
  if (!has_norm(a)) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (first_row + n < a.rows) a.out[at(a, first_row + n)] = wire[n];
    }
    return;
  }
  float sums[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    sums[n] = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) {
      const float value = normed_value(a, wire[n], residual[n], i);
      sums[n] += value * value;
    }
  }
  block_sums<N>(sums, shared, turn);
  const float hidden = static_cast<float>(a.vectors * kPerVector);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    if (first_row + n >= a.rows) continue;
    const float scale = reciprocal_root(sums[n] / hidden + a.eps);
    float value[kPerVector], normed[kPerVector];
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) {
      value[i] = normed_value(a, wire[n], residual[n], i);
      normed[i] = value[i] * scale * value_of(weight, i);
    }
    a.residual_out[at(a, first_row + n)] = pack(value);
    a.out[at(a, first_row + n)] = pack(normed);
  }
}

BK_DEVICE uint4 residual_of(const Arguments& a, int row) {
  return a.kind != kPlain && row < a.rows ? load_tensor(a.residual + at(a, row)) : uint4{0, 0, 0, 0};
}

BK_DEVICE uint4 weight_of(const Arguments& a) {
  return has_norm(a) ? load_tensor(a.weight + thread_index()) : uint4{0, 0, 0, 0};
}

// Nothing, a residual, or a residual and a norm: the formulas at the head of this file.
struct NormEpilogue {
  using Shared = blackwell_kernels::Shared;
  static BK_DEVICE uint4 residual(const Arguments& a, int row) { return residual_of(a, row); }
  static BK_DEVICE uint4 weight(const Arguments& a) { return weight_of(a); }
  static BK_DEVICE uint4 wire(const Arguments& a, float (&sum)[kPerVector], const uint4& residual) {
    return wire_vector(a, sum, residual);
  }
  template <int N>
  static BK_DEVICE void finish(const Arguments& a, Shared& shared, int turn, int first_row, const uint4 (&wire)[N],
                               const uint4 (&residual)[N], const uint4& weight) {
    finish_rows<N>(a, shared, turn, first_row, wire, residual, weight);
  }
};

// Sum over ranks of one row: `place(s)` is where rank s's vector is, or will be. As many loads as registers allow
// are sent off before the first is needed.
template <int W, bool kPush, int kThreads, typename Place>
BK_DEVICE void sum_ranks(Round& round, float (&sum)[kPerVector], const uint4& own, Stage stage, Place place) {
  constexpr int kLoads = kThreads <= kNarrow || W <= 4 ? W : 4;
#pragma unroll
  for (int batch = 0; batch < W; batch += kLoads) {
    uint4 seen[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) seen[i] = batch + i == round.a.rank ? own : load_system(place(batch + i));
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int s = batch + i;
      if (kPush && s != round.a.rank) seen[i] = round.receive(place(s), seen[i], s, stage);
      accumulate(sum, seen[i], s == 0);
    }
  }
}

// Rows that one thread finishes at a time.
template <int W, int kThreads>
constexpr int kRowsAtOnce = kThreads <= kNarrow ? (W < 4 ? W : 4) : 2;

// Every rank gets every row of every rank: (W - 1) S bytes out of each rank, one hop.
template <int W, bool kPush, int kThreads, typename Epilogue>
BK_DEVICE void one_shot(const Arguments& a, typename Epilogue::Shared& shared) {
  Round round(a, kPush ? kPushOneShot : kPullOneShot);
  const Layout& l = a.layout;
  const uint64_t capacity = static_cast<uint64_t>(l.one_shot_rows);
  const uint4 first = sendable(load_tensor(a.x + at(a, block_index())));
  const uint4 weight = Epilogue::weight(a);
  for (int row = block_index(); row < a.rows; row += block_count()) {
    const uint4 own = row == block_index() ? first : sendable(load_tensor(a.x + at(a, row)));
    if constexpr (kPush) {
#pragma unroll
      for (int i = 1; i < W; ++i) {
        const int peer = (a.rank + i) & (W - 1);
        store_system(vector_at(a.slab[peer], l.push_one, l.row, (round.half * W + a.rank) * capacity + row), own);
      }
    } else {
      *vector_at(a.slab[a.rank], l.pull_one, l.row, round.half * capacity + row) = own;
    }
  }
  if (!kPush) {
    block_barrier();
    const int peer = thread_index();
    if (peer < W && peer != a.rank) {
      round.raise(peer, kStageOneShot);
      round.await(peer, kStageOneShot);
    }
    block_barrier();
  }
  int turn = 0;
  for (int row = block_index(); row < a.rows; row += block_count()) {
    const uint4 own = row == block_index() ? first : sendable(load_tensor(a.x + at(a, row)));
    const uint4 residual[1] = {Epilogue::residual(a, row)};
    float sum[kPerVector];
    sum_ranks<W, kPush, kThreads>(round, sum, own, kStageOneShot, [&](int s) {
      return kPush ? vector_at(a.slab[a.rank], l.push_one, l.row, (round.half * W + s) * capacity + row)
                   : vector_at(a.slab[s], l.pull_one, l.row, round.half * capacity + row);
    });
    const uint4 wire[1] = {Epilogue::wire(a, sum, residual[0])};
    Epilogue::template finish<1>(a, shared, turn++, row, wire, residual, weight);
  }
  round.finish();
}

// Rank d sums row g * W + d of each group g and gives the wire vector to all: 2 (W - 1) / W S bytes out of each
// rank, two hops. All ranks send to their next neighbour first, then to the second next and so on, so that at a
// time each rank has one outbound and one inbound stream.
template <int W, int kThreads, typename Epilogue>
BK_DEVICE void two_shot_push(const Arguments& a, typename Epilogue::Shared& shared) {
  constexpr int kBatch = kRowsAtOnce<W, kThreads>;
  constexpr int kLoads = kThreads <= kNarrow || W <= 4 ? W - 1 : 2;
  constexpr int kUnroll = kThreads <= kNarrow || W <= 4 ? W : 1;  // registers
  Round round(a, kPushTwoShot);
  const Layout& l = a.layout;
  const uint64_t capacity = static_cast<uint64_t>(l.groups);
  const int groups = (a.rows + W - 1) / W;
  for (int group = block_index(); group < groups; group += block_count()) {
#pragma unroll
    for (int batch = 1; batch < W; batch += kLoads) {
      uint4 rows[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int row = group * W + ((a.rank + batch + i) & (W - 1));
        if (batch + i < W && row < a.rows) rows[i] = sendable(load_tensor(a.x + at(a, row)));
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int peer = (a.rank + batch + i) & (W - 1);
        if (batch + i >= W || group * W + peer >= a.rows) continue;
        store_system(vector_at(a.slab[peer], l.push_rows, l.row, (round.half * W + a.rank) * capacity + group),
                     rows[i]);
      }
    }
  }
  int turn = 0;
  for (int group = block_index(); group < groups; group += block_count()) {
    const int own_row = group * W + a.rank;
    uint4 own_wire{0, 0, 0, 0};
    if (own_row < a.rows) {
      const uint4 own = sendable(load_tensor(a.x + at(a, own_row)));
      const uint4 residual = Epilogue::residual(a, own_row);
      float sum[kPerVector];
      sum_ranks<W, true, kThreads>(round, sum, own, kStageScatter, [&](int s) {
        return vector_at(a.slab[a.rank], l.push_rows, l.row, (round.half * W + s) * capacity + group);
      });
      own_wire = Epilogue::wire(a, sum, residual);
#pragma unroll
      for (int i = 1; i < W; ++i) {
        const int peer = (a.rank + i) & (W - 1);
        store_system(vector_at(a.slab[peer], l.push_sums, l.row, round.half * capacity * W + own_row), own_wire);
      }
    }
    const uint4 weight = Epilogue::weight(a);  // after the sum, which needs the registers
#pragma unroll kUnroll
    for (int batch = 0; batch < W; batch += kBatch) {
      const int first_row = group * W + batch;
      if (first_row >= a.rows) continue;
      uint4 wire[kBatch], residual[kBatch];
      auto mailbox = [&](int n) {
        return vector_at(a.slab[a.rank], l.push_sums, l.row, round.half * capacity * W + first_row + n);
      };
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        residual[n] = Epilogue::residual(a, first_row + n);
        wire[n] = batch + n == a.rank        ? own_wire
                  : first_row + n < a.rows ? load_system(mailbox(n))
                                           : uint4{0, 0, 0, 0};
      }
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        if (batch + n == a.rank || first_row + n >= a.rows) continue;
        wire[n] = round.receive(mailbox(n), wire[n], batch + n, kStageGather);
      }
      Epilogue::template finish<kBatch>(a, shared, turn++, first_row, wire, residual, weight);
    }
  }
  round.finish();
}

// The same with loads over the bus instead of stores.
template <int W, int kThreads, typename Epilogue>
BK_DEVICE void two_shot_pull(const Arguments& a, typename Epilogue::Shared& shared) {
  constexpr int kBatch = kRowsAtOnce<W, kThreads>;
  Round round(a, kPullTwoShot);
  const Layout& l = a.layout;
  const uint64_t capacity = static_cast<uint64_t>(l.groups);
  const int groups = (a.rows + W - 1) / W;
  const int peer = thread_index();
  const bool speaks = peer < W && peer != a.rank;
  for (int group = block_index(); group < groups; group += block_count()) {
#pragma unroll
    for (int i = 1; i < W; ++i) {
      const int row = group * W + ((a.rank + i) & (W - 1));
      if (row >= a.rows) continue;
      *vector_at(a.slab[a.rank], l.pull_rows, l.row, round.half * capacity * W + row) =
          load_tensor(a.x + at(a, row));
    }
  }
  block_barrier();
  if (speaks) {
    round.raise(peer, kStageScatter);
    round.await(peer, kStageScatter);
  }
  block_barrier();
  for (int group = block_index(); group < groups; group += block_count()) {
    const int row = group * W + a.rank;
    if (row >= a.rows) continue;
    const uint4 own = load_tensor(a.x + at(a, row));
    const uint4 residual = Epilogue::residual(a, row);
    float sum[kPerVector];
    sum_ranks<W, false, kThreads>(round, sum, own, kStageScatter, [&](int s) {
      return vector_at(a.slab[s], l.pull_rows, l.row, round.half * capacity * W + row);
    });
    *vector_at(a.slab[a.rank], l.pull_sums, l.row, round.half * capacity + group) = Epilogue::wire(a, sum, residual);
  }
  block_barrier();
  // A rank whose row of the block's first group does not exist sums nothing in this block.
  const int first_row_of_block = block_index() * W;
  if (speaks) {
    if (first_row_of_block + a.rank < a.rows) round.raise(peer, kStageGather);
    if (first_row_of_block + peer < a.rows) round.await(peer, kStageGather);
  }
  block_barrier();
  const uint4 weight = Epilogue::weight(a);
  int turn = 0;
  for (int group = block_index(); group < groups; group += block_count()) {
#pragma unroll
    for (int batch = 0; batch < W; batch += kBatch) {
      const int first_row = group * W + batch;
      if (first_row >= a.rows) continue;
      uint4 wire[kBatch], residual[kBatch];
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        residual[n] = Epilogue::residual(a, first_row + n);
        wire[n] = first_row + n < a.rows
                      ? load_system(vector_at(a.slab[batch + n], l.pull_sums, l.row, round.half * capacity + group))
                      : uint4{0, 0, 0, 0};
      }
      Epilogue::template finish<kBatch>(a, shared, turn++, first_row, wire, residual, weight);
    }
  }
  round.finish();
}

template <int W, int kPath, int kThreads, typename Epilogue = NormEpilogue>
BK_DEVICE void all_reduce_block(const Arguments& a, typename Epilogue::Shared& shared) {
  if constexpr (kPath == kPushOneShot) one_shot<W, true, kThreads, Epilogue>(a, shared);
  if constexpr (kPath == kPullOneShot) one_shot<W, false, kThreads, Epilogue>(a, shared);
  if constexpr (kPath == kPushTwoShot) two_shot_push<W, kThreads, Epilogue>(a, shared);
  if constexpr (kPath == kPullTwoShot) two_shot_pull<W, kThreads, Epilogue>(a, shared);
}

#ifdef __CUDACC__
template <int W, int kPath, int kThreads>
__global__ void __launch_bounds__(kThreads, 1) all_reduce_kernel(const __grid_constant__ Arguments arguments) {
  __shared__ Shared shared;
  all_reduce_block<W, kPath, kThreads>(arguments, shared);
}
#endif

}  // namespace blackwell_kernels
