// Random numbers, one at a time: the oracle of the tests and the code for machines without vectors. C++17, host and
// device. docs/spec.md states the same in words.
#ifndef MASKLESS_SRC_RANDOM_RANDOM_REFERENCE_H_
#define MASKLESS_SRC_RANDOM_RANDOM_REFERENCE_H_

#include <cstdint>

#include "maskless/core/normal.h"
#include "maskless/core/uniform.h"

namespace maskless::reference {

inline constexpr std::uint32_t kWide = 0x80000000u;  // counter word 2 of 64-bit draws

/// Four words: 4 * block ... of draw number `attempt`.
MASKLESS_HOST_DEVICE inline Words4 random_words(std::uint64_t seed, std::uint32_t stream, std::uint64_t block,
                                                std::uint32_t attempt) {
  return philox4x32(Words4{{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), attempt,
                            counter_tag(Op::kRandom, stream)}},
                    philox_key(seed));
}

MASKLESS_HOST_DEVICE inline std::uint32_t random_word(std::uint64_t seed, std::uint32_t stream, std::uint64_t index,
                                                      std::uint32_t attempt = 0) {
  return random_words(seed, stream, index >> 2, attempt)[static_cast<unsigned>(index & 3)];
}

/// A multiple of 2^-24 in [0, 1).
MASKLESS_HOST_DEVICE inline float uniform_of(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

/// 0 ... range - 1, without bias. D. Lemire, "Fast random integer generation in an interval", ACM TOMACS 29 (2019).
MASKLESS_HOST_DEVICE inline std::uint64_t random_below(std::uint64_t seed, std::uint32_t stream, std::uint64_t index,
                                                       std::uint64_t range, std::uint64_t unfair) {
  for (std::uint32_t attempt = 0;; ++attempt) {
    const std::uint64_t product = random_word(seed, stream, index, attempt) * range;  // range <= 2^32
    if (static_cast<std::uint32_t>(product) >= unfair) return product >> 32;
  }
}

/// The high half of the 128-bit product.
MASKLESS_HOST_DEVICE inline std::uint64_t multiply_high(std::uint64_t x, std::uint64_t y) {
  const std::uint64_t x0 = x & 0xFFFFFFFFu, x1 = x >> 32, y0 = y & 0xFFFFFFFFu, y1 = y >> 32;
  const std::uint64_t middle = (x0 * y0 >> 32) + (x1 * y0 & 0xFFFFFFFFu) + (x0 * y1 & 0xFFFFFFFFu);
  return x1 * y1 + (x1 * y0 >> 32) + (x0 * y1 >> 32) + (middle >> 32);
}

/// The same for range > 2^32, from two words a draw.
MASKLESS_HOST_DEVICE inline std::uint64_t random_below_wide(std::uint64_t seed, std::uint32_t stream,
                                                            std::uint64_t index, std::uint64_t range,
                                                            std::uint64_t unfair) {
  for (std::uint32_t attempt = 0;; ++attempt) {
    const Words4 words = random_words(seed, stream, index >> 1, kWide | attempt);
    const unsigned at = static_cast<unsigned>(index & 1) * 2;
    const std::uint64_t x = std::uint64_t{words[at + 1]} << 32 | words[at];
    if (x * range >= unfair) return multiply_high(x, range);
  }
}

/// Element `index` of a standard normal sequence: words 2j and 2j + 1 give numbers 2j and 2j + 1.
MASKLESS_HOST_DEVICE inline float random_normal(std::uint64_t seed, std::uint32_t stream, std::uint64_t index) {
  const Words4 words = random_words(seed, stream, index >> 2, 0);
  const unsigned at = static_cast<unsigned>(index & 2);
  const Normal2 pair = normal_pair(words[at], words[at + 1]);
  return (index & 1) == 0 ? pair.first : pair.second;
}

}  // namespace maskless::reference

#endif  // MASKLESS_SRC_RANDOM_RANDOM_REFERENCE_H_
