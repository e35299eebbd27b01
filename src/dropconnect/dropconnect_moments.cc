// Closed-form moments of y under the masks (Wan et al. 2013): an oracle for tests, and Gaussian inference.
#include <vector>

#include "common/validate.h"
#include "common/visit.h"
#include "cpu/threads.h"
#include "dropconnect/dropconnect_reference.h"
#include "maskless/dropconnect.h"

namespace maskless {
namespace {

/// Where row r (row-major over the leading dimensions) of a (*, features) tensor begins.
std::int64_t row_offset(const ConstTensorView& view, std::int64_t r) {
  std::int64_t offset = 0;
  for (int d = view.rank - 2; d >= 0; --d) {
    offset += r % view.shape[d] * view.strides[d];
    r /= view.shape[d];
  }
  return offset;
}

}  // namespace

void dropconnect_moments(const ConstTensorView& x, const ConstTensorView& weight, const ConstTensorView* bias, double p,
                         const TensorView& mean, const TensorView& variance, const Execution& execution) {
  const char* op = "dropconnect_moments";
  validate::floating(op, "x", x);
  validate::probability(op, "p", p);
  if (p == 1.0) validate::fail_value(op, "p", "must be below 1: the scale 1 / (1 - p) is infinite there", "1");
  if (x.device.type != DeviceType::kCpu)
    validate::fail_value(op, "x", "must be on the device cpu", validate::text(x.device));
  if (x.rank < 1)
    validate::fail_value(op, "x", "must have at least 1 dimension, (*, in_features)", validate::shape_text(x));
  const auto like = [&](const char* name, const ConstTensorView& view) {
    validate::view(op, name, view);
    validate::same_dtype(op, "x", x, name, view);
    validate::same_device(op, "x", x, name, view);
  };
  like("weight", weight);
  if (weight.rank != 2 || weight.shape[1] != x.shape[x.rank - 1])
    validate::fail_value(
        op, "weight",
        "must have the shape (out_features, in_features) with x's in_features, " + validate::text(x.shape[x.rank - 1]),
        validate::shape_text(weight));
  if (bias != nullptr) {
    like("bias", *bias);
    if (bias->rank != 1 || bias->shape[0] != weight.shape[0])
      validate::fail_value(op, "bias", "must have the shape (out_features,)", validate::shape_text(*bias));
  }
  ConstTensorView expected = x;
  expected.shape[x.rank - 1] = weight.shape[0];
  for (const auto& [name, out] : {std::pair{"mean", &mean}, std::pair{"variance", &variance}}) {
    like(name, *out);
    validate::same_shape(op, "(*, out_features)", expected, name, *out);
    validate::writable(op, name, *out);
    validate::no_overlap(op, "x", x, name, *out);
    validate::no_overlap(op, "weight", weight, name, *out);
    if (bias != nullptr) validate::no_overlap(op, "bias", *bias, name, *out);
  }
  validate::no_overlap(op, "mean", mean, "variance", variance);
  if (mean.size() == 0) return;

  const std::int64_t inputs = weight.shape[1], outputs = weight.shape[0], rows = mean.size() / outputs;
  const double factor = p / (1.0 - p);
  visit_floating(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto value = [](const void* data, std::int64_t i) {
      return static_cast<double>(reference::to_sum(static_cast<const T*>(data)[i]));
    };
    const auto store = [](void* data, std::int64_t i, double v) {
      static_cast<T*>(data)[i] = reference::from_sum<T>(static_cast<reference::SumOf<T>>(v));
    };
    cpu::parallel_for(execution.threads, rows, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t x_row = row_offset(x, r), mean_row = row_offset(mean, r),
                           variance_row = row_offset(variance, r);
        for (std::int64_t n = 0; n < outputs; ++n) {
          double sum = 0, squares = 0;
          for (std::int64_t k = 0; k < inputs; ++k) {
            const double product = value(x.data, x_row + k * x.strides[x.rank - 1]) *
                                   value(weight.data, n * weight.strides[0] + k * weight.strides[1]);
            sum += product;
            squares += product * product;
          }
          if (bias != nullptr) sum += value(bias->data, n * bias->strides[0]);
          store(mean.data, mean_row + n * mean.strides[mean.rank - 1], sum);
          store(variance.data, variance_row + n * variance.strides[variance.rank - 1], factor * squares);
        }
      }
    });
  });
}

}  // namespace maskless
