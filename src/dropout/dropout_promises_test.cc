// What dropout promises to its users, beyond equality with the oracle: inputs that broke other libraries. Statistical
// bounds are 4 standard deviations with fixed seeds.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "maskless/dropout.h"

namespace maskless {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

DropoutOptions with(double p, std::uint64_t seed = 1, std::uint32_t stream = 0, std::uint64_t first = 0) {
  DropoutOptions options;
  options.p = p;
  options.seed = seed;
  options.stream = stream;
  options.first_index = first;
  return options;
}

std::vector<float> dropped(const std::vector<float>& x, const DropoutOptions& options,
                           const Execution& execution = {}) {
  std::vector<float> y(x.size(), -7.0f);
  const auto n = static_cast<std::int64_t>(x.size());
  dropout(contiguous_view(static_cast<const void*>(x.data()), DType::kFloat32, {n}),
          contiguous_view(static_cast<void*>(y.data()), DType::kFloat32, {n}), options, execution);
  return y;
}

std::vector<std::uint8_t> mask(std::int64_t n, const DropoutOptions& options) {
  std::vector<std::uint8_t> keep(static_cast<std::size_t>(n), 9);
  keep_mask(contiguous_view(static_cast<void*>(keep.data()), DType::kBool, {n}), options);
  return keep;
}

std::int64_t equal(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] == b[i] ? 1 : 0;
  return count;
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

TEST(DropoutPromises, ProbabilityOneGivesPositiveZeros) {
  for (float v : dropped({kInf, kNan, 1, -1, -0.0f}, with(1.0))) {
    EXPECT_EQ(v, 0.0f);
    EXPECT_FALSE(std::signbit(v));
  }
}

TEST(DropoutPromises, WhatIsDroppedIsZeroAndWhatIsKeptPassesWhateverItIs) {
  const std::vector<float> x = {kInf, -kInf, kNan, -0.0f};
  bool seen[2][4] = {};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto y = dropped(x, with(0.5, seed));
    const auto keep = mask(4, with(0.5, seed));
    for (std::size_t i = 0; i < 4; ++i) {
      seen[keep[i]][i] = true;
      if (keep[i] == 0) {
        EXPECT_EQ(y[i], 0.0f);
        EXPECT_FALSE(std::signbit(y[i]));
      } else if (i == 2) {
        EXPECT_TRUE(std::isnan(y[i]));
      } else {
        EXPECT_EQ(y[i], x[i]);
        EXPECT_EQ(std::signbit(y[i]), std::signbit(x[i]));
      }
    }
  }
  for (const auto& row : seen)
    for (bool s : row) EXPECT_TRUE(s);
}

TEST(DropoutPromises, BadProbabilitiesAreNamed) {
  const std::vector<float> x(3);
  EXPECT_EQ(message([&] { dropped(x, with(-0.1)); }), "dropout: p must be in [0, 1], got -0.1");
  EXPECT_EQ(message([&] { dropped(x, with(1.0000001)); }), "dropout: p must be in [0, 1], got 1.0000001");
  EXPECT_EQ(message([&] { dropped(x, with(std::nan(""))); }), "dropout: p must be in [0, 1], got nan");
  EXPECT_EQ(message([&] { dropped(x, with(INFINITY)); }), "dropout: p must be in [0, 1], got inf");
}

TEST(DropoutPromises, ProbabilitiesAreExact) {
  for (const auto& [p, bound] : {std::pair{0.1, 3795.0}, {0.001, 400.0}, {0.5, 6325.0}, {0.9, 3795.0}}) {
    const std::int64_t n = 10'000'000;
    std::int64_t kept = 0;
    for (std::uint8_t k : mask(n, with(p, 3))) kept += k;
    EXPECT_NEAR(static_cast<double>(n - kept), p * static_cast<double>(n), bound) << p;
  }
}

TEST(DropoutPromises, OnesBecomeZeroOrTheScale) {
  double sum = 0;
  for (float v : dropped(std::vector<float>(1'000'000, 1.0f), with(0.1))) {
    ASSERT_TRUE(v == 0.0f || v == static_cast<float>(1 / 0.9)) << v;
    sum += v;
  }
  EXPECT_NEAR(sum / 1e6, 1.0, 0.00134);
}

TEST(DropoutPromises, EmptyTensorsAndScalars) {
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{0}, {0, 5}, {3, 0}}) {
    TensorView v;
    v.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), v.shape.begin());
    EXPECT_NO_THROW(dropout(v, v, with(0.5)));
    EXPECT_NO_THROW(dropout_backward(v, v, with(0.5)));
  }
}

TEST(DropoutPromises, OtherTypesAreRefusedByName) {
  std::int64_t x[4] = {};
  for (DType dtype : {DType::kInt64, DType::kBool, DType::kUint8}) {
    const TensorView v = contiguous_view(static_cast<void*>(x), dtype, {4});
    EXPECT_EQ(message([&] { dropout(v, v, with(0.5)); }),
              std::string("dropout: x must be float16, bfloat16, float32 or float64, got ") + dtype_name(dtype));
  }
}

TEST(DropoutPromises, AnExpandedOutputIsRefused) {
  float x[4] = {};
  TensorView v = contiguous_view(static_cast<void*>(x), DType::kFloat32, {4, 4});
  v.strides[0] = 0;
  EXPECT_NE(message([&] { dropout(v, v, with(0.5)); }).find("share memory"), std::string::npos);
}

TEST(DropoutPromises, StridesThatNoMemoryHasAreRefused) {
  float x[8] = {};
  TensorView v = contiguous_view(static_cast<void*>(x), DType::kFloat32, {5});
  for (std::int64_t stride : {std::int64_t{1} << 62, -(std::int64_t{1} << 57), INT64_MIN}) {  // 2^64 bytes wrap to 0
    v.strides[0] = stride;
    EXPECT_EQ(message([&] { dropout(v, v, with(0.5)); }),
              "dropout: x must span fewer than 2^59 elements of memory, got stride " + std::to_string(stride) +
                  ", shape (5,)");
  }
}

TEST(DropoutPromises, OneSeedOneMaskForEveryDtype) {
  const std::int64_t n = 5000;
  const auto keep = mask(n, with(0.3, 8));
  const std::vector<double> ones(static_cast<std::size_t>(n), 1.0);
  std::vector<double> y(ones.size());
  dropout(contiguous_view(static_cast<const void*>(ones.data()), DType::kFloat64, {n}),
          contiguous_view(static_cast<void*>(y.data()), DType::kFloat64, {n}), with(0.3, 8));
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i] != 0, keep[i] != 0);
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const std::vector<std::uint16_t> x(static_cast<std::size_t>(n), dtype == DType::kFloat16 ? 0x3C00 : 0x3F80);
    std::vector<std::uint16_t> z(x.size());
    dropout(contiguous_view(static_cast<const void*>(x.data()), dtype, {n}),
            contiguous_view(static_cast<void*>(z.data()), dtype, {n}), with(0.3, 8));
    for (std::size_t i = 0; i < z.size(); ++i) ASSERT_EQ(z[i] != 0, keep[i] != 0);
  }
}

TEST(DropoutPromises, SeedsStreamsAndPositionsGiveIndependentMasks) {
  const std::uint64_t one = 1;
  std::vector<std::vector<std::uint8_t>> masks;
  for (std::uint64_t seed : {one, 1 + (one << 32), (one << 33) + 1, 1 + (one << 40), one << 63, ~std::uint64_t{0}})
    masks.push_back(mask(1024, with(0.5, seed)));
  for (std::uint64_t first : {one << 32, one << 34, one << 62}) masks.push_back(mask(1024, with(0.5, 1, 0, first)));
  masks.push_back(mask(1024, with(0.5, 10, 5)));
  masks.push_back(mask(1024, with(0.5, 5, 10)));
  const auto blocks = mask(4096, with(0.5, 77));  // adjacent blocks of one call
  for (int b = 0; b < 4; ++b) masks.emplace_back(blocks.begin() + b * 1024, blocks.begin() + (b + 1) * 1024);
  for (std::size_t a = 0; a < masks.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) EXPECT_NEAR(static_cast<double>(equal(masks[a], masks[b])), 512, 64) << a << b;
}

TEST(DropoutPromises, FirstIndexContinuesTheMask) {
  const auto whole = mask(3000, with(0.5));
  for (std::uint64_t k : {1u, 7u, 8u, 63u, 64u, 1000u, 2999u}) {
    const auto rest = mask(3000 - static_cast<std::int64_t>(k), with(0.5, 1, 0, k));
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), whole.begin() + static_cast<std::ptrdiff_t>(k))) << k;
  }
}

TEST(DropoutPromises, PositionsBeyondTwoToThe31InOneCall) {
  const std::int64_t n = (std::int64_t{1} << 31) + 1024;
  std::vector<std::uint8_t> bits(static_cast<std::size_t>(n / 8));
  ConstTensorView shape;
  shape.rank = 1;
  shape.shape[0] = n;
  keep_mask_packed(shape, contiguous_view(static_cast<void*>(bits.data()), DType::kUint8, {n / 8}), with(0.5));
  const auto last = mask(1024, with(0.5, 1, 0, std::uint64_t{1} << 31));
  for (std::size_t i = 0; i < 1024; ++i) ASSERT_EQ(bits[(std::size_t{1} << 28) + i / 8] >> (i % 8) & 1, last[i]);
}

TEST(DropoutPromises, NoHiddenState) {
  const std::vector<float> x(5000, 1.0f);
  const auto first = dropped(x, with(0.5, 6));
  dropped(x, with(0.2, 7));
  EXPECT_EQ(dropped(x, with(0.5, 6)), first);
}

TEST(DropoutPromises, ThreadsOfAMillionAndThree) {
  const std::vector<float> x(1'000'003, 1.5f);
  Execution execution;
  execution.threads = 1;
  const auto one = dropped(x, with(0.5, 6), execution);
  for (int threads : {2, 3, 8}) {
    execution.threads = threads;
    EXPECT_EQ(dropped(x, with(0.5, 6), execution), one);
  }
}

TEST(DropoutPromises, TransposedNeighboursAreIndependent) {
  // (8, 4096, 64) seen as (8, 64, 4096): neighbouring channels agree with probability p^2 + (1-p)^2.
  const std::int64_t n = 8 * 64 * 4096;
  const std::vector<float> x(static_cast<std::size_t>(n), 1.0f);
  std::vector<float> y(x.size());
  ConstTensorView vx = contiguous_view(static_cast<const void*>(x.data()), DType::kFloat32, {8, 64, 4096});
  vx.strides = {64 * 4096, 1, 64};
  dropout(vx, contiguous_view(static_cast<void*>(y.data()), DType::kFloat32, {8, 64, 4096}), with(0.3, 2));
  std::int64_t agree = 0;
  for (std::size_t i = 0; i + 4096 < y.size(); ++i) agree += (y[i] != 0) == (y[i + 4096] != 0) ? 1 : 0;
  const double p = 0.3 * 0.3 + 0.7 * 0.7, pairs = static_cast<double>(y.size() - 4096);
  EXPECT_NEAR(static_cast<double>(agree) / pairs, p, 4 * std::sqrt(p * (1 - p) / pairs) * 1.5);  // pairs overlap
}

TEST(DropoutPromises, ShardsJoinToTheWhole) {
  std::vector<float> x(12 * 10), whole(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i + 1);
  const auto run = [&](std::vector<float>& y, std::int64_t r0, std::int64_t rows, std::int64_t c0, std::int64_t cols) {
    const std::size_t at = static_cast<std::size_t>(r0 * 10 + c0);
    ConstTensorView vx = contiguous_view(static_cast<const void*>(x.data() + at), DType::kFloat32, {rows, cols});
    TensorView vy = contiguous_view(static_cast<void*>(y.data() + at), DType::kFloat32, {rows, cols});
    vx.strides[0] = vy.strides[0] = 10;
    DropoutOptions options = with(0.5, 4);
    options.shard.rank = 2;
    options.shard.global_shape = {12, 10};
    options.shard.offsets = {r0, c0};
    dropout(vx, vy, options);
  };
  run(whole, 0, 12, 0, 10);
  EXPECT_EQ(whole, dropped(x, with(0.5, 4)));
  for (std::int64_t row_parts : {1, 2, 3, 4, 5})
    for (std::int64_t col_parts : {1, 2, 3}) {
      std::vector<float> joined(x.size(), -1);
      for (std::int64_t r = 0; r < row_parts; ++r)
        for (std::int64_t c = 0; c < col_parts; ++c) {
          const std::int64_t r0 = 12 * r / row_parts, r1 = 12 * (r + 1) / row_parts;
          const std::int64_t c0 = 10 * c / col_parts, c1 = 10 * (c + 1) / col_parts;
          run(joined, r0, r1 - r0, c0, c1 - c0);
        }
      EXPECT_EQ(joined, whole) << row_parts << " x " << col_parts;
    }
}

TEST(DropoutPromises, BackwardIsTheAdjoint) {
  const std::int64_t n = 10'007;
  std::mt19937_64 engine(1);
  std::normal_distribution<double> normal;
  std::vector<double> x(static_cast<std::size_t>(n)), dy(x.size()), y(x.size()), dx(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = normal(engine), dy[i] = normal(engine);
  const auto in = [&](const std::vector<double>& v) {
    return contiguous_view(static_cast<const void*>(v.data()), DType::kFloat64, {n});
  };
  const auto out = [&](std::vector<double>& v) {
    return contiguous_view(static_cast<void*>(v.data()), DType::kFloat64, {n});
  };
  dropout(in(x), out(y), with(0.3, 5, 2, 9));
  dropout_backward(in(dy), out(dx), with(0.3, 5, 2, 9));
  double forward = 0, backward = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    forward += dy[i] * y[i];
    backward += dx[i] * x[i];
    size += std::abs(dy[i] * y[i]);
  }
  EXPECT_NEAR(forward, backward, 1e-12 * size);
}

#if defined(__linux__)
std::size_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::stoull(line.substr(6)) * 1024;
  return 0;
}

TEST(DropoutPromises, PeakMemoryGrowsByTheOutputAlone) {
  const std::size_t bytes = std::size_t{256} << 20;
  const auto n = static_cast<std::int64_t>(bytes / sizeof(float));
  const std::vector<float> x(static_cast<std::size_t>(n), 1.0f);
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak starts again at what is in use now
  const std::size_t before = peak_bytes();
  if (before == 0 || before > bytes + (std::size_t{512} << 20)) GTEST_SKIP() << "the peak cannot be reset here";
  std::vector<float> y(static_cast<std::size_t>(n));
  dropout(contiguous_view(static_cast<const void*>(x.data()), DType::kFloat32, {n}),
          contiguous_view(static_cast<void*>(y.data()), DType::kFloat32, {n}), with(0.5));
  const std::size_t grown = peak_bytes() - before;
  EXPECT_GE(grown, bytes - (std::size_t{1} << 20));
  EXPECT_LE(grown, bytes + (std::size_t{1} << 20));
}
#endif

}  // namespace
}  // namespace maskless
