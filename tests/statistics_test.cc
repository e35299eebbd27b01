// Are neighbouring masks independent? Equal decisions of D[m, n, k] and its neighbour at p = 1/2, over 2^28 positions.
// With ten rounds the count is binomial; the same test must see that six rounds are too few for small numbers in the
// counter's words (the negative control, without which a pass would say nothing).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "maskless/core/uniform.h"

namespace maskless {
namespace {

constexpr std::uint32_t kSamples = 256, kOutputs = 1024, kBlocks = 8;  // 8 blocks of 128 inputs

template <int Rounds>
Words4 words(std::uint64_t seed, std::uint32_t block, std::uint32_t n, std::uint32_t m, std::uint32_t stream) {
  return philox4x32<Rounds>(Words4{{block, n, m, counter_tag(Op::kDropconnect, stream)}}, philox_key(seed));
}

/// Standard deviations between the number of equal decisions and half of the positions, for a neighbour at distance
/// (dm, dn, db) in samples, outputs and blocks of inputs, and ds in streams.
template <int Rounds>
double deviation(std::uint32_t dm, std::uint32_t dn, std::uint32_t db, std::uint32_t ds) {
  constexpr std::uint64_t kSeed = 20260101;
  std::int64_t equal = 0;
#pragma omp parallel for reduction(+ : equal)
  for (std::uint32_t m = 0; m < kSamples; ++m)
    for (std::uint32_t n = 0; n < kOutputs; ++n)
      for (std::uint32_t b = 0; b < kBlocks; ++b) {
        const Words4 here = words<Rounds>(kSeed, b, n, m, 0), there = words<Rounds>(kSeed, b + db, n + dn, m + dm, ds);
        for (unsigned w = 0; w < 4; ++w) equal += 32 - std::popcount(here[w] ^ there[w]);
      }
  const double positions = 128.0 * kSamples * kOutputs * kBlocks;
  return (static_cast<double>(equal) - positions / 2) / (std::sqrt(positions) / 2);
}

// Five sigma, one fixed seed: a false alarm once in 1.7 million seeds for each line.
TEST(Statistics, NeighbouringMasksAreIndependent) {
  EXPECT_LT(std::abs(deviation<10>(0, 1, 0, 0)), 5) << "next output";
  EXPECT_LT(std::abs(deviation<10>(1, 0, 0, 0)), 5) << "next sample";
  EXPECT_LT(std::abs(deviation<10>(0, 0, 1, 0)), 5) << "next block of inputs";
  EXPECT_LT(std::abs(deviation<10>(0, 0, 0, 1)), 5) << "next stream";
}

TEST(Statistics, SixRoundsWouldBeSeen) { EXPECT_GT(std::abs(deviation<6>(0, 1, 0, 0)), 10) << "next output"; }

}  // namespace
}  // namespace maskless
