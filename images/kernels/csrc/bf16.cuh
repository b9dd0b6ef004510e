// Eight bfloat16 values in a 16-byte vector.
#pragma once

#ifdef __CUDACC__
#include "primitives.cuh"
#else
#include "primitives_host.hpp"
#endif

namespace blackwell_kernels {

constexpr int kPerVector = 8;

BK_DEVICE uint32_t word_of(const uint4& vector, int index) {
  return index == 0 ? vector.x : index == 1 ? vector.y : index == 2 ? vector.z : vector.w;
}

// Value `index` (0 to 7) of a vector, exactly.
BK_DEVICE float value_of(const uint4& vector, int index) {
  const uint32_t word = word_of(vector, index >> 1);
  return bits_to_float(index & 1 ? word & 0xffff0000u : word << 16);
}

// Round to nearest even, as `cvt.rn.bf16` does; every NaN becomes 0x7fff. Nothing rounds to 0xffff, the pattern
// that means "not yet written" in a mailbox.
BK_DEVICE uint32_t round_to_bf16(float value) {
#ifdef __CUDA_ARCH__
  unsigned short rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
  return rounded;
#else
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
#endif
}

BK_DEVICE uint4 pack(const float (&values)[kPerVector]) {
  uint32_t words[4];
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    words[word] = round_to_bf16(values[2 * word]) | round_to_bf16(values[2 * word + 1]) << 16;
  }
  return uint4{words[0], words[1], words[2], words[3]};
}

}  // namespace blackwell_kernels
