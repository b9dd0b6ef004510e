// Runs the all-reduce with the hyper-connections' boundary on a CPU: W ranks, some blocks each, every GPU thread a
// thread. Every output of every rank is held against the formulas in double precision.
//
//   emulate_mhc WORLD PATH ROUNDS FIRST_ROUND
//
// Tokens, inputs and what is asked for (all, without a norm, the post step alone) change from round to round.
#include <cstdio>
#include <string>

#include "mhc.cuh"
#include "emulation.hpp"

using namespace blackwell_kernels;

namespace {

constexpr int kSlices = 3, kVectors = 32, kTokens = 4, kBlocks = 2, kHidden = kSlices * kVectors * kPerVector;
constexpr int kRows = kTokens * kSlices, kFlat = kStreams * kHidden, kIterations = 5;
constexpr double kRmsEps = 1e-6, kHcEps = 1e-6, kNormEps = 1e-5;
enum Asked { kAll, kNoNorm, kPostAlone, kAsked };

// Everything that one rank reads and writes in one round; all but x is the same on all ranks.
struct Tensors {
  std::vector<uint4> x, streams, weight, out, streams_out;
  std::vector<float> post, comb, post_out, comb_out, partials;
  std::vector<uint32_t> arrivals;

  Tensors()
      : x(kRows * kVectors), streams(kStreams * kRows * kVectors), weight(kSlices * kVectors), out(x.size()),
        streams_out(streams.size()), post(kTokens * kStreams), comb(kTokens * kStreams * kStreams),
        post_out(post.size()), comb_out(comb.size()), partials(kRows * kMhcSums), arrivals(kTokens) {}
};

double at(const std::vector<uint4>& data, int row, int column) {
  return widen(reinterpret_cast<const uint16_t*>(data.data())[row * kHidden + column]);
}

// In half steps of bfloat16 at the size of what was added; NaN must meet NaN, and an infinity itself.
void near(const char* what, int token, int place, double seen, double wanted, double scale, double steps) {
  if (std::isnan(wanted) ? std::isnan(seen) : seen == wanted) return;
  if (std::isfinite(wanted) && std::fabs(seen - wanted) <= steps * scale / 256.0 + 1e-30) return;
  std::printf("wrong: %s of token %d, place %d: %.9g, not %.9g\n", what, token, place, seen, wanted);
  std::exit(1);
}

// Rows to sum 1 by softmax, then columns, then both in turn.
void balance(double (&matrix)[kStreams][kStreams]) {
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    for (int i = 0; i < kStreams; ++i) {
      double sum = 0, most = -1e300;
      for (int j = 0; j < kStreams; ++j) most = std::fmax(most, matrix[i][j]);
      if (iteration == 0) {
        for (int j = 0; j < kStreams; ++j) matrix[i][j] = std::exp(matrix[i][j] - most);
      }
      for (int j = 0; j < kStreams; ++j) sum += matrix[i][j];
      for (int j = 0; j < kStreams; ++j) {
        matrix[i][j] = iteration == 0 ? matrix[i][j] / sum + kHcEps : matrix[i][j] / (sum + kHcEps);
      }
    }
    for (int j = 0; j < kStreams; ++j) {
      double sum = 0;
      for (int i = 0; i < kStreams; ++i) sum += matrix[i][j];
      for (int i = 0; i < kStreams; ++i) matrix[i][j] /= sum + kHcEps;
    }
  }
}

double squashed(double value) { return 1.0 / (1.0 + std::exp(-value)); }

template <int W>
struct Group {
  std::vector<std::vector<uint4>> slabs{W};
  std::vector<Diagnosis> diagnoses{W};
  std::vector<std::vector<Tensors>> rounds{W};
  std::vector<float> fn, scale, base;
  Layout layout;

  explicit Group(uint32_t first) : fn(kMixes * kFlat), scale(3), base(kMixes) {
    const int blocks[kPaths] = {kBlocks, kBlocks, kBlocks, kBlocks};
    layout = make_layout(W, kRows, kRows, kVectors * kPerVector, blocks);
    for (auto& slab : slabs) {
      slab.assign(layout.bytes / sizeof(uint4), uint4{0, 0, 0, 0});
      uint8_t* bytes = reinterpret_cast<uint8_t*>(slab.data());
      std::memset(bytes + layout.push_one, 0xff, layout.bytes - layout.push_one);
      for (uint64_t place = layout.epochs; place < layout.pull_one; place += 4) std::memcpy(bytes + place, &first, 4);
    }
    std::minstd_rand random(77);
    any(fn, random, -0.05f, 0.05f);
    any(scale, random, 0.5f, 2.0f);
    any(base, random, -1.0f, 1.0f);
  }

  static void any(std::vector<float>& data, std::minstd_rand& random, float low, float high) {
    for (float& value : data) value = low + (high - low) * static_cast<float>(random() % 10007) / 10007.0f;
  }

  static void any(std::vector<uint4>& data, std::minstd_rand& random, bool infinite) {
    uint16_t* values = reinterpret_cast<uint16_t*>(data.data());
    for (size_t i = 0; i < data.size() * kPerVector; ++i) {
      do values[i] = any_value(random);
      while (!infinite && !std::isfinite(widen(values[i])));
    }
  }

  MhcArguments arguments(int rank, int round, int tokens, Asked asked) {
    MhcArguments a{};
    Tensors& mine = rounds[rank][round];
    for (int peer = 0; peer < W; ++peer) a.slab[peer] = reinterpret_cast<uint8_t*>(slabs[peer].data());
    a.layout = layout;
    a.x = mine.x.data();
    a.weight = asked == kAll ? mine.weight.data() : nullptr;
    a.out = mine.out.data();
    a.diagnosis = &diagnoses[rank];
    a.patience = 20000000000ull;
    a.eps = kNormEps;
    a.rows = tokens * kSlices;
    a.vectors = kVectors;
    a.rank = rank;
    a.kind = kMhc;
    a.streams = mine.streams.data();
    a.post = mine.post.data();
    a.comb = mine.comb.data();
    a.fn = asked == kPostAlone ? nullptr : fn.data();
    a.scale = scale.data();
    a.base = base.data();
    a.streams_out = mine.streams_out.data();
    a.post_out = mine.post_out.data();
    a.comb_out = mine.comb_out.data();
    a.partials = mine.partials.data();
    a.arrivals = mine.arrivals.data();
    a.rms_eps = kRmsEps;
    a.hc_eps = kHcEps;
    a.iterations = kIterations;
    a.slices = kSlices;
    return a;
  }

  long check(int round, int tokens, Asked asked) {
    const Tensors& first = rounds[0][round];
    for (int token = 0; token < tokens; ++token) {
      check_post(round, token);
      if (asked != kPostAlone) check_next(first, token, asked == kAll);
    }
    for (int rank = 0; rank < W; ++rank) {
      const Tensors& other = rounds[rank][round];
      for (uint32_t count : other.arrivals) near("arrivals", 0, rank, count, 0, 0, 0);
      const bool same = !std::memcmp(first.out.data(), other.out.data(), first.out.size() * sizeof(uint4)) &&
                        !std::memcmp(first.streams_out.data(), other.streams_out.data(), other.streams_out.size() * 16) &&
                        !std::memcmp(first.comb_out.data(), other.comb_out.data(), other.comb_out.size() * 4) &&
                        !std::memcmp(first.post_out.data(), other.post_out.data(), other.post_out.size() * 4);
      if (same) continue;
      std::printf("wrong: rank %d has other bits than rank 0\n", rank);
      std::exit(1);
    }
    return static_cast<long>(W) * tokens * (kFlat + (asked == kPostAlone ? 0 : kHidden + kMixes - kStreams));
  }

  // The sum in the documented order and rounding is exact; what is added to it is not.
  void check_post(int round, int token) {
    const Tensors& first = rounds[0][round];
    for (int column = 0; column < kHidden; ++column) {
      float sum = 0;
      for (int rank = 0; rank < W; ++rank) sum += static_cast<float>(at(rounds[rank][round].x, token, column));
      const double y = rounded(sum);
      for (int i = 0; i < kStreams; ++i) {
        double wanted = first.post[token * kStreams + i] * y, size = std::fabs(wanted);
        for (int j = 0; j < kStreams; ++j) {
          const double part = first.comb[(token * kStreams + j) * kStreams + i] *
                              at(first.streams, token * kStreams + j, column);
          wanted += part;
          size += std::fabs(part);
        }
        near("streams", token, column, at(first.streams_out, token * kStreams + i, column), wanted, size, 1.01);
      }
    }
  }

  // From the streams as they were written, which is what the formulas read.
  void check_next(const Tensors& first, int token, bool norm) {
    double mix[kMixes] = {}, squares = 0, matrix[kStreams][kStreams], pre[kStreams];
    for (int i = 0; i < kStreams; ++i) {
      for (int column = 0; column < kHidden; ++column) {
        const double value = at(first.streams_out, token * kStreams + i, column);
        squares += value * value;
        for (int m = 0; m < kMixes; ++m) mix[m] += fn[m * kFlat + i * kHidden + column] * value;
      }
    }
    for (double& value : mix) value /= std::sqrt(squares / kFlat + kRmsEps);
    for (int i = 0; i < kStreams; ++i) {
      pre[i] = squashed(scale[0] * mix[i] + base[i]) + kHcEps;
      const double post = 2 * squashed(scale[1] * mix[kStreams + i] + base[kStreams + i]);
      near("post", token, i, first.post_out[token * kStreams + i], post, 2.0, 0.01);
      for (int j = 0; j < kStreams; ++j) {
        const int place = 2 * kStreams + i * kStreams + j;
        matrix[i][j] = scale[2] * mix[place] + base[place];
      }
    }
    balance(matrix);
    for (int place = 0; place < kStreams * kStreams; ++place) {
      const double wanted = matrix[place / kStreams][place % kStreams];
      near("comb", token, place, first.comb_out[token * kStreams * kStreams + place], wanted, 1.0, 0.01);
    }
    std::vector<double> value(kHidden), size(kHidden);
    double mean = 0;
    for (int column = 0; column < kHidden; ++column) {
      for (int i = 0; i < kStreams; ++i) {
        const double part = pre[i] * at(first.streams_out, token * kStreams + i, column);
        value[column] += part;
        size[column] += std::fabs(part);
      }
      mean += value[column] * value[column] / kHidden;
    }
    for (int column = 0; column < kHidden; ++column) {
      const double factor = norm ? at(first.weight, 0, column) / std::sqrt(mean + kNormEps) : 1.0;
      near("output", token, column, at(first.out, token, column), value[column] * factor,
           size[column] * std::fabs(factor), 2.1);
    }
  }

  template <int kPath>
  int run(int count) {
    std::minstd_rand random(7 + W * 10 + kPath);
    std::vector<int> tokens(count);
    for (auto& rank : rounds) rank = std::vector<Tensors>(count);
    for (int round = 0; round < count; ++round) {
      tokens[round] = 1 + static_cast<int>(random() % kTokens);
      for (int r = 0; r < W; ++r) {
        std::minstd_rand own(1000 * round + r + 1), common(1000 * round + 500);
        Tensors& mine = rounds[r][round];
        // Now and then an infinity or a NaN, which then is all over its token.
        any(mine.x, own, round % 4 == 3);
        any(mine.streams, common, false);
        any(mine.weight, common, false);
        any(mine.post, common, 0.0f, 2.0f);
        any(mine.comb, common, 0.0f, 1.0f);
      }
    }
    std::vector<std::thread> ranks;
    for (int r = 0; r < W; ++r) {
      ranks.emplace_back([&, r] {
        for (int round = 0; round < count; ++round) {
          const MhcArguments a = arguments(r, round, tokens[round], static_cast<Asked>(round % kAsked));
          constexpr bool one = kPath == kPushOneShot || kPath == kPullOneShot;
          const int blocks = std::min(one ? a.rows : (a.rows + W - 1) / W, kBlocks);
          run_blocks<MhcShared>(r, round, blocks, kVectors, [&](MhcShared& shared) {
            all_reduce_block<W, kPath, kNarrow, MhcEpilogue>(a, shared);
          });
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    long values = 0;
    for (int round = 0; round < count; ++round) {
      values += check(round, tokens[round], static_cast<Asked>(round % kAsked));
    }
    std::printf("rounds %d values %ld\n", count, values);
    return 0;
  }

  int run(int path, int count) {
    switch (path) {
      case kPushOneShot: return run<kPushOneShot>(count);
#ifndef EMULATE_ONE_PATH  // compiles in a third of the time
      case kPushTwoShot: return run<kPushTwoShot>(count);
      case kPullOneShot: return run<kPullOneShot>(count);
      case kPullTwoShot: return run<kPullTwoShot>(count);
#endif
      default: return 2;
    }
  }
};

}  // namespace

int main(int count, char** words) {
  if (count < 5) return 2;
  const int world = std::atoi(words[1]), path = std::atoi(words[2]), rounds = std::atoi(words[3]);
  const uint32_t first = static_cast<uint32_t>(std::strtoul(words[4], nullptr, 0));
  switch (world) {
    case 2: return Group<2>(first).run(path, rounds);
#ifndef EMULATE_ONE_PATH  // of four ranks one path is enough
    case 4: return path == kPushTwoShot ? Group<4>(first).run<kPushTwoShot>(rounds) : 2;
#endif
    default: return 2;
  }
}
