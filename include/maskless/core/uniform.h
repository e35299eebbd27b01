// Position to uniform integer: the addressing of every mask. A mask is a pure function of (seed, stream, logical
// position); nothing here knows of devices, threads, tiles, strides or shards. docs/spec.md states the same in words.
#ifndef MASKLESS_CORE_UNIFORM_H_
#define MASKLESS_CORE_UNIFORM_H_

#include <cstdint>

#include "maskless/core/philox.h"
#include "maskless/core/threshold.h"

namespace maskless {

/// Operations draw from disjoint counters. 0 is left to the Triton layout.
enum class Op : std::uint32_t { kDropout = 1, kDropconnect = 2, kSigns = 3, kSjlt = 4, kRandom = 5 };

inline constexpr std::uint32_t kStreamLimit = 1u << 24;  // streams are 0 ... 2^24 - 1

/// Counter word 3: which operation, which call site (layer).
MASKLESS_HOST_DEVICE constexpr std::uint32_t counter_tag(Op op, std::uint32_t stream) {
  return static_cast<std::uint32_t>(op) << 24 | stream;
}

/// Half h (0 ... 7) of four words: bits 16 * (h & 1) ... of word h >> 1.
MASKLESS_HOST_DEVICE constexpr std::uint32_t half_word(Words4 words, unsigned h) {
  return words.w[h >> 1] >> (16 * (h & 1)) & 0xFFFFu;
}

/// Dropout: the eight high (part 0) or low (part 1) halves of u for elements 8 * block ... 8 * block + 7.
MASKLESS_HOST_DEVICE constexpr Words4 dropout_words(std::uint64_t seed, std::uint64_t block, std::uint32_t part,
                                                    std::uint32_t stream) {
  return philox4x32(Words4{{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), part,
                            counter_tag(Op::kDropout, stream)}},
                    philox_key(seed));
}

/// Dropout: u of element `index`, the row-major position in the logical, global tensor.
MASKLESS_HOST_DEVICE constexpr std::uint32_t dropout_uniform(std::uint64_t seed, std::uint64_t index,
                                                             std::uint32_t stream = 0) {
  const unsigned h = static_cast<unsigned>(index & 7);
  return half_word(dropout_words(seed, index >> 3, 0, stream), h) << 16 |
         half_word(dropout_words(seed, index >> 3, 1, stream), h);
}

/// Dropout: is element `index` kept? One Philox call, and a second one once in 65,536 elements.
MASKLESS_HOST_DEVICE constexpr bool dropout_keep(std::uint64_t seed, std::uint64_t index, std::uint64_t t,
                                                 std::uint32_t stream = 0) {
  const unsigned h = static_cast<unsigned>(index & 7);
  const std::uint64_t high = half_word(dropout_words(seed, index >> 3, 0, stream), h);
  if (high != t >> 16) return high > t >> 16;
  return half_word(dropout_words(seed, index >> 3, 1, stream), h) >= (t & 0xFFFFu);
}

/// Bit planes (DropConnect and signs): 128 bits of plane `plane` for positions 128 * block ... at (c1, c2).
/// Bit j & 31 of word (j >> 5) & 3 belongs to position j; plane q is bit 31 - q of u.
MASKLESS_HOST_DEVICE constexpr Words4 plane_words(std::uint64_t seed, std::uint32_t plane, std::uint32_t block,
                                                  std::uint32_t c1, std::uint32_t c2, std::uint32_t tag) {
  return philox4x32(Words4{{plane << 27 | block, c1, c2, tag}}, philox_key(seed));
}

/// u < t for position j by bit planes, stopping as soon as it is decided.
MASKLESS_HOST_DEVICE constexpr bool plane_less(std::uint64_t seed, std::uint64_t t, std::uint64_t j, std::uint32_t c1,
                                               std::uint32_t c2, std::uint32_t tag) {
  if (t >> 32 != 0) return true;
  const int planes = planes_needed(t);
  for (int q = 0; q < planes; ++q) {
    const Words4 words =
        plane_words(seed, static_cast<std::uint32_t>(q), static_cast<std::uint32_t>(j >> 7), c1, c2, tag);
    const std::uint32_t u_bit = words.w[(j >> 5) & 3] >> (j & 31) & 1u;
    const std::uint32_t t_bit = static_cast<std::uint32_t>(t >> (31 - q)) & 1u;
    if (u_bit != t_bit) return u_bit < t_bit;
  }
  return false;  // equal so far, and T has no further 1 bit: u >= T
}

/// DropConnect: is weight (output n, input k) kept for sample m? k < 2^34.
MASKLESS_HOST_DEVICE constexpr bool dropconnect_keep(std::uint64_t seed, std::uint32_t m, std::uint32_t n,
                                                     std::uint64_t k, std::uint64_t t, std::uint32_t stream = 0) {
  return !plane_less(seed, t, k, n, m, counter_tag(Op::kDropconnect, stream));
}

/// iid signs: entry (row r, column j) of the pattern in {-1, 0, +1} with density q, t = threshold(q).
/// j < 2^34, or < 2^39 when t = 2^32 (q = 1).
MASKLESS_HOST_DEVICE constexpr int iid_sign(std::uint64_t seed, std::uint32_t r, std::uint64_t j, std::uint64_t t,
                                            std::uint32_t stream = 0) {
  const std::uint32_t tag = counter_tag(Op::kSigns, stream);
  if (!plane_less(seed, t, j, r, 0, tag)) return 0;
  const Words4 words = philox4x32(Words4{{static_cast<std::uint32_t>(j >> 7), r, 1, tag}}, philox_key(seed));
  return (words.w[(j >> 5) & 3] >> (j & 31) & 1u) != 0 ? -1 : 1;
}

/// Triton layout: the 31-bit word behind tl.rand(seed, index).
MASKLESS_HOST_DEVICE constexpr std::uint32_t triton_word(std::uint64_t seed, std::uint64_t index) {
  const std::uint32_t word =
      philox4x32(Words4{{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0}},
                 philox_key(seed))
          .w[0];
  return (word >> 31) != 0 ? ~word : word;  // int32 x < 0 ? ~x : x
}

/// The float32 in [0, 1) that tl.rand makes of a word.
MASKLESS_HOST_DEVICE constexpr float triton_word_to_float(std::uint32_t word) {
  return static_cast<float>(static_cast<std::int32_t>(word)) * 4.6566127342e-10f;
}

/// tl.rand(seed, index), bit for bit. Kept iff it is > p in float32.
MASKLESS_HOST_DEVICE constexpr float triton_uniform(std::uint64_t seed, std::uint64_t index) {
  return triton_word_to_float(triton_word(seed, index));
}

/// The integer form of "tl.rand > p": kept iff the word is >= this. 2^31 if nothing is kept. Found by bisection, since
/// the float32 is a non-decreasing function of the word.
MASKLESS_HOST_DEVICE constexpr std::uint64_t triton_threshold(double p) {
  const float limit = static_cast<float>(p);
  std::uint64_t low = 0, high = std::uint64_t{1} << 31;  // the answer is in [low, high]
  while (low < high) {
    const std::uint64_t middle = (low + high) / 2;
    if (triton_word_to_float(static_cast<std::uint32_t>(middle)) > limit) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

static_assert(triton_uniform(123, 0) == 0.13389549f);

}  // namespace maskless

#endif  // MASKLESS_CORE_UNIFORM_H_
