// The fused operations on the device against the CPU's.
#if MASKLESS_HAS_CUDA
#include <gtest/gtest.h>

#include <random>

#include "cuda/test_device.h"
#include "fused/fused_cases.h"
#include "maskless/core/uniform.h"

namespace maskless {
namespace {

using fused_cases::compare;
using fused_cases::FusedCase;
using fused_cases::FusedResults;
using testing::DeviceMemory;
using testing::kCuda;

class HostMemory {
 public:
  explicit HostMemory(std::vector<char> bytes) : bytes_(std::move(bytes)) { bytes_.reserve(1); }
  void* data() const { return const_cast<char*>(bytes_.data()); }
  std::vector<char> host() const { return bytes_; }

 private:
  std::vector<char> bytes_;
};

void check_case(const FusedCase& c, DType dtype, std::uint64_t seed) {
  const FusedResults cpu = fused_cases::run_fused_case<HostMemory>(c, dtype, {}, seed);
  const FusedResults gpu = fused_cases::run_fused_case<DeviceMemory>(c, dtype, kCuda, seed);
  if (c.cols == 0) return;  // nothing is written; neither side threw
  const double unit = fused_cases::precision(dtype);
  double worst = 1.0;
  for (double r : cpu.rstd) worst = std::max(worst, r);
  const double loose = 4 * unit * worst, sums = loose * (4 + std::sqrt(static_cast<double>(c.rows)));
  const std::string name = fused_cases::describe(c, dtype) + ", input seed " + std::to_string(seed);
  // Sums and products alone are equal to the last bit.
  const bool exact = c.activation == Activation::kIdentity || c.activation == Activation::kRelu;
  EXPECT_EQ(compare("activated", gpu.activated, cpu.activated, exact ? 0 : 2 * unit), "") << name;
  EXPECT_EQ(compare("dx", gpu.dx, cpu.dx, exact ? 0 : 4 * unit), "") << name;
  EXPECT_EQ(compare("summed", gpu.summed, cpu.summed, 0), "") << name;
  EXPECT_EQ(compare("sum", gpu.sum, cpu.sum, 0), "") << name;
  EXPECT_EQ(compare("dbias", gpu.dbias, cpu.dbias, sums), "") << name;
  EXPECT_EQ(compare("mean", gpu.mean, cpu.mean, 1e-5), "") << name;
  EXPECT_EQ(compare("rstd", gpu.rstd, cpu.rstd, 1e-5 * worst), "") << name;
  EXPECT_EQ(compare("y", gpu.y, cpu.y, loose), "") << name;
  EXPECT_EQ(compare("dresidual", gpu.dresidual, cpu.dresidual, loose), "") << name;
  EXPECT_EQ(compare("dx of norm", gpu.ndx, cpu.ndx, loose * 2), "") << name;
  EXPECT_EQ(compare("dbias of norm", gpu.ndbias, cpu.ndbias, sums), "") << name;
  EXPECT_EQ(compare("dweight", gpu.dweight, cpu.dweight, sums), "") << name;
  EXPECT_EQ(compare("dnorm_bias", gpu.dnorm_bias, cpu.dnorm_bias, sums), "") << name;
}

TEST(FusedCuda, EqualsTheCpu) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  const std::uint64_t seed = std::random_device{}();
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64})
    for (const FusedCase& c : fused_cases::fused_cases()) {
      check_case(c, dtype, seed);
      if (::testing::Test::HasFailure()) return;
    }
}

/// A few cases that reach every kernel, for checkers that slow each access down.
TEST(FusedCuda, Reduced) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  for (DType dtype : {DType::kBFloat16, DType::kFloat32})
    for (std::int64_t cols : {33, 256, 1024, 2056, 4104})
      check_case({5, cols, 0.1, Activation::kGelu, cols == 256 ? Norm::kRms : Norm::kLayer}, dtype, 3);
}

/// Decisions that need the second Philox call come once in 65,536 elements: 64 of these, at each end of the thresholds.
TEST(FusedCuda, TiesAreSettled) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  constexpr std::int64_t kRows = 515, kCols = 8192;
  constexpr auto kSize = static_cast<std::size_t>(kRows * kCols);
  const BFloat16 one = from_float<BFloat16>(1.0f);
  const DeviceMemory x(std::vector<BFloat16>(kSize, one));
  DropoutOptions options;
  constexpr std::uint64_t kSeed = 0xFEDCBA9876543210u;
  options.seed = kSeed;
  options.stream = 5;
  options.first_index = (std::uint64_t{1} << 35) - 4096;
  for (double p : {1.0 / 1048576, 0.00001, 0.1, 0.5, 0.99999, 1 - 1.0 / 1048576}) {
    options.p = p;
    const DeviceMemory y(std::vector<BFloat16>(kSize, one));
    const auto view = [&](const DeviceMemory& m) {
      return contiguous_view(m.data(), DType::kBFloat16, {kRows, kCols}, kCuda);
    };
    bias_activation_dropout(view(x), {}, view(y), Activation::kIdentity, options);
    const std::vector<BFloat16> got = y.host<BFloat16>();
    std::size_t wrong = 0;
    for (std::size_t e = 0; e < kSize; ++e)
      wrong += (got[e].bits != 0) != dropout_keep(kSeed, options.first_index + e, threshold(p), options.stream);
    EXPECT_EQ(wrong, 0u) << p;
  }
}

TEST(FusedCuda, SameBitsRunAfterRun) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  const FusedCase c{4000, 1024, 0.1, Activation::kGelu};
  const FusedResults first = fused_cases::run_fused_case<DeviceMemory>(c, DType::kBFloat16, kCuda, 5);
  for (int run = 0; run < 3; ++run) {
    const FusedResults again = fused_cases::run_fused_case<DeviceMemory>(c, DType::kBFloat16, kCuda, 5);
    EXPECT_EQ(first.dbias, again.dbias);
    EXPECT_EQ(first.ndbias, again.ndbias);
    EXPECT_EQ(first.dweight, again.dweight);
    EXPECT_EQ(first.dnorm_bias, again.dnorm_bias);
    EXPECT_EQ(first.y, again.y);
    EXPECT_EQ(first.ndx, again.ndx);
  }
}

}  // namespace
}  // namespace maskless
#endif  // MASKLESS_HAS_CUDA
