// The Triton layout: word 0 of a Philox call an element, as tl.rand has it, by what word 0 needs of the ten rounds.
#ifndef MASKLESS_SRC_CUDA_TRITON_H_
#define MASKLESS_SRC_CUDA_TRITON_H_

#include <cstdint>

#include "cuda/philox.h"

namespace maskless::cuda {

/// Upper halves of products by Philox's multipliers m as one fused multiply-add of doubles, rounded towards zero: for a
/// word x, (2^52 + x) m / 2^32 + 2^52 - 2^20 m = 2^52 + x m / 2^32, and x is the low word of the bits of 2^52 + x. The
/// result is again 2^52 + a word, ready for the next product once that word is replaced.
class DoubleProduct {
 public:
  /// Are there units for doubles enough? Most devices have one to 64 for single precision.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900)
  static constexpr bool kFast = true;
#else
  static constexpr bool kFast = false;
#endif

  __device__ std::uint32_t high_half(bool second, std::uint32_t x) {
    constexpr double kTwo20 = 0x1p20, kTwo32 = 0x1p32, kTwo52 = 0x1p52;
    const double m = second ? kPhiloxM1 : kPhiloxM0;
    asm("{ .reg .f64 d; mov.b64 d, {%1, %0}; fma.rz.f64 d, d, %2, %3; mov.b64 {%1, %0}, d; }"
        : "+r"(top_), "+r"(x)
        : "d"(m / kTwo32), "d"(kTwo52 - kTwo20 * m));
    return x;
  }

 private:
  std::uint32_t top_ = 0x43300000;  // of 2^52 + x, x < 2^32
};

/// Words 0 of positions high << 32 | low, ... low + kCount - 1. `zero` is 0: one that the compiler cannot foresee keeps
/// everything here behind what made it, and what is multiplied by 1 + zero in the multiplier's pipe. Of the 20 products
/// of a call 15 remain, each of which keeps the ALU (exclusive ors, comparisons) waiting for one instruction on an
/// H200: together they are the limit, so the fewer instructions for the ALU, the better.
template <int kCount>
__device__ inline void triton_words(std::uint64_t seed, std::uint32_t high, std::uint32_t low, std::uint32_t zero,
                                    std::uint32_t (&word)[kCount]) {
  Words2 key[10];
  key[0] = philox_key(seed);
#pragma unroll
  for (int round = 1; round < 10; ++round)
    key[round] = {{key[round - 1].w[0] + kPhiloxW0, key[round - 1].w[1] + kPhiloxW1}};

  // Counter words 2 and 3 are 0, so that half of rounds 1 and 2 is the same for all.
  const std::uint64_t common = std::uint64_t{kPhiloxM0} * (high ^ key[0].w[0]);
  const auto common_high = static_cast<std::uint32_t>(common >> 32), common_low = static_cast<std::uint32_t>(common);
  std::uint64_t product = std::uint64_t{kPhiloxM0} * (low + zero);
#pragma unroll
  for (int i = 0; i < kCount; ++i, product += kPhiloxM0 + zero) {
    // The two words to be multiplied, and the low halves of the products that made them. `a` meets multiplier 0 in odd
    // rounds and multiplier 1 in even ones, `b` the other way around. Word 0 of the last round is an `a`.
    std::uint32_t a = static_cast<std::uint32_t>(product >> 32) ^ key[0].w[1], a_low = 0;
    std::uint32_t b = 0, b_low = common_low, a_high, b_high = 0;
    multiply_wide(kPhiloxM1, a, a_high, a_low);
    a = a_high ^ key[1].w[0];
    b = common_high ^ static_cast<std::uint32_t>(product) ^ key[1].w[1];
    DoubleProduct doubles;
#pragma unroll
    for (int round = 3; round <= 10; ++round) {
      const bool odd = round % 2 != 0;
      const std::uint32_t a_times = odd ? kPhiloxM0 : kPhiloxM1, b_times = odd ? kPhiloxM1 : kPhiloxM0;
      std::uint32_t next_a_low = 0, next_b_low = 0;
      if (round <= 7) {
        multiply_wide(a_times, a, a_high, next_a_low);
      } else {
        a_high = DoubleProduct::kFast ? doubles.high_half(!odd, a) : __umulhi(a_times, a);
      }
      if (round <= 8) {
        multiply_wide(b_times, b, b_high, next_b_low);
      } else {
        next_b_low = b_times * b;
      }
      a = a_high ^ b_low ^ key[round - 1].w[odd ? 1 : 0];
      b = b_high ^ a_low ^ key[round - 1].w[odd ? 0 : 1];
      a_low = next_a_low;
      b_low = next_b_low;
    }
    word[i] = a;
  }
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_CUDA_TRITON_H_
