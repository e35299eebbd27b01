// The fused operations' cases, run on memory of any kind, for the tests of every backend.
#ifndef MASKLESS_SRC_FUSED_FUSED_CASES_H_
#define MASKLESS_SRC_FUSED_FUSED_CASES_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "common/float_types.h"
#include "maskless/fused.h"

namespace maskless::fused_cases {

struct FusedCase {
  std::int64_t rows = 1, cols = 1;
  double p = 0.1;
  Activation activation = Activation::kIdentity;
  Norm norm = Norm::kLayer;
  bool optional = true;      // with bias, residual, weight, norm_bias, dsum, dresidual
  std::int64_t padding = 0;  // elements between rows
  std::uint64_t first_index = 0;
  bool row_seeds = false, shard = false, in_place = false;
};

inline std::string describe(const FusedCase& c, DType dtype) {
  return std::to_string(c.rows) + " x " + std::to_string(c.cols) + " " + dtype_name(dtype) + ", p " +
         std::to_string(c.p) + ", activation " + std::to_string(static_cast<int>(c.activation)) + ", norm " +
         std::to_string(static_cast<int>(c.norm)) + ", padding " + std::to_string(c.padding) + ", first index " +
         std::to_string(c.first_index) + (c.optional ? "" : ", bare") + (c.row_seeds ? ", row seeds" : "") +
         (c.shard ? ", shard" : "") + (c.in_place ? ", in place" : "");
}

inline std::vector<FusedCase> fused_cases() {
  std::vector<FusedCase> cases;
  for (std::int64_t cols : {1, 7, 8, 33, 64, 256, 1000, 1024, 1032, 4096, 8192, 8200, 20000})
    for (std::int64_t rows : {1, 5, 130}) {
      if (rows * cols > 140000) continue;
      FusedCase c;
      c.rows = rows;
      c.cols = cols;
      c.activation = static_cast<Activation>((rows + cols) % 5);
      c.norm = cols % 3 == 0 ? Norm::kRms : Norm::kLayer;
      cases.push_back(c);
    }
  for (int a = 0; a < 5; ++a)
    for (double p : {0.0, 0.25, 1.0})
      for (Norm norm : {Norm::kLayer, Norm::kRms}) {
        FusedCase c{37, 264, p, static_cast<Activation>(a), norm};
        c.optional = a % 2 == 0;
        cases.push_back(c);
        c.padding = a % 3 == 0 ? 8 : 3;
        c.first_index = a == 4 ? (std::uint64_t{1} << 40) + 5 : 16;
        cases.push_back(c);
      }
  for (int kind = 0; kind < 3; ++kind)
    for (std::int64_t cols : {65, 512}) {
      FusedCase c{21, cols, 0.3, Activation::kSilu};
      c.row_seeds = kind == 0;
      c.shard = kind == 1;
      c.in_place = kind == 2;
      cases.push_back(c);
    }
  cases.push_back({1500, 96, 0.1, Activation::kGelu});  // many groups of rows
  cases.push_back({0, 16, 0.1});
  cases.push_back({4, 0, 0.1});
  return cases;
}

inline double to_double(DType dtype, const char* memory, std::size_t e) {
  switch (dtype) {
    case DType::kFloat16: {
      Float16 v;
      std::memcpy(&v, memory + 2 * e, 2);
      return to_float(v);
    }
    case DType::kBFloat16: {
      BFloat16 v;
      std::memcpy(&v, memory + 2 * e, 2);
      return to_float(v);
    }
    case DType::kFloat32: {
      float v;
      std::memcpy(&v, memory + 4 * e, 4);
      return v;
    }
    default: {
      double v;
      std::memcpy(&v, memory + 8 * e, 8);
      return v;
    }
  }
}

inline void from_double(DType dtype, double value, char* memory, std::size_t e) {
  const float f = static_cast<float>(value);
  switch (dtype) {
    case DType::kFloat16: {
      const Float16 v = from_float<Float16>(f);
      std::memcpy(memory + 2 * e, &v, 2);
      break;
    }
    case DType::kBFloat16: {
      const BFloat16 v = from_float<BFloat16>(f);
      std::memcpy(memory + 2 * e, &v, 2);
      break;
    }
    case DType::kFloat32: std::memcpy(memory + 4 * e, &f, 4); break;
    default: std::memcpy(memory + 8 * e, &value, 8);
  }
}

/// What a case computes from its random input, every tensor as doubles, row by row without padding.
struct FusedResults {
  std::vector<double> x, bias, residual, weight, norm_bias, dy, dsum;                   // input
  std::vector<double> activated, dx, dbias;                                             // bias_activation_dropout
  std::vector<double> summed;                                                           // bias_dropout_residual
  std::vector<double> sum, y, mean, rstd, dresidual, ndx, ndbias, dweight, dnorm_bias;  // with norm
};

/// Runs a case on memory of type Memory: made from a std::vector<char>, with data() and host().
template <typename Memory>
FusedResults run_fused_case(const FusedCase& c, DType dtype, Device device, std::uint64_t input_seed,
                            const Execution& execution = {}) {
  std::mt19937_64 engine(input_seed);
  std::uniform_real_distribution<double> uniform(-3.0, 3.0);
  const std::size_t item = dtype_size(dtype);
  const DType statistic = dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const std::int64_t stride = c.cols + c.padding;
  const auto matrix_size = static_cast<std::size_t>(c.rows * stride);
  const auto random = [&](std::size_t elements) {
    std::vector<char> memory(elements * item);
    for (std::size_t e = 0; e < elements; ++e) from_double(dtype, uniform(engine), memory.data(), e);
    return memory;
  };
  const auto poison = [&](std::size_t bytes) { return std::vector<char>(bytes, static_cast<char>(0xFF)); };  // NaN
  const auto cols = static_cast<std::size_t>(c.cols), rows = static_cast<std::size_t>(c.rows);
  const Memory x(random(matrix_size)), residual(random(matrix_size)), dy(random(matrix_size)),
      dsum(random(matrix_size));
  const Memory bias(random(cols)), weight(random(cols)), norm_bias(random(cols));
  const Memory activated(poison(matrix_size * item)), dx(poison(matrix_size * item)),
      summed(poison(matrix_size * item)), sum(poison(matrix_size * item)), y(poison(matrix_size * item)),
      dresidual(poison(matrix_size * item)), ndx(poison(matrix_size * item));
  const Memory dbias(poison(cols * item)), ndbias(poison(cols * item)), dweight(poison(cols * item)),
      dnorm_bias(poison(cols * item));
  const Memory mean(poison(rows * dtype_size(statistic))), rstd(poison(rows * dtype_size(statistic)));

  const auto matrix = [&](const Memory& m) {
    TensorView v = contiguous_view(m.data(), dtype, {c.rows, c.cols}, device);
    v.strides[0] = stride;
    return v;
  };
  const auto vector = [&](const Memory& m) { return contiguous_view(m.data(), dtype, {c.cols}, device); };
  const auto statistics = [&](const Memory& m) { return contiguous_view(m.data(), statistic, {c.rows}, device); };
  const auto maybe = [&](TensorView v) { return c.optional ? v : TensorView{}; };

  DropoutOptions options;
  options.p = c.p;
  options.seed = 77;
  options.stream = 3;
  options.first_index = c.first_index;
  std::vector<char> seeds(rows * 8);
  for (std::size_t r = 0; r < rows; ++r) std::memcpy(seeds.data() + 8 * r, &r, 8);
  const Memory device_seeds(seeds);
  if (c.row_seeds) options.row_seeds = {static_cast<const std::uint64_t*>(device_seeds.data()), 1};
  if (c.shard) {
    options.shard.rank = 2;
    options.shard.global_shape = {c.rows + 5, c.cols + 24};
    options.shard.offsets = {2, 8};
  }
  const std::int64_t bytes = fused_workspace_bytes(matrix(x));
  const Memory work(poison(static_cast<std::size_t>(bytes)));
  const Workspace workspace = {work.data(), bytes};
  const ConstTensorView no_residual = c.optional ? ConstTensorView(matrix(residual)) : ConstTensorView{};

  const auto doubles = [&](const Memory& m) {
    const std::vector<char> host = m.host();
    std::vector<double> out;
    for (std::int64_t r = 0; r < c.rows; ++r)
      for (std::int64_t k = 0; k < c.cols; ++k)
        out.push_back(to_double(dtype, host.data(), static_cast<std::size_t>(r * stride + k)));
    return out;
  };
  const auto numbers = [&](const Memory& m, DType type) {
    const std::vector<char> host = m.host();
    std::vector<double> out;
    for (std::size_t e = 0; e < host.size() / dtype_size(type); ++e) out.push_back(to_double(type, host.data(), e));
    return out;
  };
  FusedResults results;
  results.x = doubles(x);
  results.residual = doubles(residual);
  results.dy = doubles(dy);
  results.dsum = doubles(dsum);
  results.bias = numbers(bias, dtype);
  results.weight = numbers(weight, dtype);
  results.norm_bias = numbers(norm_bias, dtype);

  const bool layer = c.norm == Norm::kLayer;
  const TensorView no_tensor = {};
  if (c.in_place) {  // outputs over inputs, on copies of them
    const Memory a(x.host()), b(dy.host()), r(residual.host()), s(dsum.host());
    bias_activation_dropout(matrix(a), maybe(vector(bias)), matrix(a), c.activation, options, execution);
    bias_activation_dropout_backward(matrix(b), matrix(x), maybe(vector(bias)), matrix(b), vector(dbias), c.activation,
                                     options, workspace, execution);
    results.activated = doubles(a);
    results.dx = doubles(b);
    const Memory r2(residual.host());
    bias_dropout_residual(matrix(x), maybe(vector(bias)), matrix(r2), matrix(r2), options, execution);
    results.summed = doubles(r2);
    const Memory x2(x.host()), b2(dy.host());
    bias_dropout_residual_norm(matrix(x2), maybe(vector(bias)), matrix(r), maybe(vector(weight)),
                               layer ? maybe(vector(norm_bias)) : no_tensor, matrix(r), matrix(x2),
                               layer ? statistics(mean) : no_tensor, statistics(rstd), c.norm, 1e-5, options,
                               execution);
    results.sum = doubles(r);
    results.y = doubles(x2);
    bias_dropout_residual_norm_backward(matrix(b2), matrix(s), matrix(r), maybe(vector(weight)),
                                        layer ? statistics(mean) : no_tensor, statistics(rstd), matrix(s), matrix(b2),
                                        vector(ndbias), vector(dweight), layer ? vector(dnorm_bias) : no_tensor, c.norm,
                                        options, workspace, execution);
    results.dresidual = doubles(s);
    results.ndx = doubles(b2);
  } else {
    bias_activation_dropout(matrix(x), maybe(vector(bias)), matrix(activated), c.activation, options, execution);
    bias_activation_dropout_backward(matrix(dy), matrix(x), maybe(vector(bias)), matrix(dx), vector(dbias),
                                     c.activation, options, workspace, execution);
    bias_dropout_residual(matrix(x), maybe(vector(bias)), matrix(residual), matrix(summed), options, execution);
    bias_dropout_residual_norm(matrix(x), maybe(vector(bias)), no_residual, maybe(vector(weight)),
                               layer ? maybe(vector(norm_bias)) : no_tensor, matrix(sum), matrix(y),
                               layer ? statistics(mean) : no_tensor, statistics(rstd), c.norm, 1e-5, options,
                               execution);
    bias_dropout_residual_norm_backward(matrix(dy), maybe(matrix(dsum)), matrix(sum), maybe(vector(weight)),
                                        layer ? statistics(mean) : no_tensor, statistics(rstd),
                                        maybe(matrix(dresidual)), matrix(ndx), vector(ndbias), vector(dweight),
                                        layer ? vector(dnorm_bias) : no_tensor, c.norm, options, workspace, execution);
    results.activated = doubles(activated);
    results.dx = doubles(dx);
    results.summed = doubles(summed);
    results.sum = doubles(sum);
    results.y = doubles(y);
    if (c.optional) results.dresidual = doubles(dresidual);
    results.ndx = doubles(ndx);
  }
  if (layer) results.mean = numbers(mean, statistic);
  results.rstd = numbers(rstd, statistic);
  results.dbias = numbers(dbias, dtype);
  results.ndbias = numbers(ndbias, dtype);
  results.dweight = numbers(dweight, dtype);
  if (layer) results.dnorm_bias = numbers(dnorm_bias, dtype);
  return results;
}

/// Half a unit in the last place of the dtype, relative.
inline double precision(DType dtype) {
  return dtype == DType::kFloat16    ? 1.0 / 2048
         : dtype == DType::kBFloat16 ? 1.0 / 256
         : dtype == DType::kFloat32  ? 1e-6
                                     : 1e-14;
}

/// The first place where two lists differ by more than `tolerance` of the larger of 1 and the expected value's size.
inline std::string compare(const char* name, const std::vector<double>& got, const std::vector<double>& expected,
                           double tolerance) {
  if (got.size() != expected.size())
    return std::string(name) + ": " + std::to_string(got.size()) + " numbers for " + std::to_string(expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!(std::abs(got[i] - expected[i]) <= tolerance * std::max(1.0, std::abs(expected[i]))))
      return std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(got[i]) + ", expected " +
             std::to_string(expected[i]);
  return "";
}

}  // namespace maskless::fused_cases

#endif  // MASKLESS_SRC_FUSED_FUSED_CASES_H_
