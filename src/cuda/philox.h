// Philox4x32-10 in the device's words: equal to philox4x32 in core/, with one 32 x 32 -> 64 bit product an instruction
// (from the portable form the compiler makes an extra addition of 0 of each of the 20 products).
#ifndef MASKLESS_SRC_CUDA_PHILOX_H_
#define MASKLESS_SRC_CUDA_PHILOX_H_

#include <cstdint>

#include "maskless/core/philox.h"

namespace maskless::cuda {

__device__ inline void multiply_wide(std::uint32_t a, std::uint32_t b, std::uint32_t& high, std::uint32_t& low) {
  asm("{ .reg .u64 product; mul.wide.u32 product, %2, %3; mov.b64 {%1, %0}, product; }"
      : "=r"(high), "=r"(low)
      : "r"(a), "r"(b));
}

/// One round, and the key's step to the next.
__device__ inline void philox_round(Words4& c, Words2& k) {
  std::uint32_t a_high, a_low, b_high, b_low;
  multiply_wide(kPhiloxM0, c.w[0], a_high, a_low);
  multiply_wide(kPhiloxM1, c.w[2], b_high, b_low);
  c = {{b_high ^ c.w[1] ^ k.w[0], b_low, a_high ^ c.w[3] ^ k.w[1], a_low}};
  k.w[0] += kPhiloxW0;
  k.w[1] += kPhiloxW1;
}

__device__ inline Words4 philox(Words4 counter, Words2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) philox_round(counter, key);
  return counter;
}

/// The same in a loop: for code that runs seldom and should be small.
__device__ inline Words4 philox_rolled(Words4 counter, Words2 key) {
#pragma unroll 1
  for (int round = 0; round < 10; ++round) philox_round(counter, key);
  return counter;
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_CUDA_PHILOX_H_
