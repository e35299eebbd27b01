// The core headers against their own definitions at the edges, and against Random123 where it is installed.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "maskless/core/threshold.h"
#include "maskless/core/uniform.h"

#if __has_include(<Random123/philox.h>)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wshadow"
#include <Random123/philox.h>
#pragma GCC diagnostic pop
#define MASKLESS_HAS_RANDOM123 1
#else
#define MASKLESS_HAS_RANDOM123 0
#endif

namespace maskless {
namespace {

TEST(Core, PhiloxEqualsRandom123) {
#if MASKLESS_HAS_RANDOM123
  std::mt19937 random(20260101);
  const auto next = [&] { return static_cast<std::uint32_t>(random()); };
  for (int i = 0; i < 100000; ++i) {
    const r123::Philox4x32::ctr_type counter = {{next(), next(), next(), next()}};
    const r123::Philox4x32::key_type key = {{next(), next()}};
    const Words4 c{{counter[0], counter[1], counter[2], counter[3]}};
    const Words2 k{{key[0], key[1]}};
    const Words4 ours = philox4x32<10>(c, k), ours7 = philox4x32<7>(c, k);  // philox4x32(c, k) is a macro of theirs
    const r123::Philox4x32::ctr_type theirs = r123::Philox4x32_R<10>()(counter, key);
    const r123::Philox4x32::ctr_type theirs7 = r123::Philox4x32_R<7>()(counter, key);
    for (unsigned w = 0; w < 4; ++w) {
      ASSERT_EQ(ours[w], theirs[w]);
      ASSERT_EQ(ours7[w], theirs7[w]);
    }
  }
#else
  GTEST_SKIP() << "Random123 is not installed (Debian: librandom123-dev)";
#endif
}

TEST(Core, ThresholdIsRoundToNearestEven) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (int i = 0; i < 100000; ++i) {
    const double p = uniform(random);
    ASSERT_EQ(threshold(p), static_cast<std::uint64_t>(std::nearbyint(p * 4294967296.0))) << p;
  }
  for (std::uint64_t k = 0; k < 100; ++k) {  // ties
    const double p = (static_cast<double>(k) + 0.5) / 4294967296.0;
    EXPECT_EQ(threshold(p), k + (k & 1)) << k;
  }
  EXPECT_EQ(threshold(std::nextafter(1.0, 0.0)), std::uint64_t{1} << 32);
  EXPECT_EQ(threshold(std::numeric_limits<double>::denorm_min()), 0u);
}

TEST(Core, ProbabilityIsChecked) {
  for (double p : {0.0, 0.1, 1.0}) EXPECT_TRUE(valid_probability(p)) << p;
  for (double p : {-0.1, -1e-300, 1.0000001, std::numeric_limits<double>::quiet_NaN(),
                   std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()})
    EXPECT_FALSE(valid_probability(p)) << p;
}

TEST(Core, KeepIsTheComparisonOfTheWholeUniform) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 100000; ++i) {
    const std::uint64_t seed = random(), index = random();
    const std::uint32_t stream = random() % kStreamLimit, u = dropout_uniform(seed, index, stream);
    // Thresholds at and around u, where the second Philox call decides.
    for (std::uint64_t t : {std::uint64_t{u}, std::uint64_t{u} + 1, std::uint64_t{u} - (u != 0), random() >> 31})
      ASSERT_EQ(dropout_keep(seed, index, t, stream), u >= t);
    ASSERT_TRUE(dropout_keep(seed, index, threshold(0.0), stream));
    ASSERT_FALSE(dropout_keep(seed, index, threshold(1.0), stream));
  }
}

TEST(Core, PlanesStopWhereTheComparisonIsDecided) {
  std::mt19937_64 random(13);
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t seed = random(), j = random() >> 30;
    const auto c1 = static_cast<std::uint32_t>(random()), c2 = static_cast<std::uint32_t>(random());
    const std::uint32_t tag = counter_tag(Op::kDropconnect, random() % kStreamLimit);
    std::uint32_t u = 0;  // all 32 planes, most significant first
    for (std::uint32_t q = 0; q < 32; ++q) {
      const Words4 words = plane_words(seed, q, static_cast<std::uint32_t>(j >> 7), c1, c2, tag);
      u |= (words[(j >> 5) & 3] >> (j & 31) & 1u) << (31 - q);
    }
    for (std::uint64_t t : {std::uint64_t{u}, std::uint64_t{u} + 1, random() >> 32, threshold(0.5), threshold(0.1),
                            threshold(0.0), threshold(1.0)})
      ASSERT_EQ(plane_less(seed, t, j, c1, c2, tag), u < t) << t;
  }
}

TEST(Core, TritonThresholdIsTheFloatComparison) {
  for (double p : {0.0, 1e-9, 0.1, 0.25, 0.5, 0.9, 0.999999, 1.0}) {
    const std::uint64_t t = triton_threshold(p);
    for (std::int64_t d = -300; d <= 300; ++d) {
      const std::int64_t w = static_cast<std::int64_t>(t) + d;
      if (w < 0 || w > 0x7FFFFFFF) continue;
      const auto u = static_cast<std::uint32_t>(w);
      ASSERT_EQ(u >= t, triton_word_to_float(u) > static_cast<float>(p)) << p << " " << w;
    }
  }
}

TEST(Core, OperationsAndStreamsNeverShareACounter) {
  EXPECT_NE(counter_tag(Op::kDropout, kStreamLimit - 1), counter_tag(Op::kDropconnect, 0));
  EXPECT_EQ(counter_tag(Op::kDropout, kStreamLimit - 1) + 1, counter_tag(Op::kDropconnect, 0));
  EXPECT_EQ(counter_tag(Op::kRandom, 7), 5u << 24 | 7u);
}

}  // namespace
}  // namespace maskless
