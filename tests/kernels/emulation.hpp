// What the emulations share: numbers, and a kernel's blocks as threads. Included behind the kernels.
#pragma once

#include <memory>
#include <vector>

namespace blackwell_kernels {

// Mostly ordinary numbers; also zeros of both signs, denormals, infinity and the NaN that marks empty mailboxes.
inline uint16_t any_value(std::minstd_rand& random) {
  static const uint16_t special[] = {0x0000, 0x8000, 0x0001, 0x807f, 0x7f80, 0xffff, 0x7fc0};
  const unsigned pick = random();
  if (pick % 97 < 7) return special[pick % 97];
  return static_cast<uint16_t>(round_to_bf16(static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 256.0f));
}

inline void fill(std::vector<uint4>& data, std::minstd_rand& random) {
  uint16_t* values = reinterpret_cast<uint16_t*>(data.data());
  for (size_t i = 0; i < data.size() * kPerVector; ++i) values[i] = any_value(random);
}

inline float widen(uint16_t bits) { return bits_to_float(static_cast<uint32_t>(bits) << 16); }
inline float rounded(float value) { return bits_to_float(round_to_bf16(value) << 16); }
// The emulation sums squares in another order than a double does: one step of bfloat16 apart is equal.
inline bool close(uint16_t seen, double wanted) {
  if (std::isnan(wanted)) return std::isnan(widen(seen));
  if (std::isinf(wanted)) return widen(seen) == static_cast<float>(wanted);
  return std::fabs(widen(seen) - wanted) <= std::fabs(wanted) / 128.0 + 1e-38;
}

// One kernel of one rank, from its first thread to its last; `body` is what each thread does with its block's memory.
template <typename Shared, typename Body>
void run_blocks(int rank, int round, int count, int size, Body body) {
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::unique_ptr<Shared>> shared;
  std::vector<std::thread> threads;
  for (int b = 0; b < count; ++b) {
    blocks.push_back(std::make_unique<Block>(b, count, size));
    shared.push_back(std::make_unique<Shared>());
  }
  for (int b = 0; b < count; ++b) {
    for (int t = 0; t < size; ++t) {
      threads.emplace_back([&, b, t] {
        this_block = blocks[b].get();
        this_thread = t;
        pauses.seed(1 + 7919u * rank + 104729u * b + 31u * t + 15485863u * round);
        body(*shared[b]);
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace blackwell_kernels
