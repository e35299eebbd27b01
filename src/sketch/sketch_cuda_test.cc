// Projections on the device against the CPU: one matrix, sums equal to rounding, equal bytes run after run.
#include <gtest/gtest.h>

#include "maskless/sketch.h"

#if MASKLESS_HAS_CUDA
#include <cmath>
#include <cstring>
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

TEST(SketchCuda, ManyComponentsAndBatches) {  // no launch fails, and row 0 does not depend on the batch
  MASKLESS_NEEDS_CUDA_DEVICE();
  const std::int64_t d = 1000000, k = 32768;
  std::vector<float> x(static_cast<std::size_t>(65 * d));
  std::mt19937 random(1);
  for (float& v : x) v = static_cast<float>(random() % 2001) - 1000;  // sums of integers are exact
  const DeviceMemory x_there(x);
  std::vector<float> first;
  for (std::int64_t batch : {1, 7, 8, 9, 31, 32, 33, 65}) {
    const DeviceMemory y_there(static_cast<std::size_t>(batch * k) * sizeof(float));
    ProjectionOptions o;
    o.n_components = k;
    project(contiguous_view(static_cast<const void*>(x_there.data()), DType::kFloat32, {batch, d}, kCuda),
            contiguous_view(y_there.data(), DType::kFloat32, {batch, k}, kCuda), o);
    std::vector<float> y = y_there.host<float>();
    y.resize(static_cast<std::size_t>(k));
    if (first.empty()) first = y;
    EXPECT_EQ(y, first) << batch;
  }
}

}  // namespace
}  // namespace maskless
#endif
