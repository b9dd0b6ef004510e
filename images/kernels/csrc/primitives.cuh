// What the kernels need from the machine, and nothing else, so that the same kernel source also compiles for a
// CPU with the primitives of the tests, where threads are real and a sanitizer can watch them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#define BK_DEVICE __device__ __forceinline__

namespace blackwell_kernels {

BK_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
BK_DEVICE int thread_count() { return static_cast<int>(blockDim.x); }
BK_DEVICE int block_index() { return static_cast<int>(blockIdx.x); }
BK_DEVICE int block_count() { return static_cast<int>(gridDim.x); }
BK_DEVICE void block_barrier() { __syncthreads(); }

// A butterfly: every lane ends with the same bits.
BK_DEVICE float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

BK_DEVICE float from_lane_xor(float value, int distance) {
  return __shfl_xor_sync(0xffffffffu, value, distance);
}

BK_DEVICE float exponential(float value) { return expf(value); }
BK_DEVICE float larger(float one, float other) { return fmaxf(one, other); }
BK_DEVICE float reciprocal_root(float value) { return rsqrtf(value); }

// Strong accesses of system scope: other GPUs, or other processes, are on the other side. A vector access is one
// access for each 32-bit word, so a reader may see some words of a 16-byte store before the others.
BK_DEVICE uint4 load_system(const uint4* place) {
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(place)
               : "memory");
  return value;
}

BK_DEVICE void store_system(uint4* place, uint4 value) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(place), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

BK_DEVICE uint32_t load_acquire_system(const uint32_t* place) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(place) : "memory");
  return value;
}

BK_DEVICE void store_release_system(uint32_t* place, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(place), "r"(value) : "memory");
}

// Tensors of this rank: read once, by nobody written meanwhile.
BK_DEVICE uint4 load_tensor(const uint4* place) { return __ldg(place); }
BK_DEVICE float load_tensor(const float* place) { return __ldg(place); }
// What other blocks of this launch wrote, or will read, once `last_to_arrive` has brought them together.
BK_DEVICE uint4 load_device(const uint4* place) { return __ldcg(place); }
BK_DEVICE float load_device(const float* place) { return __ldcg(place); }
BK_DEVICE void store_device(float* place, float value) { *place = value; }
// Words that this block alone uses, from one launch to the next.
BK_DEVICE uint32_t load_own(const uint32_t* place) { return *place; }
BK_DEVICE void store_own(uint32_t* place, uint32_t value) { *place = value; }

BK_DEVICE uint64_t nanoseconds() {
  uint64_t value;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
  return value;
}

BK_DEVICE bool take_lock(uint32_t* lock) { return atomicCAS(lock, 0u, 1u) == 0u; }
// Whether this is the last of `count` blocks; one thread of each calls it, behind a barrier. The counter is then
// as it was before. What all blocks wrote before is visible to the last one behind its next barrier.
BK_DEVICE bool last_to_arrive(uint32_t* counter, uint32_t count) {
  __threadfence();
  const bool last = atomicInc(counter, count - 1) == count - 1;
  __threadfence();
  return last;
}
BK_DEVICE void fence_system() { __threadfence_system(); }
// Gives the thread that writes the diagnosis time to finish, then ends the kernel for everybody.
BK_DEVICE void stop_kernel(bool writer) {
  if (!writer) {
    for (int step = 0; step < 100; ++step) __nanosleep(1000000);
  }
  __trap();
}

BK_DEVICE float bits_to_float(uint32_t bits) { return __uint_as_float(bits); }
BK_DEVICE uint32_t float_to_bits(float value) { return __float_as_uint(value); }

}  // namespace blackwell_kernels
