// Probabilities as integers. Every decision compares a 32-bit uniform integer u with a threshold T:
// dropped if and only if u < T. So p = 0 never drops, p = 1 always drops, and any other p is exact to 2^-33.
#ifndef MASKLESS_CORE_THRESHOLD_H_
#define MASKLESS_CORE_THRESHOLD_H_

#include <cstdint>

#include "maskless/core/philox.h"

namespace maskless {

/// T = round(p * 2^32), ties to even, for p in [0, 1]. T needs 33 bits: 0 <= T <= 2^32.
/// p outside [0, 1] (NaN included) is the caller's error: check with valid_probability first.
MASKLESS_HOST_DEVICE constexpr std::uint64_t threshold(double p) {
  const double scaled = p * 4294967296.0;  // exact: a power of two
  std::uint64_t t = static_cast<std::uint64_t>(scaled);
  const double rest = scaled - static_cast<double>(t);
  if (rest > 0.5 || (rest == 0.5 && (t & 1) != 0)) ++t;
  return t;
}

/// True iff 0 <= p <= 1; false for NaN.
MASKLESS_HOST_DEVICE constexpr bool valid_probability(double p) { return p >= 0.0 && p <= 1.0; }

/// What a kept value is multiplied by: 1 / (1 - p), in double. At p = 1 nothing is kept and it is 0.
MASKLESS_HOST_DEVICE constexpr double keep_scale(double p) { return p < 1.0 ? 1.0 / (1.0 - p) : 0.0; }

/// Number of bit planes that decide u < T: up to the last 1 bit of T, at most 32 (0 for T = 0 and T = 2^32).
MASKLESS_HOST_DEVICE constexpr int planes_needed(std::uint64_t t) {
  if (t == 0 || t >= (std::uint64_t{1} << 32)) return 0;
  int planes = 32;
  while ((t & 1) == 0) {
    t >>= 1;
    --planes;
  }
  return planes;
}

static_assert(threshold(0.0) == 0 && threshold(1.0) == (std::uint64_t{1} << 32));
static_assert(threshold(0.5) == 0x80000000u && threshold(0.1) == 429496730u);
static_assert(threshold(0.5 / 4294967296.0) == 0 && threshold(1.5 / 4294967296.0) == 2);  // ties to even
static_assert(planes_needed(threshold(0.5)) == 1 && planes_needed(threshold(0.75)) == 2 &&
              planes_needed(threshold(0.125)) == 3);

}  // namespace maskless

#endif  // MASKLESS_CORE_THRESHOLD_H_
