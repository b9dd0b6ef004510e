// The kernels' machine on a CPU: every GPU thread is a thread of the system, a block has a real barrier, memory
// that ranks share is accessed with real atomics. Random pauses make peers early and late. One file includes it.
#pragma once

#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>

#define BK_DEVICE inline

struct uint4 {
  uint32_t x, y, z, w;
};

namespace blackwell_kernels {

struct Block {
  Block(int number, int count, int threads) : index(number), blocks(count), size(threads), meet(threads) {}
  int index, blocks, size;
  std::barrier<> meet;
  float lanes[1024];
};

inline thread_local Block* this_block = nullptr;
inline thread_local int this_thread = 0;
inline thread_local std::minstd_rand pauses;
inline std::atomic<int> stopped{0};

inline int thread_index() { return this_thread; }
inline int thread_count() { return this_block->size; }
inline int block_index() { return this_block->index; }
inline int block_count() { return this_block->blocks; }
inline void block_barrier() { this_block->meet.arrive_and_wait(); }

// One warp a block: the tests use 256 columns.
inline float from_lane_xor(float value, int distance) {
  float* lanes = this_block->lanes;
  lanes[this_thread] = value;
  block_barrier();
  value = lanes[this_thread ^ distance];
  block_barrier();
  return value;
}

inline float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance >>= 1) value += from_lane_xor(value, distance);
  return value;
}

inline float exponential(float value) { return std::exp(value); }
inline float larger(float one, float other) { return std::fmax(one, other); }
inline float reciprocal_root(float value) { return 1.0f / std::sqrt(value); }

inline void maybe_pause() {
  if (pauses() % 64 == 0) std::this_thread::yield();
}

inline uint32_t load_word(const uint32_t* place) {
  return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(place)).load(std::memory_order_relaxed);
}
inline void store_word(uint32_t* place, uint32_t value) {
  std::atomic_ref<uint32_t>(*place).store(value, std::memory_order_relaxed);
}

inline uint4 load_system(const uint4* place) {
  std::this_thread::yield();
  return uint4{load_word(&place->x), load_word(&place->y), load_word(&place->z), load_word(&place->w)};
}

// Words of one vector arrive one by one, in any order.
inline void store_system(uint4* place, uint4 value) {
  uint32_t* words = &place->x;
  const uint32_t values[4] = {value.x, value.y, value.z, value.w};
  const unsigned first = pauses() % 4;
  for (unsigned i = 0; i < 4; ++i) {
    store_word(words + (first + i) % 4, values[(first + i) % 4]);
    maybe_pause();
  }
}

inline uint32_t load_acquire_system(const uint32_t* place) {
  std::this_thread::yield();
  return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(place)).load(std::memory_order_acquire);
}
inline void store_release_system(uint32_t* place, uint32_t value) {
  maybe_pause();
  std::atomic_ref<uint32_t>(*place).store(value, std::memory_order_release);
}

inline uint4 load_tensor(const uint4* place) { return *place; }
inline float load_tensor(const float* place) { return *place; }
inline uint4 load_device(const uint4* place) { return *place; }
inline float load_device(const float* place) { return *place; }
inline void store_device(float* place, float value) { *place = value; }
inline uint32_t load_own(const uint32_t* place) { return *place; }
inline void store_own(uint32_t* place, uint32_t value) { *place = value; }

inline uint64_t nanoseconds() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}
inline bool take_lock(uint32_t* lock) {
  uint32_t free = 0;
  return std::atomic_ref<uint32_t>(*lock).compare_exchange_strong(free, 1u);
}
inline bool last_to_arrive(uint32_t* counter, uint32_t count) {
  const bool last = std::atomic_ref<uint32_t>(*counter).fetch_add(1, std::memory_order_acq_rel) == count - 1;
  if (last) std::atomic_ref<uint32_t>(*counter).store(0, std::memory_order_release);
  return last;
}
inline void fence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void stop_kernel(bool) { stopped.fetch_add(1); }

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace blackwell_kernels
