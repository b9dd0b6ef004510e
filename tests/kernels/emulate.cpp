// Runs the kernels' own source on a CPU: W ranks, some blocks each, one system thread for each GPU thread.
//
//   emulate WORLD PATH ROUNDS FIRST_ROUND [absent RANK]
//
// Rows, kind and inputs change from round to round. Prints `rounds N values M` when every output of every rank is
// the reference's bit for bit; with `absent` one rank takes no part, and the diagnosis is printed.
#include <cstdio>
#include <string>

#include "all_reduce.cuh"
#include "emulation.hpp"

using namespace blackwell_kernels;

namespace {

constexpr int kHidden = 256, kVectors = kHidden / kPerVector, kRows = 11, kBlocks = 2;

// What one rank has in one round.
struct Tensors {
  std::vector<uint4> x, residual, weight, out, residual_out;

  Tensors() : weight(kVectors) {
    for (auto* data : {&x, &residual, &out, &residual_out}) data->resize(static_cast<size_t>(kRows) * kVectors);
  }
};

struct Rank {
  std::vector<uint4> slab;
  std::vector<Tensors> rounds;
  Diagnosis diagnosis{};
};

uint16_t at_value(const std::vector<uint4>& data, int row, int column) {
  return reinterpret_cast<const uint16_t*>(data.data())[row * kHidden + column];
}

bool same(uint16_t seen, float wanted) {
  return std::isnan(wanted) ? std::isnan(widen(seen)) : seen == round_to_bf16(wanted);
}
template <int W>
struct Group {
  std::vector<Rank> ranks{W};
  Layout layout;
  uint32_t first;

  explicit Group(uint32_t first_round) : first(first_round) {
    const int blocks[kPaths] = {kBlocks, kBlocks, kBlocks, kBlocks};
    layout = make_layout(W, kRows, kRows, kHidden, blocks);
    for (Rank& rank : ranks) {
      rank.slab.assign(layout.bytes / sizeof(uint4), uint4{0, 0, 0, 0});
      uint8_t* bytes = reinterpret_cast<uint8_t*>(rank.slab.data());
      std::memset(bytes + layout.push_one, 0xff, layout.bytes - layout.push_one);
      for (uint64_t place = layout.epochs; place < layout.pull_one; place += 4) std::memcpy(bytes + place, &first, 4);
    }
  }

  Arguments arguments(int rank, int round, int rows, int kind) {
    Arguments a{};
    for (int peer = 0; peer < W; ++peer) a.slab[peer] = reinterpret_cast<uint8_t*>(ranks[peer].slab.data());
    Tensors& mine = ranks[rank].rounds[round];
    a.layout = layout;
    a.x = mine.x.data();
    a.residual = mine.residual.data();
    a.weight = mine.weight.data();
    a.out = mine.out.data();
    a.residual_out = mine.residual_out.data();
    a.diagnosis = &ranks[rank].diagnosis;
    a.patience = 20000000000ull;
    a.eps = 1e-6f;
    a.rows = rows;
    a.vectors = kVectors;
    a.rank = rank;
    a.kind = kind;
    return a;
  }

  // Whether every output of the ranks is what float and double arithmetic give.
  long check(int round, int rows, int kind) {
    std::vector<Tensors*> all;
    for (Rank& rank : ranks) all.push_back(&rank.rounds[round]);
    long values = 0;
    for (int row = 0; row < rows; ++row) {
      float sum[kHidden], v[kHidden];
      double squares = 0;
      for (int c = 0; c < kHidden; ++c) {
        sum[c] = widen(at_value(all[0]->x, row, c));
        for (int r = 1; r < W; ++r) sum[c] += widen(at_value(all[r]->x, row, c));
        const float residual = widen(at_value(all[0]->residual, row, c));
        v[c] = kind == kPlain            ? rounded(sum[c])
               : kind == kNormOfUnrounded ? rounded(sum[c]) + residual
                                          : rounded(sum[c] + residual);
        squares += static_cast<double>(v[c]) * v[c];
      }
      for (Tensors* rank : all) {
        for (int c = 0; c < kHidden; ++c, ++values) {
          const uint16_t out = at_value(rank->out, row, c);
          const double scale = 1.0 / std::sqrt(squares / kHidden + 1e-6f);
          const bool right = kind < kNormOfUnrounded
                                 ? same(out, v[c])
                                 : same(at_value(rank->residual_out, row, c), v[c]) &&
                                       close(out, v[c] * scale * widen(at_value(rank->weight, 0, c)));
          const bool equal = out == at_value(all[0]->out, row, c);
          if (right && equal) continue;
          std::printf("wrong: kind %d row %d column %d: %04x, rank 0 has %04x\n", kind, row, c, out,
                      at_value(all[0]->out, row, c));
          std::exit(1);
        }
      }
    }
    return values;
  }

  // Each rank runs all rounds as fast as its peers let it, as streams do.
  template <int kPath>
  int run(int rounds, int absent) {
    std::minstd_rand random(7 + W * 10 + kPath);
    std::vector<int> rows(rounds), kinds(rounds);
    for (Rank& rank : ranks) rank.rounds = std::vector<Tensors>(rounds);
    for (int round = 0; round < rounds; ++round) {
      rows[round] = 1 + static_cast<int>(random() % kRows);
      kinds[round] = static_cast<int>(random() % kMhc);
      for (int r = 0; r < W; ++r) {
        std::minstd_rand own(1000 * round + r + 1), common(1000 * round + 500);
        Tensors& mine = ranks[r].rounds[round];
        fill(mine.x, own);
        fill(mine.residual, common);
        fill(mine.weight, common);
      }
    }
    std::vector<std::thread> streams;
    for (int r = 0; r < W; ++r) {
      if (r == absent) continue;
      streams.emplace_back([&, r] {
        for (int round = 0; round < rounds; ++round) launch<kPath>(r, round, rows[round], kinds[round], absent);
      });
    }
    for (std::thread& stream : streams) stream.join();
    if (absent >= 0) return report(absent);
    long values = 0;
    for (int round = 0; round < rounds; ++round) values += check(round, rows[round], kinds[round]);
    std::printf("rounds %d values %ld\n", rounds, values);
    return 0;
  }

  // One kernel of one rank, from its first thread to its last.
  template <int kPath>
  void launch(int rank, int round, int rows, int kind, int absent) {
    constexpr bool one = kPath == kPushOneShot || kPath == kPullOneShot;
    const int count = std::min(one ? rows : (rows + W - 1) / W, kBlocks);
    Arguments a = arguments(rank, round, rows, kind);
    if (absent >= 0) a.patience = 50000000ull;
    a.traps = absent >= 0;
    run_blocks<Shared>(rank, round, count, kVectors, [&](Shared& shared) { all_reduce_block<W, kPath, 1024>(a, shared); });
  }

  int report(int absent) {
    for (int r = 0; r < W; ++r) {
      const Diagnosis& d = ranks[r].diagnosis;
      if (r != absent) std::printf("rank %d valid %u missed %u round %u\n", r, d.valid, d.peer, d.round - first);
    }
    std::printf("stopped %s\n", stopped.load() > 0 ? "yes" : "no");
    return 0;
  }

  int run(int path, int rounds, int absent) {
    switch (path) {
      case kPushOneShot: return run<kPushOneShot>(rounds, absent);
      case kPushTwoShot: return run<kPushTwoShot>(rounds, absent);
      case kPullOneShot: return run<kPullOneShot>(rounds, absent);
      case kPullTwoShot: return run<kPullTwoShot>(rounds, absent);
      default: return 2;
    }
  }
};

}  // namespace

int main(int count, char** words) {
  if (count < 5) return 2;
  const int world = std::atoi(words[1]), path = std::atoi(words[2]), rounds = std::atoi(words[3]);
  const uint32_t first = static_cast<uint32_t>(std::strtoul(words[4], nullptr, 0));
  const int absent = count > 6 && std::string(words[5]) == "absent" ? std::atoi(words[6]) : -1;
  switch (world) {
    case 2: return Group<2>(first).run(path, rounds, absent);
#ifndef EMULATE_TWO_RANKS  // compiles in a third of the time
    case 4: return Group<4>(first).run(path, rounds, absent);
    case 8: return Group<8>(first).run(path, rounds, absent);
#endif
    default: return 2;
  }
}
