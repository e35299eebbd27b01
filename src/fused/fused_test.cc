#include "maskless/fused.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "fused/fused_cases.h"
#include "maskless/core/uniform.h"

namespace maskless {
namespace {

using fused_cases::compare;
using fused_cases::FusedCase;
using fused_cases::FusedResults;

/// Memory of the host with the interface of the device's.
class HostMemory {
 public:
  explicit HostMemory(std::vector<char> bytes) : bytes_(std::move(bytes)) { bytes_.reserve(1); }
  void* data() const { return const_cast<char*>(bytes_.data()); }
  std::vector<char> host() const { return bytes_; }

 private:
  std::vector<char> bytes_;
};

double activation(Activation a, double v) {
  switch (a) {
    case Activation::kRelu: return std::max(v, 0.0);
    case Activation::kGelu: return 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
    case Activation::kGeluTanh: return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    case Activation::kSilu: return v / (1 + std::exp(-v));
    default: return v;
  }
}

double derivative(Activation a, double v) {
  if (a == Activation::kRelu) return v > 0 ? 1 : 0;
  constexpr double kStep = 1e-5;
  return (activation(a, v + kStep) - activation(a, v - kStep)) / (2 * kStep);
}

/// The same from the definitions, in double, with the mask of the header-only core.
void check_case(const FusedCase& c, DType dtype, const FusedResults& got) {
  const double unit = fused_cases::precision(dtype), scale = keep_scale(c.p),
               loose = dtype == DType::kFloat64 ? 1e-8 : 4 * unit;
  const auto n = static_cast<std::size_t>(c.rows * c.cols), cols = static_cast<std::size_t>(c.cols);
  FusedResults want;
  want.dbias = want.ndbias = want.dweight = want.dnorm_bias = std::vector<double>(cols, 0.0);
  want.mean = want.rstd = std::vector<double>(static_cast<std::size_t>(c.rows), 0.0);
  std::vector<double> sum_size(cols, 1.0);  // what errors of sums over rows go by
  for (std::int64_t r = 0; r < c.rows; ++r) {
    double mean = 0, squares = 0, first = 0, second = 0;
    const auto base = static_cast<std::size_t>(r * c.cols);
    std::vector<double> keep(cols);
    for (std::size_t k = 0; k < cols; ++k) {
      const std::size_t e = base + k;
      std::uint64_t index = c.first_index + static_cast<std::uint64_t>(e);
      if (c.row_seeds) index = c.first_index + k;
      if (c.shard) index = c.first_index + static_cast<std::uint64_t>((r + 2) * (c.cols + 24)) + k + 8;
      keep[k] = dropout_keep(c.row_seeds ? static_cast<std::uint64_t>(r) : 77, index, threshold(c.p), 3) ? scale : 0.0;
      const double v = got.x[e] + (c.optional ? got.bias[k] : 0.0);
      want.activated.push_back(keep[k] == 0 ? 0 : activation(c.activation, v) * keep[k]);
      want.dx.push_back(keep[k] == 0 ? 0 : got.dy[e] * keep[k] * derivative(c.activation, v));
      want.dbias[k] += want.dx.back();
      want.summed.push_back(got.residual[e] + v * keep[k]);
      want.sum.push_back((c.optional ? got.residual[e] : 0.0) + v * keep[k]);
      mean += got.sum[e];  // the norm is of the sum as stored
    }
    mean = c.norm == Norm::kLayer ? mean / static_cast<double>(c.cols) : 0.0;
    for (std::size_t k = 0; k < cols; ++k) squares += (got.sum[base + k] - mean) * (got.sum[base + k] - mean);
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(c.cols) + 1e-5);
    want.mean[static_cast<std::size_t>(r)] = mean;
    want.rstd[static_cast<std::size_t>(r)] = rstd;
    for (std::size_t k = 0; k < cols; ++k) {
      const double weight = c.optional ? got.weight[k] : 1.0, normal = (got.sum[base + k] - mean) * rstd;
      want.y.push_back(normal * weight + (c.optional && c.norm == Norm::kLayer ? got.norm_bias[k] : 0.0));
      first += got.dy[base + k] * weight / static_cast<double>(c.cols);
      second += got.dy[base + k] * weight * normal / static_cast<double>(c.cols);
    }
    if (c.norm == Norm::kRms) first = 0;
    for (std::size_t k = 0; k < cols; ++k) {
      const std::size_t e = base + k;
      const double weight = c.optional ? got.weight[k] : 1.0, normal = (got.sum[e] - mean) * rstd;
      const double ds = rstd * (got.dy[e] * weight - first - normal * second) + (c.optional ? got.dsum[e] : 0.0);
      if (c.optional) want.dresidual.push_back(ds);
      want.ndx.push_back(ds * keep[k]);
      want.ndbias[k] += want.ndx.back();
      want.dweight[k] += got.dy[e] * normal;
      want.dnorm_bias[k] += got.dy[e];
      sum_size[k] += std::abs(want.ndx.back()) + std::abs(got.dy[e] * normal) + std::abs(want.dx[e]);
    }
  }
  // Where a row has next to no variance, rstd multiplies every rounding.
  const double worst = want.rstd.empty() ? 1.0 : std::max(1.0, *std::max_element(want.rstd.begin(), want.rstd.end()));
  const double sums = std::max(1.0, sum_size.empty() ? 1.0 : *std::max_element(sum_size.begin(), sum_size.end()));
  const double sum_tolerance =
      loose + unit * sums * (sizeof(float) < dtype_size(dtype) || dtype == DType::kFloat32 ? 8 : 1e-3);
  const std::string name = fused_cases::describe(c, dtype);
  if (n == 0) return;
  EXPECT_EQ(compare("activated", got.activated, want.activated, 2 * unit), "") << name;
  EXPECT_EQ(compare("dx", got.dx, want.dx, loose), "") << name;
  EXPECT_EQ(compare("dbias", got.dbias, want.dbias, sum_tolerance), "") << name;
  EXPECT_EQ(compare("summed", got.summed, want.summed, 2 * unit), "") << name;
  EXPECT_EQ(compare("sum", got.sum, want.sum, 2 * unit), "") << name;
  if (c.norm == Norm::kLayer) {
    EXPECT_EQ(compare("mean", got.mean, want.mean, 1e-5), "") << name;
  }
  EXPECT_EQ(compare("rstd", got.rstd, want.rstd, 1e-5 * worst * worst), "") << name;
  EXPECT_EQ(compare("y", got.y, want.y, loose * worst), "") << name;
  if (c.optional) {
    EXPECT_EQ(compare("dresidual", got.dresidual, want.dresidual, loose * worst), "") << name;
  }
  EXPECT_EQ(compare("dx of norm", got.ndx, want.ndx, loose * worst), "") << name;
  EXPECT_EQ(compare("dbias of norm", got.ndbias, want.ndbias, sum_tolerance * worst), "") << name;
  EXPECT_EQ(compare("dweight", got.dweight, want.dweight, sum_tolerance * worst), "") << name;
  if (c.norm == Norm::kLayer) {
    EXPECT_EQ(compare("dnorm_bias", got.dnorm_bias, want.dnorm_bias, sum_tolerance), "") << name;
  }
}

TEST(Fused, EqualsItsDefinition) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64})
    for (const FusedCase& c : fused_cases::fused_cases()) {
      Execution execution;
      execution.threads = 1;  // thousands of small calls; threads have a test of their own
      check_case(c, dtype, fused_cases::run_fused_case<HostMemory>(c, dtype, {}, 11, execution));
      if (::testing::Test::HasFailure()) return;
    }
}

TEST(Fused, ThreadsDoNotMatter) {
  const FusedCase c{300, 129, 0.2, Activation::kGelu};
  Execution execution;
  execution.threads = 1;
  const FusedResults one = fused_cases::run_fused_case<HostMemory>(c, DType::kFloat32, {}, 11, execution);
  for (int threads : {2, 3, 8}) {
    execution.threads = threads;
    const FusedResults many = fused_cases::run_fused_case<HostMemory>(c, DType::kFloat32, {}, 11, execution);
    EXPECT_EQ(one.activated, many.activated);
    EXPECT_EQ(one.dbias, many.dbias);
    EXPECT_EQ(one.dweight, many.dweight);
    EXPECT_EQ(one.y, many.y);
  }
}

TEST(Fused, IdentityIsDropoutBitForBit) {
  std::vector<float> x(1000), y(1000), z(1000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 0.37f - 100;
  DropoutOptions options;
  options.p = 0.3;
  const auto view = [](std::vector<float>& v) { return contiguous_view(v.data(), DType::kFloat32, {20, 50}); };
  bias_activation_dropout(view(x), {}, view(y), Activation::kIdentity, options);
  dropout(view(x), view(z), options);
  EXPECT_EQ(y, z);
}

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Fused, Errors) {
  std::vector<float> x(12), b(4);
  const TensorView v = contiguous_view(x.data(), DType::kFloat32, {3, 4});
  const TensorView bias = contiguous_view(b.data(), DType::kFloat32, {4});
  const auto with = [&](auto change) {
    return message([&] {
      DropoutOptions options;
      TensorView in = v, vector = bias;
      change(options, in, vector);
      bias_activation_dropout(in, vector, v, Activation::kRelu, options);
    });
  };
  EXPECT_EQ(with([](auto& o, auto&, auto&) { o.p = 1.5; }), "bias_activation_dropout: p must be in [0, 1], got 1.5");
  EXPECT_EQ(with([](auto& o, auto&, auto&) { o.layout = Layout::kTriton; }),
            "bias_activation_dropout: layout must be packed, got the Triton layout");
  EXPECT_EQ(with([](auto&, auto& in, auto&) { in.rank = 1; }),
            "bias_activation_dropout: x must have 2 dimensions (rows, features), got (3,)");
  EXPECT_EQ(with([](auto&, auto&, auto& vector) { vector.shape[0] = 3; }),
            "bias_activation_dropout: bias must be contiguous, of shape (features,), (4,), got (3,)");
  EXPECT_EQ(with([](auto&, auto&, auto& vector) { vector.dtype = DType::kBFloat16; }),
            "bias_activation_dropout: bias must be float32, got bfloat16");
  EXPECT_EQ(message([&] { bias_activation_dropout_backward(v, v, bias, v, bias, Activation::kRelu, {}, Workspace{}); }),
            "bias_activation_dropout_backward: workspace must have at least 144 bytes, got 0");

  std::vector<float> memory(64);
  const auto part = [&](int first, std::initializer_list<std::int64_t> shape) {
    return contiguous_view(memory.data() + first, DType::kFloat32, shape);
  };
  const auto norm = [&](int y, int rstd) {
    return message([&] {
      bias_dropout_residual_norm(v, {}, {}, {}, {}, part(0, {3, 4}), part(y, {3, 4}), part(40, {3}), part(rstd, {3}),
                                 Norm::kLayer, 1e-5, {});
    });
  };
  EXPECT_EQ(norm(12, 43), "no error");
  EXPECT_EQ(norm(0, 43), "bias_dropout_residual_norm: y must not overlap sum, got memory that overlaps");
  EXPECT_EQ(norm(11, 43), "bias_dropout_residual_norm: y must not overlap sum, got memory that overlaps");
  EXPECT_EQ(norm(12, 42), "bias_dropout_residual_norm: rstd must not overlap mean, got memory that overlaps");
}

}  // namespace
}  // namespace maskless
