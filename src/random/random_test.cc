#include "maskless/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/float_types.h"
#include "maskless/runtime.h"
#include "random/random_reference.h"

namespace maskless {
namespace {

constexpr std::uint64_t k2to32 = std::uint64_t{1} << 32;
constexpr double kPi = 3.14159265358979323846;

enum class Dist { kBits, kUniform, kTriton, kNormal, kDice, kInt32, kInt64, kWide, kAll };
constexpr Dist kDists[] = {Dist::kBits,  Dist::kUniform, Dist::kTriton, Dist::kNormal, Dist::kDice,
                           Dist::kInt32, Dist::kInt64,   Dist::kWide,   Dist::kAll};

DType dtype_of(Dist dist) {
  switch (dist) {
    case Dist::kBits: return DType::kUint32;
    case Dist::kUniform:
    case Dist::kTriton:
    case Dist::kNormal: return DType::kFloat32;
    case Dist::kDice:
    case Dist::kInt32: return DType::kInt32;
    default: return DType::kInt64;
  }
}

void limits_of(Dist dist, std::int64_t& low, std::int64_t& high) {
  low = 1, high = 7;  // dice
  if (dist == Dist::kInt32) low = -(std::int64_t{1} << 31), high = std::int64_t{1} << 31;
  if (dist == Dist::kInt64) low = -5, high = 3'000'000'000;                     // redraws three times in ten
  if (dist == Dist::kWide) low = -1'000'000, high = 7'000'000'000'000'000'000;  // redraws one time in four
  if (dist == Dist::kAll)
    low = std::numeric_limits<std::int64_t>::min(), high = std::numeric_limits<std::int64_t>::max();
}

void draw(Dist dist, const TensorView& out, const RandomOptions& options, const Execution& execution = {}) {
  std::int64_t low, high;
  limits_of(dist, low, high);
  switch (dist) {
    case Dist::kBits: return random_bits(out, options, execution);
    case Dist::kUniform: return random_uniform(out, options, execution);
    case Dist::kTriton: return random_uniform_triton(out, options, execution);
    case Dist::kNormal: return random_normal(out, options, execution);
    default: return random_integers(out, low, high, options, execution);
  }
}

/// The raw bits of element `index`, from the scalar functions.
std::uint64_t expected(Dist dist, std::uint64_t seed, std::uint32_t stream, std::uint64_t index) {
  std::int64_t low, high;
  limits_of(dist, low, high);
  const std::uint64_t range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  switch (dist) {
    case Dist::kBits: return reference::random_word(seed, stream, index);
    case Dist::kUniform: return detail::float_bits(reference::uniform_of(reference::random_word(seed, stream, index)));
    case Dist::kTriton: return detail::float_bits(triton_uniform(seed, index));
    case Dist::kNormal: return detail::float_bits(reference::random_normal(seed, stream, index));
    case Dist::kDice:
    case Dist::kInt32:
      return static_cast<std::uint32_t>(
          low + static_cast<std::int64_t>(reference::random_below(seed, stream, index, range, k2to32 % range)));
    case Dist::kInt64:
      return static_cast<std::uint64_t>(low) + reference::random_below(seed, stream, index, range, k2to32 % range);
    default:
      return static_cast<std::uint64_t>(low) +
             reference::random_below_wide(seed, stream, index, range, (0 - range) % range);
  }
}

TEST(Random, EqualsTheScalarFunctionsOnEveryInstructionSet) {
  for (Isa isa : instruction_sets())
    for (Dist dist : kDists)
      for (std::uint64_t first : {std::uint64_t{0}, std::uint64_t{3}, k2to32 - 100, 4 * k2to32 - 101,
                                  (std::uint64_t{1} << 62) + 1, ~std::uint64_t{0} - 5000})
        for (std::int64_t n : {0, 1, 2, 3, 4, 5, 31, 32, 33, 1023, 4099}) {
          const DType dtype = dtype_of(dist);
          const std::size_t item = dtype_size(dtype);
          std::vector<unsigned char> memory((static_cast<std::size_t>(n) + 16) * item, 0xA5);
          RandomOptions options;
          options.seed = 77 + (std::uint64_t{5} << 40);
          options.stream = dist == Dist::kTriton ? 0 : kStreamLimit - 1;
          options.first_index = first;
          Execution execution;
          execution.isa = isa;
          draw(dist, contiguous_view(static_cast<void*>(memory.data() + 8 * item), dtype, {n}), options, execution);
          for (std::int64_t i = -8; i < n + 8; ++i) {
            std::uint64_t got = 0, want = 0xA5A5A5A5A5A5A5A5u;
            std::memcpy(&got, memory.data() + static_cast<std::size_t>(i + 8) * item, item);
            if (i >= 0 && i < n)
              want = expected(dist, options.seed.value, options.stream, first + static_cast<std::uint64_t>(i));
            if (item == 4) want = static_cast<std::uint32_t>(want);
            ASSERT_EQ(got, want) << isa_name(isa) << ", distribution " << static_cast<int>(dist) << ", first index "
                                 << first << ", element " << i << " of " << n;
          }
        }
}

TEST(Random, StridesShardsAndThreadsDoNotMatter) {
  constexpr std::int64_t kRows = 120, kCols = 341;
  for (Dist dist : {Dist::kBits, Dist::kNormal, Dist::kDice}) {
    const DType dtype = dtype_of(dist);
    std::vector<std::uint32_t> whole(kRows * kCols);
    RandomOptions options;
    options.seed = 5;
    draw(dist, contiguous_view(static_cast<void*>(whole.data()), dtype, {kRows, kCols}), options);
    for (int threads : {1, 2, 3, 8}) {
      std::vector<std::uint32_t> other(kRows * kCols);
      TensorView fortran = contiguous_view(static_cast<void*>(other.data()), dtype, {kRows, kCols});
      fortran.strides[0] = 1;
      fortran.strides[1] = kRows;
      Execution execution;
      execution.threads = threads;
      draw(dist, fortran, options, execution);
      for (std::int64_t r = 0; r < kRows; ++r)
        for (std::int64_t c = 0; c < kCols; ++c)
          ASSERT_EQ(other[static_cast<std::size_t>(c * kRows + r)], whole[static_cast<std::size_t>(r * kCols + c)]);
    }
    std::vector<std::uint32_t> piece(7 * 11);
    RandomOptions shard = options;
    shard.shard.rank = 2;
    shard.shard.global_shape = {kRows, kCols};
    shard.shard.offsets = {100, 203};
    draw(dist, contiguous_view(static_cast<void*>(piece.data()), dtype, {7, 11}), shard);
    for (std::size_t r = 0; r < 7; ++r)
      for (std::size_t c = 0; c < 11; ++c)
        ASSERT_EQ(piece[r * 11 + c], whole[(100 + r) * static_cast<std::size_t>(kCols) + 203 + c]);
  }
}

template <typename T>
std::vector<T> drawn(Dist dist, std::int64_t n, std::uint64_t seed, std::uint32_t stream = 0, std::uint64_t first = 0) {
  std::vector<T> values(static_cast<std::size_t>(n));
  RandomOptions options;
  options.seed = seed;
  options.stream = stream;
  options.first_index = first;
  draw(dist, contiguous_view(static_cast<void*>(values.data()), dtype_of(dist), {n}), options);
  return values;
}

// Frozen: these numbers change only with the version of the specification.
TEST(Random, GoldenNumbers) {
  using Words = std::vector<std::uint32_t>;
  using Integers = std::vector<std::int64_t>;
  EXPECT_EQ(drawn<std::uint32_t>(Dist::kBits, 6, 123, 7, 3),
            (Words{0x043F095C, 0x4089E723, 0x903EEC52, 0xB462EAF5, 0x9869EC24, 0xD6B53E04}));
  EXPECT_EQ(drawn<float>(Dist::kUniform, 6, 123, 7, 3),
            (std::vector<float>{0x1.0fc24p-6f, 0x1.02279cp-2f, 0x1.207dd8p-1f, 0x1.68c5d4p-1f, 0x1.30d3d8p-1f,
                                0x1.ad6a7cp-1f}));
  EXPECT_EQ(drawn<float>(Dist::kTriton, 5, 123),
            (std::vector<float>{0.13389549f, 0.7207006f, 0.34458476f, 0.23751315f, 0.4584163f}));
  EXPECT_EQ(drawn<std::int32_t>(Dist::kDice, 16, 123, 7, 3),
            (std::vector<std::int32_t>{1, 2, 4, 5, 4, 6, 3, 5, 2, 5, 3, 3, 5, 5, 3, 5}));
  EXPECT_EQ(drawn<std::int64_t>(Dist::kInt64, 6, 123, 7, 3),
            (Integers{49760579, 510448240, 1690380389, 1896234336, 1786098741, 2516109110}));
  EXPECT_EQ(drawn<std::int64_t>(Dist::kWide, 6, 123, 7, 3),
            (Integers{5337449914206241596, 85261529448083301, 4753301369325329863, 6105120264066403836,
                      2356274898576488702, 5047914818146369779}));
  const std::vector<float> normal = drawn<float>(Dist::kNormal, 8, 123, 7);
  const double exact[] = {1.40908165, -0.58393573, 1.54980676,  0.16210559,
                          -1.5298424, -0.64452119, -0.69097648, -0.47191524};
  Words bits;
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(normal[i], exact[i], 3e-7);
    bits.push_back(detail::float_bits(normal[i]));
  }
  EXPECT_EQ(bits,
            (Words{1068784842, 3205856464, 1069965330, 1042677507, 3217281504, 3206872920, 3207652309, 3203505887}));
}

TEST(Random, UniformIsInTheUnitInterval) {
  const std::int64_t n = 1 << 22;
  double sum = 0, squares = 0;
  for (float u : drawn<float>(Dist::kUniform, n, 1)) {
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    sum += u;
    squares += static_cast<double>(u) * u;
  }
  // Five standard deviations: false alarms below 1e-6, and the seed is fixed.
  EXPECT_NEAR(sum / n, 0.5, 5 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(squares / n, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / n));
  EXPECT_EQ(reference::uniform_of(0xFFFFFFFFu), 1.0f - 0x1p-24f);
}

TEST(Random, IntegersAreUnbiased) {
  const std::int64_t n = 6'000'000;
  std::vector<std::int64_t> counts(7, 0);
  for (std::int32_t v : drawn<std::int32_t>(Dist::kDice, n, 9)) {
    ASSERT_GE(v, 1);
    ASSERT_LE(v, 6);
    ++counts[static_cast<std::size_t>(v)];
  }
  double chi2 = 0;
  for (int v = 1; v <= 6; ++v)
    chi2 += std::pow(static_cast<double>(counts[static_cast<std::size_t>(v)]) - 1e6, 2) / 1e6;
  EXPECT_LT(chi2, 35.9);  // 5 degrees of freedom: false alarms 1e-6
  // A range of 3/4 of 2^32 (here 0.7): reduction without redrawing would favour a part of the numbers two to one.
  const std::int64_t m = 1 << 20;
  for (Dist dist : {Dist::kInt64, Dist::kWide}) {
    std::int64_t low, high, bins[8] = {};
    limits_of(dist, low, high);
    const double range = static_cast<double>(high) - static_cast<double>(low);
    for (std::int64_t v : drawn<std::int64_t>(dist, m, 10)) {
      ASSERT_GE(v, low);
      ASSERT_LT(v, high);
      ++bins[static_cast<int>((static_cast<double>(v) - static_cast<double>(low)) / range * 8)];
    }
    chi2 = 0;
    for (std::int64_t b : bins) chi2 += std::pow(static_cast<double>(b) - m / 8.0, 2) / (m / 8.0);
    EXPECT_LT(chi2, 40.5);  // 7 degrees of freedom: false alarms 1e-6
  }
}

TEST(Random, NormalIsAccurate) {
  double worst_radius = 0, worst = 0;
  for (std::uint32_t i = 0; i < 200'000; ++i) {
    const Words4 words = philox4x32(Words4{{i, 0, 0, 0}}, Words2{{1, 2}});
    std::uint32_t a = words[0] >> (i % 7 == 0 ? i % 32 : 0);
    if (i % 5 == 0) a = ~a;
    const double u = static_cast<double>(std::fma(static_cast<float>(a), 0x1p-32f, 0x1p-33f));
    const double radius = std::sqrt(-2 * std::log(u)), angle = 2 * kPi * words[1] / 4294967296.0;
    const Normal2 pair = normal_pair(a, words[1]);
    if (radius == 0) continue;
    worst_radius = std::max(worst_radius, std::abs(static_cast<double>(normal_radius(a)) - radius) / radius);
    worst = std::max({worst, std::abs(static_cast<double>(pair.first) - radius * std::cos(angle)) / radius,
                      std::abs(static_cast<double>(pair.second) - radius * std::sin(angle)) / radius});
  }
  EXPECT_LT(worst_radius, 2 * 0x1p-24);  // one unit in the last place
  EXPECT_LT(worst, 4 * 0x1p-24);
  EXPECT_EQ(normal_radius(0xFFFFFFFFu), 0.0f);
  EXPECT_NEAR(normal_radius(0), std::sqrt(2 * 33 * std::log(2.0)), 1e-6);
}

TEST(Random, NormalHasTheNormalDistribution) {
  const std::int64_t n = 1 << 22;
  std::vector<float> z = drawn<float>(Dist::kNormal, n, 4);
  double moments[5] = {}, neighbours = 0;
  for (std::size_t i = 0; i < z.size(); ++i) {
    double power = 1;
    for (double& moment : moments) moment += power, power *= static_cast<double>(z[i]);
    if (i % 2 == 1) neighbours += static_cast<double>(z[i]) * static_cast<double>(z[i - 1]);
  }
  const double root = std::sqrt(static_cast<double>(n));  // five standard deviations each
  EXPECT_NEAR(moments[1] / n, 0, 5 / root);
  EXPECT_NEAR(moments[2] / n, 1, 5 * std::sqrt(2.0) / root);
  EXPECT_NEAR(moments[3] / n, 0, 5 * std::sqrt(15.0) / root);
  EXPECT_NEAR(moments[4] / n, 3, 5 * std::sqrt(96.0) / root);
  EXPECT_NEAR(neighbours / (static_cast<double>(n) / 2), 0, 5 * std::sqrt(2.0) / root);  // cosine and sine of one pair
  std::sort(z.begin(), z.end());
  double distance = 0;
  for (std::size_t i = 0; i < z.size(); ++i) {
    const double p = 0.5 * std::erfc(-static_cast<double>(z[i]) / std::sqrt(2.0));
    distance = std::max({distance, p - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - p});
  }
  EXPECT_LT(distance * root, 2.7);  // Kolmogorov-Smirnov: false alarms 1e-6
}

TEST(Random, SeedsAndStreamsGiveOtherNumbers) {
  std::vector<std::vector<std::uint32_t>> all;
  for (std::uint64_t seed : {std::uint64_t{1}, 1 + k2to32, 2 * k2to32 + 1, std::uint64_t{1} << 63, ~std::uint64_t{0}})
    for (std::uint32_t stream : {0u, 1u, kStreamLimit - 1})
      all.push_back(drawn<std::uint32_t>(Dist::kBits, 64, seed, stream));
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) {
      int equal = 0;
      for (std::size_t i = 0; i < 64; ++i) equal += all[a][i] == all[b][i] ? 1 : 0;
      EXPECT_EQ(equal, 0);
    }
  const auto later = drawn<std::uint32_t>(Dist::kBits, 50, 1, 0, 14);
  EXPECT_TRUE(std::equal(later.begin(), later.end(), all[0].begin() + 14));
}

template <typename F>
std::string message(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Random, RefusesBadInput) {
  float f = 0;
  std::int32_t i = 0;
  const TensorView reals = contiguous_view(static_cast<void*>(&f), DType::kFloat32, {1});
  const TensorView ints = contiguous_view(static_cast<void*>(&i), DType::kInt32, {1});
  RandomOptions options;
  EXPECT_EQ(message([&] { random_bits(reals, options); }), "random_bits: out must be uint32, got float32");
  EXPECT_EQ(message([&] { random_uniform(ints, options); }), "random_uniform: out must be float32, got int32");
  EXPECT_EQ(message([&] { random_integers(reals, 0, 5, options); }),
            "random_integers: out must be int32 or int64, got float32");
  EXPECT_EQ(message([&] { random_integers(ints, 5, 5, options); }),
            "random_integers: high must be above low, 5, got 5");
  EXPECT_EQ(message([&] { random_integers(ints, 0, k2to32, options); }),
            "random_integers: high must be at most 2^31 for int32, got 4294967296");
  options.stream = kStreamLimit;
  EXPECT_EQ(message([&] { random_normal(reals, options); }), "random_normal: stream must be below 2^24, got 16777216");
  options.stream = 1;
  EXPECT_EQ(message([&] { random_uniform_triton(reals, options); }),
            "random_uniform_triton: stream must be 0, for tl.rand has none, got 1");
}

}  // namespace
}  // namespace maskless
