#include "maskless/dropconnect.h"

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "common.h"

namespace maskless::python {
namespace {

using OptionalInput = std::optional<Input>;

/// p, seed, stream, samples, sample_stride, shared, scale, first_sample, first_output, first_input.
using Arguments = std::tuple<double, std::uint64_t, std::uint32_t, std::int64_t, std::int64_t, bool, bool,
                             std::uint64_t, std::uint64_t, std::uint64_t>;

DropconnectOptions to_options(const Arguments& arguments) {
  DropconnectOptions options;
  std::uint64_t seed = 0;
  std::tie(options.p, seed, options.stream, options.samples, options.sample_stride, options.shared, options.scale,
           options.first_sample, options.first_output, options.first_input) = arguments;
  options.seed = seed;
  return options;
}

void bound_dropconnect(const Input& x, const Input& weight, const OptionalInput& bias, const Output& y,
                       const Arguments& arguments, int threads) {
  const char* op = "dropconnect";
  const ConstTensorView in = to_view(op, "x", x), w = to_view(op, "weight", weight);
  ConstTensorView b;
  if (bias) b = to_view(op, "bias", *bias);
  const TensorView out = to_view(op, "out", y);
  run(op, "y", [&] { dropconnect(in, w, bias ? &b : nullptr, out, to_options(arguments), with_threads(threads)); });
}

void bound_dropconnect_backward(const Input& dy, const Input& x, const Input& weight, const Output& dx,
                                const Output& dweight, const Output& dbias, const Arguments& arguments, int threads) {
  const char* op = "dropconnect_backward";
  const ConstTensorView in_dy = to_view(op, "dy", dy), in_x = to_view(op, "x", x), w = to_view(op, "weight", weight);
  const TensorView out_x = to_view(op, "dx", dx), out_w = to_view(op, "dweight", dweight),
                   out_b = to_view(op, "dbias", dbias);
  run(op, "", [&] {
    dropconnect_backward(in_dy, in_x, w, &out_x, &out_w, &out_b, to_options(arguments), with_threads(threads));
  });
}

void bound_dropconnect_mask(const Output& keep, const Arguments& arguments, int threads) {
  const char* op = "dropconnect_mask";
  const TensorView out = to_view(op, "keep", keep);
  run(op, "keep", [&] { dropconnect_mask(out, to_options(arguments), with_threads(threads)); });
}

void bound_dropconnect_moments(const Input& x, const Input& weight, const OptionalInput& bias, double p,
                               const Output& mean, const Output& variance, int threads) {
  const char* op = "dropconnect_moments";
  const ConstTensorView in = to_view(op, "x", x), w = to_view(op, "weight", weight);
  ConstTensorView b;
  if (bias) b = to_view(op, "bias", *bias);
  const TensorView out_mean = to_view(op, "mean", mean), out_variance = to_view(op, "variance", variance);
  run(op, "",
      [&] { dropconnect_moments(in, w, bias ? &b : nullptr, p, out_mean, out_variance, with_threads(threads)); });
}

}  // namespace

void bind_dropconnect(nb::module_& m) {
  m.def("dropconnect", &bound_dropconnect, "x"_a.noconvert(), "weight"_a.noconvert(), "bias"_a.none().noconvert(),
        "out"_a.noconvert(), "arguments"_a, "threads"_a);
  m.def("dropconnect_backward", &bound_dropconnect_backward, "dy"_a.noconvert(), "x"_a.noconvert(),
        "weight"_a.noconvert(), "dx"_a.noconvert(), "dweight"_a.noconvert(), "dbias"_a.noconvert(), "arguments"_a,
        "threads"_a);
  m.def("dropconnect_mask", &bound_dropconnect_mask, "out"_a.noconvert(), "arguments"_a, "threads"_a);
  m.def("dropconnect_moments", &bound_dropconnect_moments, "x"_a.noconvert(), "weight"_a.noconvert(),
        "bias"_a.none().noconvert(), "p"_a, "mean"_a.noconvert(), "variance"_a.noconvert(), "threads"_a);
}

}  // namespace maskless::python
