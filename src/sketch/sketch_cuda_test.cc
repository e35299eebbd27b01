// Projections on the device against the CPU: one matrix, sums equal to rounding, equal bytes run after run.
#include <gtest/gtest.h>

#include "maskless/sketch.h"

#if MASKLESS_HAS_CUDA
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/visit.h"
#include "cuda/test_device.h"

namespace maskless {
namespace {

using testing::DeviceMemory;
using testing::kCuda;

struct Case {
  SketchKind kind;
  std::int64_t k;
  int nonzeros;
  double density;
  std::int64_t cols;
  std::uint64_t column_offset = 0;
  std::int64_t row_offset = 0, rows = -1;
};

constexpr SketchKind kSjlt = SketchKind::kSjlt, kSigns = SketchKind::kSigns;
constexpr std::uint64_t kFar = (std::uint64_t{1} << 33) + 777;
const Case kCases[] = {
    {kSjlt, 4096, 4, 1, 30011},
    {kSjlt, 1000, 3, 1, 5001, kFar},
    {kSjlt, 64, 16, 1, 3000},
    {kSjlt, 5, 5, 1, 700, 3},
    {kSjlt, 4096, 1, 1, 9000},
    {kSjlt, 6000, 2, 1, 20000, kFar},
    {kSjlt, 20000, 2, 1, 30000},
    {kSjlt, 40000, 2, 1, 50000},
    {kSjlt, 7, 2, 1, 300},
    {kSjlt, 16, 16, 1, 1},
    {kSjlt, 1000, 4, 1, 2000, 77, 130, 400},
    {kSjlt, 64, 4, 1, 0},
    {kSigns, 600, 1, 1, 3001},
    {kSigns, 1024, 1, 1, 2048, kFar},
    {kSigns, 100, 1, 1.0 / 3, 900},
    {kSigns, 130, 1, 0.02, 4000, 999},
    {kSigns, 1, 1, 1, 5},
    {kSigns, 300, 1, 1, 1500, 24, 7, 200},
};

/// Both directions of one case; "" or the first fault.
template <typename T>
std::string run_case(const Case& c, DType dtype, std::int64_t batch, bool columns_first, double bound) {
  ProjectionOptions o;
  o.kind = c.kind;
  o.n_components = c.k;
  o.nonzeros = c.nonzeros;
  o.density = c.density;
  o.stream = 3;
  o.column_offset = c.column_offset;
  o.row_offset = c.row_offset;
  const std::int64_t rows = c.rows < 0 ? c.k - c.row_offset : c.rows;
  const std::vector<std::uint64_t> seed = {0x123456789ABCDEFull};
  const DeviceMemory seed_there(seed);
  for (bool transpose : {false, true}) {
    const std::int64_t in_cols = transpose ? rows : c.cols, out_cols = transpose ? c.cols : rows;
    std::vector<T> in(static_cast<std::size_t>(batch * in_cols)), out(static_cast<std::size_t>(batch * out_cols));
    std::mt19937_64 random(5);
    std::normal_distribution<double> normal;
    for (T& v : in) {
      if constexpr (sizeof(T) == 8) {
        v = normal(random);
      } else {
        v = from_float<T>(static_cast<float>(normal(random)));
      }
    }
    const auto view = [&](void* data, std::int64_t cols, Device device) {
      TensorView v = contiguous_view(data, dtype, {batch, cols}, device);
      if (columns_first) v.strides = {1, batch};
      return v;
    };
    const auto run = transpose ? project_transpose : project;
    o.seed = Seed::at(seed.data());
    run(view(in.data(), in_cols, {}), view(out.data(), out_cols, {}), o, {});
    const DeviceMemory in_there(in);
    std::vector<T> got[2];
    for (int round : {0, 1}) {
      const DeviceMemory out_there(std::vector<T>(out.size(), T{}));
      testing::check(cudaMemset(out_there.data(), round == 0 ? 0xFF : 0x11, out.size() * sizeof(T)));
      o.seed = round == 0 ? Seed(seed[0]) : Seed::at(seed_there.as<std::uint64_t>());
      run(view(in_there.data(), in_cols, kCuda), view(out_there.data(), out_cols, kCuda), o, {});
      got[round] = out_there.template host<T>();
    }
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (std::memcmp(&got[0][i], &got[1][i], sizeof(T)) != 0) return "bytes differ from run to run";
      double a, b;
      if constexpr (sizeof(T) == 8) {
        a = got[0][i], b = out[i];
      } else {
        a = to_float(got[0][i]), b = to_float(out[i]);
      }
      error += (a - b) * (a - b);
      norm += b * b;
    }
    if (!(std::sqrt(error) <= bound * std::sqrt(norm)))
      return (transpose ? "transpose, relative error " : "relative error ") + std::to_string(std::sqrt(error / norm));
  }
  return "";
}

TEST(SketchCuda, EqualsTheCpu) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  int n = 0;
  for (const Case& c : kCases)
    for (std::int64_t batch : {1, 2, 3, 8, 9, 17}) {
      const bool columns_first = ++n % 3 == 0;
      const std::string where = "k " + std::to_string(c.k) + ", columns " + std::to_string(c.cols) + ", batch " +
                                std::to_string(batch) + ", density " + std::to_string(c.density);
      EXPECT_EQ(run_case<float>(c, DType::kFloat32, batch, columns_first, 2e-5), "") << where;
      EXPECT_EQ(run_case<BFloat16>(c, DType::kBFloat16, batch, columns_first, 5e-3), "") << where;
      EXPECT_EQ(run_case<Float16>(c, DType::kFloat16, batch, columns_first, 6e-4), "") << where;
      EXPECT_EQ(run_case<double>(c, DType::kFloat64, batch, columns_first, 1e-13), "") << where;
    }
}

/// No launch fails, and the first row is the same bits in any batch: cuts and order of sums depend on the matrix alone.
TEST(SketchCuda, ManyComponentsAndBatches) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  const std::int64_t d = 1000000, k = 32768;
  std::vector<float> x(static_cast<std::size_t>(65 * d));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < d; ++i) x[static_cast<std::size_t>(i)] = normal(random);
  for (std::size_t i = static_cast<std::size_t>(d); i < x.size(); ++i)
    x[i] = static_cast<float>(random() % 2001) - 1000;
  const DeviceMemory x_there(x), y_there(static_cast<std::size_t>(65 * k) * sizeof(float));
  for (SketchKind kind : {kSjlt, kSigns})
    for (double density : {1.0, 0.001}) {
      if (kind == kSjlt && density != 1.0) continue;
      std::vector<float> first;
      for (std::int64_t batch : {1, 7, 8, 9, 31, 32, 33, 65}) {
        testing::check(cudaMemset(y_there.data(), 0xFF, static_cast<std::size_t>(65 * k) * sizeof(float)));
        ProjectionOptions o;
        o.kind = kind;
        o.density = density;
        o.n_components = k;
        project(contiguous_view(static_cast<const void*>(x_there.data()), DType::kFloat32, {batch, d}, kCuda),
                contiguous_view(y_there.data(), DType::kFloat32, {batch, k}, kCuda), o);
        std::vector<float> y = y_there.host<float>();
        y.resize(static_cast<std::size_t>(k));
        if (first.empty()) first = y;
        EXPECT_EQ(std::memcmp(y.data(), first.data(), y.size() * sizeof(float)), 0)
            << "batch " << batch << ", " << (kind == kSigns ? "signs" : "sjlt") << ", density " << density;
      }
    }
}

/// Dense signs round each stage of a vector to fixed point: vectors for which that is hard, against sums in float64.
TEST(SketchCuda, DenseSignsOfDifficultVectors) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  const std::int64_t d = 100001, k = 64;
  const auto run = [&](auto type, DType dtype, const std::vector<double>& values, std::vector<double>* exact) {
    using T = decltype(type);
    std::vector<T> x;
    for (double v : values) x.push_back(from_float<T>(static_cast<float>(v)));
    ProjectionOptions o;
    o.kind = kSigns;
    o.n_components = k;
    const DeviceMemory there(x), y_there(static_cast<std::size_t>(k) * sizeof(float));
    testing::check(cudaMemset(y_there.data(), 0xFF, static_cast<std::size_t>(k) * sizeof(float)));
    project(contiguous_view(static_cast<const void*>(there.data()), dtype, {1, d}, kCuda),
            contiguous_view(y_there.data(), DType::kFloat32, {1, k}, kCuda), o);
    if (exact != nullptr) {
      std::vector<double> wide;
      for (T v : x) wide.push_back(to_float(v));
      exact->resize(static_cast<std::size_t>(k));
      project(contiguous_view(static_cast<const void*>(wide.data()), DType::kFloat64, {1, d}),
              contiguous_view(static_cast<void*>(exact->data()), DType::kFloat64, {1, k}), o);
    }
    return y_there.host<float>();
  };
  const auto error = [&](auto type, DType dtype, const std::vector<double>& values) {
    std::vector<double> exact;
    const std::vector<float> y = run(type, dtype, values, &exact);
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      difference += (y[i] - exact[i]) * (y[i] - exact[i]);
      norm += exact[i] * exact[i];
    }
    return std::sqrt(difference / norm);
  };
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::vector<double> ones(static_cast<std::size_t>(d), 1.0), positive = ones, alternating = ones, spike = ones,
                                                              spikes = ones, small = ones, wide = ones;
  for (std::size_t i = 0; i < ones.size(); ++i) {
    positive[i] = std::abs(normal(random)) + 1;
    alternating[i] = i % 2 == 0 ? 1.0 : -1.0;
    spike[i] = i == 777 ? 60000.0 : normal(random);
    spikes[i] = i % 1000 == 0 ? 1000.0 : normal(random);
    small[i] = normal(random) * 1e-30;
    wide[i] = normal(random) * std::exp2(static_cast<double>(random() % 12));
  }
  const struct {
    const char* name;
    const std::vector<double>& x;
    bool half = true;
  } cases[] = {{"ones", ones},   {"positive", positive}, {"alternating", alternating},
               {"spike", spike}, {"spikes", spikes},     {"tiny", small, false},
               {"wide", wide}};
  for (const auto& c : cases) {
    EXPECT_LE(error(0.f, DType::kFloat32, c.x), 3e-6) << c.name;
    if (!c.half) continue;
    EXPECT_LE(error(Float16{}, DType::kFloat16, c.x), 5e-4) << c.name;
    EXPECT_LE(error(BFloat16{}, DType::kBFloat16, c.x), 5e-4) << c.name;
  }
  // Scaled by a power of two, the result is scaled exactly; one element alone keeps its norm.
  std::vector<double> x = positive;
  const std::vector<float> y = run(0.f, DType::kFloat32, x, nullptr);
  for (double& v : x) v *= std::exp2(-30);
  const std::vector<float> scaled = run(0.f, DType::kFloat32, x, nullptr);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(scaled[i], std::ldexp(y[i], -30));
  for (double v : {1e-8, 1e5}) {
    std::vector<double> one(static_cast<std::size_t>(d), 0.0);
    one[0] = v;
    double norm = 0;
    for (float t : run(0.f, DType::kFloat32, one, nullptr)) norm += double{t} * t;
    EXPECT_NEAR(std::sqrt(norm) / v, 1, 1e-6);
  }
  // What is not finite shows.
  std::vector<double> bad = positive;
  bad[5000] = std::numeric_limits<double>::infinity();
  for (float t : run(0.f, DType::kFloat32, bad, nullptr)) EXPECT_TRUE(std::isinf(t)) << t;
  for (float t : run(Float16{}, DType::kFloat16, bad, nullptr)) EXPECT_TRUE(std::isinf(t)) << t;
  bad[6000] = std::numeric_limits<double>::quiet_NaN();
  for (float t : run(0.f, DType::kFloat32, bad, nullptr)) EXPECT_TRUE(std::isnan(t)) << t;
}

TEST(SketchCuda, MemoryIsBounded) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  const std::int64_t d = 4000000, k = 4096;
  const DeviceMemory x(static_cast<std::size_t>(64 * d) * sizeof(float)), y(static_cast<std::size_t>(64 * k) * 4);
  testing::check(cudaMemset(x.data(), 0x3C, static_cast<std::size_t>(64 * d) * sizeof(float)));
  const auto run = [&](SketchKind kind, double density, std::int64_t batch, std::int64_t columns) {
    ProjectionOptions o;
    o.kind = kind;
    o.n_components = k;
    o.density = density;
    project(contiguous_view(static_cast<const void*>(x.data()), DType::kFloat32, {batch, columns}, kCuda),
            contiguous_view(y.data(), DType::kFloat32, {batch, k}, kCuda), o);
    testing::check(cudaDeviceSynchronize());
  };
  run(kSjlt, 1, 1, 1000);  // loads code; takes no workspace
  std::size_t before = 0, after = 0, total = 0;
  testing::check(cudaMemGetInfo(&before, &total));
  for (std::int64_t batch : {8, 16, 64}) {
    run(kSjlt, 1, batch, d);
    run(kSigns, 1, batch, d);
  }
  run(kSigns, 0.001, 8, d);
  testing::check(cudaMemGetInfo(&after, &total));  // the pool keeps what it took
  std::printf("memory besides the tensors: %.1f MiB\n", static_cast<double>(before - after) / (1 << 20));
  EXPECT_LE(before - after, std::size_t{64} << 20);
}

/// A little of everything, for compute-sanitizer.
TEST(SketchCuda, Reduced) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  for (const Case& c :
       {Case{kSjlt, 256, 4, 1, 3011}, Case{kSjlt, 50, 3, 1, 1001, kFar}, Case{kSjlt, 3000, 1, 1, 3300},
        Case{kSigns, 600, 1, 1, 3001}, Case{kSigns, 100, 1, 1, 2100, 77}, Case{kSigns, 70, 1, 0.1, 900}})
    for (std::int64_t batch : {1, 9}) {
      EXPECT_EQ(run_case<float>(c, DType::kFloat32, batch, false, 2e-5), "") << c.k;
      EXPECT_EQ(run_case<Float16>(c, DType::kFloat16, batch, true, 6e-4), "") << c.k;
      EXPECT_EQ(run_case<double>(c, DType::kFloat64, batch, false, 1e-13), "") << c.k;
    }
}

}  // namespace
}  // namespace maskless
#endif
